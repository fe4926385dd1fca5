// Processes and threads: when they end, and what they leave behind.

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';

import { connected, eventually, fileUrl, onEach, redisUrl, unique, urls, waiting } from './backends.js';

const programs = new URL('./programs/', import.meta.url);

interface Ended {
  code: number | null;
  signal: string | null;
  stdout: string;
  stderr: string;
}

class Program {
  stdout = '';
  stderr = '';
  readonly #child: ChildProcess;
  readonly ended: Promise<Ended>;

  constructor(program: string, ...args: string[]) {
    this.#child = spawn(process.execPath, [new URL(`${program}.js`, programs).pathname, ...args]);
    this.#child.stdout?.on('data', (text) => (this.stdout += text));
    this.#child.stderr?.on('data', (text) => (this.stderr += text));
    this.ended = once(this.#child, 'close').then(([code, signal]) => ({
      code,
      signal,
      stdout: this.stdout,
      stderr: this.stderr,
    }));
  }

  /** The fence that the program prints once it holds. */
  async fence(): Promise<number> {
    await eventually(() => this.stdout.includes('\n') || this.#child.exitCode !== null, 'the program holds');
    assert.match(this.stdout, /^\d+\n/, this.stderr);
    return Number(this.stdout);
  }

  get runs(): boolean {
    return this.#child.exitCode === null && this.#child.signalCode === null;
  }

  kill(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }
}

onEach('a process stays alive while it holds, and ends when the lock is lost', async ({ lock, name, kind }) => {
  const program = new Program('hold', urls[kind], name, 'nothing');
  const fence = await program.fence();
  await sleep(500);
  assert.ok(program.runs);
  assert.equal(await lock.evict(name, fence, 'test'), true);
  const { code, stderr } = await program.ended;
  assert.equal(code, 0, stderr);
}, ['file', 'redis', 'postgres']);

onEach('a process stays alive while it waits', async ({ name, kind }) => {
  const program = new Program('hold', urls[kind], name, 'wait-again');
  await program.fence();
  await sleep(500);
  assert.ok(program.runs);
  program.kill('SIGTERM');
  assert.equal((await program.ended).signal, 'SIGTERM');
}, ['memory', 'redis']);

onEach('a process ends when all is released, without close', async ({ lock, name, kind }) => {
  const { code, stderr } = await new Program('hold', urls[kind], name, 'release').ended;
  assert.equal(code, 0, stderr);
  assert.equal(stderr, '');
  if (kind !== 'memory') {
    const next = await lock.tryAcquire(name);
    assert.ok(next);
    await next.release();
  }
});

onEach('process.exit and an uncaught error end a process that holds', async ({ name, kind }) => {
  const exited = await new Program('hold', urls[kind], name, 'exit').ended;
  assert.deepEqual([exited.code, exited.stderr], [7, '']);
  const threw = await new Program('hold', urls[kind], `${name}:throw`, 'throw').ended;
  assert.equal(threw.code, 1);
  assert.match(threw.stderr, /on purpose/);
});

test('garbage collection takes neither a call that is under way nor a lease', async () => {
  const { stdout, stderr } = await new Program('collected').ended;
  assert.equal(stdout, 'held\nacquired\n', stderr);
});

test('file: what a killed process held passes on at once', async () => {
  const lock = connected(fileUrl);
  const name = unique();
  const program = new Program('hold', fileUrl, name, 'nothing');
  const fence = await program.fence();
  const next = lock.acquire(name, { waitSeconds: 20 });
  await waiting(lock, name, 1);
  program.kill('SIGKILL');
  await using lease = await next;
  assert.ok(lease.fence > fence);
  assert.equal((await lock.history({ name }))[0]?.ending, 'disconnected');
});

onEach('worker threads connect on their own and exclude each other', async ({ name, kind }) => {
  const cell = new SharedArrayBuffer(4);
  const worker = () => new Worker(new URL('worker.js', programs), { workerData: { url: urls[kind], name, cell, rounds: 25 } });
  await Promise.all([once(worker(), 'exit'), once(worker(), 'exit'), once(worker(), 'exit')]);
  assert.equal(new Int32Array(cell)[0], 75);
});

onEach('a terminated worker thread gives back what it held', async ({ lock, name, kind }) => {
  const cell = new SharedArrayBuffer(4);
  const worker = new Worker(new URL('worker.js', programs), { workerData: { url: urls[kind], name, cell, rounds: 0 } });
  const [fence] = (await once(worker, 'message')) as [number];
  assert.equal(await lock.tryAcquire(name), null);
  await worker.terminate();
  await using lease = await lock.acquire(name, { waitSeconds: 10 });
  assert.ok(lease.fence > fence);
});

// `LEASEHOLD_CYCLES=100000` is the long form.
test('redis: a flapping backend leaves no unhandled rejection and throws from no timer', { timeout: 600_000 }, async () => {
  const cycles = process.env.LEASEHOLD_CYCLES ?? '3000';
  const { code, stdout, stderr } = await new Program('flapping', redisUrl, cycles).ended;
  assert.equal(code, 0, stderr);
  const seen = JSON.parse(stdout) as { done: number; lost: number; refused: number; unhandled: number };
  assert.equal(seen.unhandled, 0, stdout + stderr);
  assert.equal(seen.done + seen.lost + seen.refused, Number(cycles));
  assert.ok(seen.done > 0 && seen.lost + seen.refused > 0, `the backend did flap: ${stdout}`);
});

onEach('a thousand waiters of one process cost no CPU', async ({ lock, other, name }) => {
  await using lease = await lock.acquire(name);
  const stop = new AbortController();
  const waits = Array.from({ length: 1000 }, () =>
    other.acquire(name, { waitSeconds: Infinity, signal: stop.signal }).catch(() => {}),
  );
  await waiting(lock, name, 1000);
  await sleep(200);
  const before = process.cpuUsage();
  await sleep(2000);
  const { user, system } = process.cpuUsage(before);
  assert.ok(user + system < 200_000, `${user + system} µs of CPU in 2 s`);
  stop.abort();
  await Promise.all(waits);
  lease.check();
  await waiting(lock, name, 0);
}, ['redis', 'postgres']);
