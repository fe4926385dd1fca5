// What happens when a lock is lost.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { type Lease, type LeaseholdError, LockLostError } from 'leasehold';

import { block, connected, eventually, failure, onEach, redisUrl, unique, waiting } from './backends.js';
import { Proxy } from './proxy.js';

onEach('withLock waits for the callback, then rejects with its error as the cause', async ({ lock, other, name }) => {
  const own = new Error('stopped half way');
  let settled = false;
  const error = await failure(
    lock.withLock(name, async (lease) => {
      await other.evict(name, lease.fence, 'test');
      await aborted(lease.signal);
      await sleep(50);
      settled = true;
      throw own;
    }),
  );
  assert.ok(settled, 'no work is left running unseen');
  assert.ok(error instanceof LockLostError);
  assert.equal(error.code, 'LOST');
  assert.equal(error.reason, 'evicted');
  assert.equal(error.cause, own);
  assert.match(error.message, new RegExp(name));
});

onEach('a callback that finished in spite of the loss is told', async ({ lock, other, name }) => {
  const error = await failure(
    lock.withLock(name, async (lease) => {
      await other.evict(name, lease.fence, 'test');
      await aborted(lease.signal);
      return 'done without the lock';
    }),
  );
  assert.ok(error instanceof LockLostError);
  assert.equal(error.cause, undefined);
});

onEach("work that fails with the signal's reason fails with just that", async ({ lock, other, name }) => {
  let reason: unknown;
  const error = await failure(
    lock.withLock(name, async (lease) => {
      await other.evict(name, lease.fence, 'test');
      await aborted(lease.signal);
      reason = lease.signal.reason;
      lease.signal.throwIfAborted();
    }),
  );
  assert.ok(error instanceof LockLostError);
  assert.equal(error, reason);
});

onEach('nothing is released after a loss', async ({ lock, other, name }) => {
  const lease = await lock.acquire(name);
  const next = other.acquire(name, { waitSeconds: 20 });
  await waiting(lock, name, 1);
  await other.evict(name, lease.fence, 'test');
  await using held = await next;
  await eventually(() => !lease.held, 'the loss');
  await lease.release();
  assert.ok(held.held);
  assert.equal(await lock.tryAcquire(name), null, 'the next one still has it');
});

onEach('await using tells a loss at the end of the block', async ({ lock, other, name }) => {
  const error = await failure(
    (async () => {
      await using lease = await lock.acquire(name);
      await other.evict(name, lease.fence, 'test');
      await aborted(lease.signal);
    })(),
  );
  assert.ok(error instanceof LockLostError);
});

onEach('the loss of one of several locks is the loss of all', async ({ lock, other, name }) => {
  const names = [`${name}:a`, `${name}:b`];
  const error = await failure(
    lock.withAll(names, async (leases) => {
      const [, second] = leases.names;
      await other.evict(second ?? '', leases.fences.get(second ?? '') ?? 0, 'test');
      await aborted(leases.signal);
      assert.throws(() => leases.check(), LockLostError);
      assert.equal(leases.held, false);
    }),
  );
  assert.ok(error instanceof LockLostError);
  assert.equal(error.reason, 'evicted');
  await eventually(async () => (await lock.list({ prefix: name })).leases.length === 0, 'the other one is free');
});

onEach("with onLost: 'ignore' a loss aborts nothing and rejects nothing", async ({ lock, other, name }) => {
  const loseIt = async (lease: Lease) => {
    await other.evict(name, lease.fence, 'test');
    await eventually(() => !lease.held, 'the loss');
    assert.throws(() => lease.check(), LockLostError);
    assert.equal(lease.signal.aborted, false);
  };
  const value = await lock.withLock(
    name,
    async (lease) => {
      const { signal } = lease;
      await loseIt(lease);
      assert.equal(signal.aborted, false);
      return 42;
    },
    { onLost: 'ignore' },
  );
  assert.equal(value, 42);
  const own = new Error('my own');
  const failing = lock.withLock(name, async (lease) => loseIt(lease).then(() => Promise.reject(own)), { onLost: 'ignore' });
  assert.equal(await failure(failing), own);
  {
    await using lease = await lock.acquire(name, { onLost: 'ignore' });
    await loseIt(lease);
  }
});

onEach('a lease that nobody renews ends with its ttl', async ({ lock, other, name }) => {
  // A busy machine may take a second to connect.
  await other.withLock(`${name}:other`, () => {});
  const lease = await lock.acquire(name, { autoRenew: false, ttlSeconds: 3 });
  assert.ok(lease.held && lease.remainingMs <= 3000);
  assert.equal(await other.tryAcquire(name), null);
  // Nothing else keeps this process alive.
  await eventually(() => lease.signal.aborted, 'the end of the ttl');
  assert.ok(lease.signal.reason instanceof LockLostError);
  assert.equal(lease.held, false);
  await other.withLock(name, (next) => assert.ok(next.fence > lease.fence), { waitSeconds: 20 });
});

