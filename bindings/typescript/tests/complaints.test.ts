// What users of other locks complain of and no other test shows: why it cannot happen here.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';

import { LockBusyError } from 'leasehold';

import { connected, eventually, failure, fileUrl, onEach, redisUrl, unique } from './backends.js';
import { Proxy } from './proxy.js';

// Locks of other languages run the block all the same when the lock is busy.
onEach('a callback never runs without the lock', async ({ lock, other, name }) => {
  await using lease = await lock.acquire(name);
  let ran = false;
  const error = await failure(other.withLock(name, () => (ran = true), { waitSeconds: 0 }));
  assert.ok(error instanceof LockBusyError);
  assert.equal(ran, false);
  lease.check();
});

// Timeouts that are taken for success, or that fire early.
onEach('a wait that is over never returns a lock', async ({ lock, other, name }) => {
  for (let round = 0; round < 3; round++) {
    const lease = await lock.acquire(name);
    const began = performance.now();
    assert.ok((await failure(other.acquire(name, { waitSeconds: 0.15 }))) instanceof LockBusyError);
    assert.ok(performance.now() - began >= 149);
    await lease.release();
    await eventually(async () => (await lock.list({ name })).leases.length === 0, 'the queue is empty');
  }
});

// `extend` of other locks adds to what is left, or replaces it; which one a caller means is easy to mistake.
onEach('renewing counts from now', async ({ lock, other, name }) => {
  await using lease = await lock.acquire(name, { ttlSeconds: 10 });
  await lease.renew(40);
  await lease.renew(20);
  assert.ok(lease.remainingMs > 15_000);
  const [listed] = (await other.list({ name })).leases;
  assert.ok((listed?.expiresInMs ?? 0) <= 40_500);
});

// One of the two errors hides the other.
test('redis: the error of the work is not hidden by that of the release', async () => {
  await using proxy = await Proxy.to(redisUrl);
  const own = new Error('my own');
  const warned = once(process, 'warning');
  const error = await failure(
    connected(proxy.url).withLock(unique(), () => {
      proxy.cut();
      throw own;
    }),
  );
  assert.equal(error, own);
  const [warning] = (await warned) as [Error & { code?: string }];
  assert.equal(warning.code, 'LEASEHOLD_RELEASE');
  proxy.mend();
});

// A daemon that is started under flock inherits the descriptor, and holds the lock for ever.
test('file: a program started under a lock does not keep it', async () => {
  const [lock, name] = [connected(fileUrl), unique()];
  const daemon = await lock.withLock(name, () => spawn('sleep', ['60'], { detached: true, stdio: 'ignore' }));
  try {
    await using lease = await lock.tryAcquire(name);
    assert.ok(lease);
  } finally {
    daemon.kill('SIGKILL');
  }
});
