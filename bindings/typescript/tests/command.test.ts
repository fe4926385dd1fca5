// `npx leasehold`: the command.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';

import { connected, eventually, onEach, redisUrl, unique, urls, waiting } from './backends.js';

const program = 'node_modules/.bin/leasehold';

async function run(args: string[], input = ''): Promise<{ code: number | null; signal: string | null; stdout: string }> {
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  let stdout = '';
  child.stdout.on('data', (text) => (stdout += text));
  child.stdin.end(input);
  const [code, signal] = await once(child, 'close');
  return { code, signal, stdout };
}

onEach('holds the lock that the package sees, and passes input, output and exit code on', async ({ lock, name, kind }) => {
  const ran = await run(['run', '-b', urls[kind], name, '--', 'sh', '-c', 'read line; echo "got $line"; exit 23'], 'a line\n');
  assert.deepEqual(ran, { code: 23, signal: null, stdout: 'got a line\n' });
  const lease = await lock.acquire(name);
  assert.equal((await run(['run', '-n', '-b', urls[kind], name, '--', 'true'])).code, 75, 'busy');
  await lease.release();
}, ['file', 'redis', 'postgres']);

onEach('goes on with a lease that outlived the process that took it', async ({ lock, name, kind }) => {
  const hold = spawn(process.execPath, [new URL('./programs/hold.js', import.meta.url).pathname, urls[kind], name, 'detached']);
  let handle = '';
  hold.stdout.on('data', (text) => (handle += text));
  assert.deepEqual(await once(hold, 'close'), [0, null]);
  assert.equal(await lock.tryAcquire(name), null);
  assert.equal((await run(['check', '-b', urls[kind], '--lease', handle.trim()])).code, 0);
  assert.equal((await run(['release', '-b', urls[kind], '--lease', handle.trim()])).code, 0);
  await using lease = await lock.tryAcquire(name);
  assert.ok(lease);
}, ['file', 'redis', 'postgres']);

test('a waiting package gets the lock when the command ends, and a signal to npx ends the command', async () => {
  const lock = connected(redisUrl);
  const name = unique();
  const child = spawn('npx', ['--no', 'leasehold', 'run', '-b', redisUrl, name, '--', 'sleep', '60']);
  await eventually(async () => (await lock.list({ name })).leases.length === 1, 'the command holds');
  const next = lock.acquire(name, { waitSeconds: 20 });
  await waiting(lock, name, 1);
  // The command itself, which took the place of node: npx starts it by way of a shell.
  const command = (await lock.list({ name })).leases[0];
  const pid = Number(/:(\d+):/.exec(command?.holder ?? '')?.[1]);
  process.kill(pid, 'SIGTERM');
  await using lease = await next;
  lease.check();
  await once(child, 'close');
});

onEach('the package and the command wait in one queue', async ({ lock, other, name, kind }) => {
  const order: string[] = [];
  const command = async (title: string) => {
    await run(['run', '-b', urls[kind], name, '--', 'true']);
    order.push(title);
  };
  const holder = await lock.acquire(name);
  const first = command('command');
  await waiting(lock, name, 1);
  const second = other.withLock(
    name,
    async () => {
      // The command reports its end after it released.
      await eventually(() => order.length === 1, 'the command is done');
      order.push('package');
    },
    { waitSeconds: 30 },
  );
  await waiting(lock, name, 2);
  const third = command('command again');
  await waiting(lock, name, 3);
  await holder.release();
  await Promise.all([first, second, third]);
  assert.deepEqual(order, ['command', 'package', 'command again']);
}, ['file', 'redis', 'postgres']);