onEach('a lease that nobody renews can be renewed and released', async ({ lock, other, name }) => {
  const lease = await lock.acquirePermit(name, { limit: 2, permits: 2, autoRenew: false, ttlSeconds: 3 });
  await lease.renew(60);
  assert.ok(lease.remainingMs > 30_000);
  await sleep(3200);
  lease.check();
  assert.equal(await other.tryAcquirePermit(name, { limit: 2 }), null);
  await lease.release();
  assert.equal(lease.held, false);
  await using next = await other.tryAcquirePermit(name, { limit: 2, autoRenew: false });
  assert.ok(next);
});

onEach('only single locks can do without renewals', async ({ lock, name }) => {
  // @ts-expect-error: the types have no such option.
  const refused = await failure(lock.acquireAll([name], { autoRenew: false }));
  assert.equal((refused as LeaseholdError).code, 'CONFIG');
});

onEach('after a blocked event loop, the first read tells the loss and the first turn aborts', async ({ lock, name }) => {
  const lease = await lock.acquire(name, { maxHoldSeconds: 0.3 });
  let told: unknown;
  lease.signal.addEventListener('abort', () => (told = lease.signal.reason));
  const early = await lock.acquire(`${name}:unread`, { maxHoldSeconds: 0.3 });
  const earlySignal = early.signal;
  block(700);
  assert.equal(lease.held, false);
  assert.throws(
    () => lease.check(),
    (error) => error instanceof LockLostError && error.reason === 'max_hold',
  );
  assert.equal(lease.remainingMs, 0);
  assert.ok(lease.signal.aborted);
  assert.ok(told instanceof LockLostError);
  // Nobody has read this one; its turn comes with the first round of the event loop.
  await new Promise(setImmediate);
  await new Promise(setImmediate);
  assert.ok(earlySignal.aborted);
  await lease.release();
});

onEach('a loss that aborts a wait leaves no lock behind that was granted at the same time', async ({ lock, other, name }) => {
  const a = await lock.acquire(`${name}:a`);
  const b = await other.acquire(`${name}:b`);
  const wait = lock.acquire(b.name, { waitSeconds: 30, signal: a.signal });
  await waiting(other, b.name, 1);
  // The requests leave at once, and the event loop gets the loss and then the grant in one turn.
  const evicted = other.evict(a.name, a.fence, 'test');
  block(500);
  const released = b.release();
  block(500);
  await Promise.all([evicted, released]);
  await wait.then(
    (lease) => {
      assert.ok(lease.signal.aborted);
      return lease.release();
    },
    (error) => assert.equal(error, a.signal.reason),
  );
  await other.withLock(b.name, () => {}, { waitSeconds: 10 });
});

onEach('a blocked event loop does not stop renewals', async ({ lock, name }) => {
  await using lease = await lock.acquire(name, { ttlSeconds: 1 });
  block(3000);
  assert.ok(lease.held);
  lease.check();
  assert.ok(lease.remainingMs > 0);
}, ['memory', 'redis', 'postgres']);

onEach('a release or renewal that nobody awaits ends no process', async ({ lock, other, name }) => {
  const unhandled: unknown[] = [];
  const note = (reason: unknown) => unhandled.push(reason);
  process.on('unhandledRejection', note);
  try {
    const lease = await lock.acquire(name);
    await other.evict(name, lease.fence, 'test');
    await eventually(() => !lease.held, 'the loss');
    void lease.renew(30);
    void lease.release();
    await sleep(20);
    assert.deepEqual(unhandled, []);
  } finally {
    process.off('unhandledRejection', note);
  }
});

test('redis: a cut connection is a loss before the ttl ends, and no call hangs on it', async () => {
  await using proxy = await Proxy.to(redisUrl);
  const [lock, witness] = [connected(proxy.url), connected(redisUrl)];
  const name = unique();
  const own = new Error('own');
  let lostAfter = 0;
  const asked = performance.now();
  let toldAt = 0;
  const error = await failure(
    lock.withLock(
      name,
      async (lease) => {
        proxy.cut();
        await aborted(lease.signal);
        lostAfter = performance.now() - asked;
        const held = (await witness.list({ name })).leases[0];
        assert.equal(held?.state, 'holding', 'nobody else could get it yet');
        toldAt = performance.now();
        throw own;
      },
      { ttlSeconds: 2 },
    ),
  );
  assert.ok(performance.now() - toldAt < 1000, 'it does not spend seconds on a release after the loss');
  assert.ok(error instanceof LockLostError);
  assert.equal(error.reason, 'renew_timeout');
  assert.equal(error.cause, own);
  assert.ok(lostAfter < 2000, `${lostAfter}`);
  await witness.withLock(name, () => {}, { waitSeconds: 10 });
});

test('redis: a lost connection that comes back in time is no loss', async () => {
  await using proxy = await Proxy.to(redisUrl);
  const lock = connected(proxy.url);
  await using lease = await lock.acquire(unique(), { ttlSeconds: 5 });
  proxy.cut();
  await sleep(500);
  proxy.mend();
  await eventually(() => lease.remainingMs > 4000, 'a renewal');
  lease.check();
});

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
