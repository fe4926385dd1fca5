// Who reads the answers of Redis: the event loop while it has calls under way, the library's thread otherwise.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';

import { connected, redisUrl, unique } from './backends.js';

/** How often the library's thread for I/O has slept so far. */
function sleeps(): number {
  for (const thread of readdirSync('/proc/self/task')) {
    const status = readFileSync(`/proc/self/task/${thread}/status`, 'utf8');
    if (/^Name:\s+leasehold-io$/m.test(status)) return Number(/^voluntary_ctxt_switches:\s+(\d+)$/m.exec(status)?.[1]);
  }
  throw new Error('the library has no thread for I/O');
}

const linux = { skip: process.platform !== 'linux' };
const pairs = 1000;

/** A thread that reads an answer sleeps once for each; one that only looks after the event loop, every few milliseconds. */
function assertSleepsLittle(before: number, since: number): void {
  const [slept, ms] = [sleeps() - before, performance.now() - since];
  assert.ok(slept < pairs + ms / 4, `the thread slept ${slept} times during ${pairs} pairs and ${ms} ms`);
}

test('redis: the answer to a call wakes no other thread', linux, async () => {
  const lock = connected(redisUrl);
  const name = unique();
  await lock.withLock(name, () => {});
  const [before, since] = [sleeps(), performance.now()];
  for (let pair = 0; pair < pairs; pair++) await (await lock.acquire(name)).release();
  assertSleepsLittle(before, since);
});

test('redis: nor does it in a worker thread, which ends with calls under way', linux, async () => {
  const program = `
    const { parentPort, workerData: { url, name } } = require('node:worker_threads');
    const lock = require('leasehold').connect(url);
    (async () => {
      await (await lock.acquire(name)).release();
      parentPort.postMessage('begins');
      for (let pair = 0; pair < ${pairs}; pair++) await (await lock.acquire(name)).release();
      parentPort.postMessage('done');
      for (;;) await Promise.all([0, 1, 2].map((which) => lock.withLock(name + which, () => {})));
    })();`;
  const worker = new Worker(program, { eval: true, workerData: { url: redisUrl, name: unique() } });
  const next = () => new Promise((resolve) => worker.once('message', resolve));
  try {
    assert.equal(await next(), 'begins');
    const [before, since] = [sleeps(), performance.now()];
    assert.equal(await next(), 'done');
    assertSleepsLittle(before, since);
    await sleep(50);
  } finally {
    assert.equal(await worker.terminate(), 1);
  }
});

test('redis: an event loop that blocks with calls under way delays no renewal', async () => {
  const lock = connected(redisUrl);
  const name = unique();
  const lease = await lock.acquire(name, { ttlSeconds: 1 });
  for (let turn = 0; turn < 100; turn++) await (await lock.acquire(`${name}:warm`)).release();
  const underWay = lock.acquire(`${name}:other`);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3000);
  assert.ok(lease.held);
  assert.ok(lease.remainingMs > 100, `${lease.remainingMs}`);
  await (await underWay).release();
  await lease.release();
});
