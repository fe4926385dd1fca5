// What every lock does, on every backend.

import assert from 'node:assert/strict';
import { connect as dial } from 'node:net';
import { test } from 'node:test';

import { connect, LeaseholdError, LockBusyError, LockLostError } from 'leasehold';

import { connected, eventually, failure, onEach, redisUrl, unique, urls, waiting } from './backends.js';

onEach("withLock returns the callback's value and releases", async ({ lock, other, name }) => {
  const value = await lock.withLock(name, async (lease) => {
    assert.equal(lease.name, name);
    assert.ok(lease.fence > 0);
    assert.ok(lease.held);
    assert.ok(lease.remainingMs > 0);
    lease.check();
    assert.equal(await other.tryAcquire(name), null);
    return 42;
  });
  assert.equal(value, 42);
  const next = await other.tryAcquire(name);
  assert.ok(next);
  await next.release();
});

onEach('fences rise', async ({ lock, other, name }) => {
  const first = await lock.withLock(name, (lease) => lease.fence);
  const second = await other.withLock(name, (lease) => lease.fence);
  assert.ok(second > first);
});

onEach('a busy lock says who holds it, and how long the call waited', async ({ lock, other, name }) => {
  await using lease = await lock.acquire(name, { holder: 'alice', note: 'month end' });
  const error = await failure(other.acquire(name, { waitSeconds: 1 }));
  assert.ok(error instanceof LockBusyError && error instanceof LeaseholdError && error instanceof Error);
  assert.equal(error.code, 'BUSY');
  assert.equal(error.name, 'LockBusyError');
  assert.ok(error.retryable);
  assert.match(error.message, /alice/);
  assert.equal(error.holders[0]?.holder, 'alice');
  assert.equal(error.holders[0]?.note, 'month end');
  assert.equal(error.holders[0]?.fence, lease.fence);
  assert.ok(error.waitedMs >= 990, `${error.waitedMs}`);
  assert.match(error.stack ?? '', /locks\.test/, 'the stack names the caller');

  const atOnce = await failure(other.acquire(name, { waitSeconds: 0 }));
  assert.ok(atOnce instanceof LockBusyError);
});

onEach('waiters are served in order', async ({ lock, other, name }) => {
  const first = await lock.acquire(name);
  const order: number[] = [];
  const waits = [];
  for (const [place, asker] of [other, lock, other].entries()) {
    waits.push(asker.withLock(name, () => order.push(place), { waitSeconds: 20 }));
    await waiting(lock, name, place + 1);
  }
  await first.release();
  await Promise.all(waits);
  assert.deepEqual(order, [0, 1, 2]);
});

onEach('request has the shape of the Web Locks API', async ({ lock, other, name }) => {
  const value = await lock.request(name, async (lease) => {
    assert.equal(await other.request(name, { ifAvailable: true }, (busy) => busy), null);
    const stop = new AbortController();
    const waits = other.request(name, { mode: 'shared', signal: stop.signal }, () => 'never');
    await waiting(lock, name, 1);
    stop.abort();
    assert.equal(await failure(waits), stop.signal.reason);
    return lease.name;
  });
  assert.equal(value, name);
  const readers = await lock.request(name, { mode: 'shared' }, () =>
    other.request(name, { mode: 'shared', ifAvailable: true }, (lease) => lease !== null),
  );
  assert.equal(readers, true);
});

onEach("a callback's error is kept, and recorded", async ({ lock, name }) => {
  const own = new RangeError('no paper', { cause: new Error('tray 2') });
  assert.equal(
    await failure(
      lock.withLock(name, () => {
        throw own;
      }),
    ),
    own,
  );
  const [ended] = await lock.history({ name });
  assert.equal(ended?.ending, 'failed');
  assert.deepEqual(ended?.problem, { kind: 'RangeError', details: 'no paper: tray 2' });
  assert.ok(ended?.endedAt instanceof Date && ended.acquiredAt instanceof Date);

  await lock.withLock(name, () => {});
  const [next] = await lock.history({ name });
  assert.equal(next?.ending, 'released');
  assert.equal(next?.problem, null);
  assert.equal((await lock.history({ name, failures: true })).length, 1);
});

onEach('tryWithLock tells a value from a skip', async ({ lock, other, name }) => {
  const skipped = await lock.withLock(name, () => other.tryWithLock(name, () => 'not run'));
  assert.equal(skipped, null);
  assert.deepEqual(await other.tryWithLock(name, () => undefined), { value: undefined });
});

onEach('await using releases, also when the block throws', async ({ lock, other, name }) => {
  const own = new Error('own');
  const thrown = await failure(
    (async () => {
      await using lease = await lock.acquire(name);
      lease.check();
      throw own;
    })(),
  );
  assert.equal(thrown, own);
  {
    await using lease = await other.tryAcquire(name);
    assert.ok(lease);
    await using nothing = await lock.tryAcquire(name);
    assert.equal(nothing, null);
  }
  const again = await lock.tryAcquire(name);
  assert.ok(again);
  await again.release();
});

onEach('release is idempotent, and a released lease is not held', async ({ lock, other, name }) => {
  const lease = await lock.acquire(name);
  await Promise.all([lease.release(), lease.release()]);
  await lease.release();
  assert.equal(lease.held, false);
  assert.equal(lease.remainingMs, 0);
  assert.equal(lease.signal.aborted, false, 'a release is no loss');
  assert.throws(
    () => lease.check(),
    (error) => error instanceof LockLostError && error.reason === 'released',
  );
  // Nor does releasing it again end the lease of the next.
  await using next = await other.acquire(name);
  await lease.release();
  assert.ok((await lock.list({ name })).leases.some((record) => record.state === 'holding' && record.fence === next.fence));
});

onEach('renew moves the deadline', async ({ lock, name }) => {
  await using lease = await lock.acquire(name, { ttlSeconds: 5 });
  assert.ok(lease.remainingMs <= 5000);
  await lease.renew(60);
  assert.ok(lease.remainingMs > 50_000 && lease.remainingMs <= 60_000);
}, ['memory', 'redis', 'postgres']);

onEach('a signal ends the wait and leaves no place in the queue', async ({ lock, other, name }) => {
  await using lease = await lock.acquire(name);
  const stop = new AbortController();
  const wait = other.acquire(name, { waitSeconds: Infinity, signal: stop.signal });
  await waiting(lock, name, 1);
  const reason = new Error('the user went away');
  stop.abort(reason);
  assert.equal(await failure(wait), reason);
  await waiting(lock, name, 0);
  lease.check();

  assert.equal(await failure(other.acquire(name, { signal: stop.signal })), reason);
  const elapsed = await failure(other.acquire(name, { waitSeconds: 30, signal: AbortSignal.timeout(50) }));
  assert.equal((elapsed as Error).name, 'TimeoutError');
  await waiting(lock, name, 0);
});

onEach("the caller's signal aborts the lease's", async ({ lock, name }) => {
  const stop = new AbortController();
  const value = await lock.withLock(
    name,
    (lease) =>
      new Promise<unknown>((resolve) => {
        lease.signal.addEventListener('abort', () => resolve(lease.signal.reason));
        stop.abort('shutting down');
      }),
    { signal: stop.signal },
  );
  assert.equal(value, 'shutting down', 'the lock was not lost, so the value counts');
});

onEach('readers share, writers do not', async ({ lock, other, name }) => {
  await lock.withRead(name, async () => {
    await other.withRead(name, async () => {
      assert.equal(await other.tryAcquire(name), null);
      const reader = await other.tryAcquire(name, { mode: 'shared' });
      assert.ok(reader);
      await reader.release();
    });
  });
  await lock.withWrite(name, async () => {
    assert.equal(await other.tryAcquire(name, { mode: 'shared' }), null);
  });
});

onEach('permits are limited, and a limit is agreed on', async ({ lock, other, name }) => {
  await lock.withPermit(name, { limit: 3, permits: 2 }, async () => {
    await other.withPermit(name, { limit: 3 }, async () => {
      assert.equal(await other.tryAcquirePermit(name, { limit: 3 }), null);
      const error = await failure(other.acquirePermit(name, { limit: 4 }));
      assert.ok(error instanceof LeaseholdError);
      assert.equal(error.code, 'CONFIG');
      assert.match(error.message, /3.*4|4.*3/);
    });
  });
});

onEach('withAll holds all or none, and nobody deadlocks', async ({ lock, other, name }) => {
  const [a, b] = [`${name}:a`, `${name}:b`];
  await lock.withAll([b, a], async (leases) => {
    assert.deepEqual(leases.names, [a, b]);
    assert.ok((leases.fences.get(a) ?? 0) > 0 && (leases.fences.get(b) ?? 0) > 0);
    leases.check();
    assert.ok(leases.held);
    assert.equal(await other.tryAcquire(a), null);
    assert.equal(await other.tryAcquire(b), null);
  });
  let inside = 0;
  const pairs = Array.from({ length: 10 }, (_, place) =>
    (place % 2 ? lock : other).withAll(
      place % 2 ? [a, b] : [b, a],
      async () => {
        assert.equal(++inside, 1);
        await new Promise(setImmediate);
        inside--;
      },
      { waitSeconds: 30 },
    ),
  );
  await Promise.all(pairs);
  await using both = await lock.acquireAll([a]);
  assert.deepEqual(both.names, [a]);
});

onEach('maxWaiters refuses a queue that is too long', async ({ lock, other, name }) => {
  await using lease = await lock.acquire(name);
  const waiter = other.acquire(name, { waitSeconds: 20 });
  await waiting(lock, name, 1);
  assert.ok((await failure(lock.acquire(name, { waitSeconds: 20, maxWaiters: 0 }))) instanceof LockBusyError);
  await lease.release();
  await (await waiter).release();
});

onEach('query, list and history show what others do', async ({ lock, other, name }) => {
  await using lease = await lock.acquire(name, { holder: 'alice', note: 'a note', metadata: { since: 5, deep: { n: [1] } } });
  const stop = new AbortController();
  const wait = other.acquire(name, { waitSeconds: 30, holder: 'bob', mode: 'shared', signal: stop.signal }).catch(() => {});
  await waiting(lock, name, 1);

  const { held, pending } = await other.query();
  assert.deepEqual(held.find((one) => one.name === name), { name, mode: 'exclusive', clientId: 'alice' });
  assert.deepEqual(pending.find((one) => one.name === name), { name, mode: 'shared', clientId: 'bob' });

  const { leases, next } = await other.list({ prefix: name });
  assert.equal(next, null);
  const [first, second] = leases;
  assert.ok(first?.state === 'holding' && second?.state === 'waiting');
  assert.equal(first.fence, lease.fence);
  assert.equal(first.note, 'a note');
  assert.deepEqual(first.metadata, { since: 5, deep: { n: [1] } });
  assert.ok(first.acquiredAt instanceof Date && Math.abs(first.acquiredAt.getTime() - Date.now()) < 60_000);
  assert.equal(second.holder, 'bob');
  assert.equal(second.ahead, 0);
  stop.abort();
  await wait;
});

onEach('query reads every page', async ({ lock, name }) => {
  const names = Array.from({ length: 1100 }, (_, place) => `${name}:${String(place).padStart(4, '0')}`);
  await using all = await lock.acquireAll(names);
  const page = await lock.list({ prefix: name, limit: 50 });
  assert.equal(page.leases.length, 50);
  assert.equal(page.next, names[49]);
  const { held } = await lock.query();
  assert.equal(held.filter((one) => one.name.startsWith(name)).length, all.names.length);
}, ['memory']);

onEach('evict takes only the lease with that fence', async ({ lock, other, name }) => {
  const lease = await lock.acquire(name);
  assert.equal(await other.evict(name, lease.fence + 1, 'a wrong one'), false);
  assert.ok(lease.held);
  assert.equal(await other.evict(name, lease.fence, 'host gone'), true);
  await eventually(() => !lease.held, 'the loss');
  const [ended] = await other.history({ name });
  assert.equal(ended?.ending, 'evicted');
  assert.match(ended?.problem?.details ?? '', /host gone/);
});

onEach('close ends waits and leases', async ({ lock, name, kind }) => {
  const closing = connect(urls[kind]);
  const lease = await closing.acquire(name);
  const wait = failure(closing.acquire(name, { waitSeconds: 30 }));
  await waiting(lock, name, 1);
  await closing.close();
  const ended = await wait;
  assert.ok(ended instanceof LeaseholdError);
  assert.equal(ended.code, 'CLOSED');
  assert.equal(lease.held, false);
  assert.ok(lease.signal.aborted);
  const after = await failure(closing.acquire(name));
  assert.ok(after instanceof LeaseholdError && after.code === 'CLOSED');
  await closing.close();
  await lock.withLock(name, () => {});
});

test('redis: close closes the connection', async () => {
  const watcher = connected(redisUrl);
  await watcher.list();
  const clients = async () => Number(/connected_clients:(\d+)/.exec(await info())?.[1]);
  const before = await clients();
  const closing = Array.from({ length: 10 }, () => connect(redisUrl));
  const leases = await Promise.all(closing.map((lock) => lock.acquire(unique())));
  assert.ok((await clients()) >= before + 10);
  for (const lock of closing) await lock.close();
  await eventually(async () => (await clients()) < before + 5, 'the connections are closed');
  assert.ok(leases.every((lease) => !lease.held));
});

test('options that make no sense are refused, with the option named', async () => {
  const lock = connected(urls.memory);
  const refused: [() => Promise<unknown>, RegExp][] = [
    [() => lock.acquire(''), /name/],
    [() => lock.acquire(unique(), { ttlSeconds: NaN }), /ttlSeconds/],
    [() => lock.acquire(unique(), { ttlSeconds: -1 }), /ttlSeconds/],
    [() => lock.acquire(unique(), { ttlSeconds: 1e9 }), /ttl/],
    [() => lock.acquire(unique(), { waitSeconds: NaN }), /waitSeconds/],
    [() => lock.acquire(unique(), { maxHoldSeconds: 0 }), /max_hold/],
    [() => lock.acquire(unique(), { maxWaiters: 1.5 }), /maxWaiters/],
    [() => lock.acquire(unique(), { note: 'two\nlines' }), /note/],
    [() => lock.acquire(unique(), { holder: '' }), /holder/],
    [() => lock.acquire(unique(), { mode: 'chared' as 'shared' }), /mode/],
    [() => lock.acquire(unique(), { waitSeconds: '5' as unknown as number }), /waitSeconds|number/i],
    [() => lock.acquirePermit(unique(), { limit: 0 }), /limit|permits/],
    [() => lock.acquirePermit(unique(), { limit: -1 }), /limit/],
    [() => lock.acquireAll([]), /name/],
    [() => lock.list({ name: 'a', prefix: 'b' }), /prefix/],
    [() => lock.history({ since: new Date(NaN) }), /since/],
    [() => lock.evict('name', 1.5, 'why'), /fence/],
    [() => connected('').acquire('name'), /scheme/],
    [() => connected('nonsense://host').acquire('name'), /nonsense/],
    [() => connected('redis://127.0.0.1:1/?nonsense=1').acquire('name'), /nonsense/],
  ];
  for (const [call, words] of refused) {
    const error = await failure(call());
    assert.ok(error instanceof LeaseholdError, String(error));
    assert.equal(error.code, 'CONFIG', error.message);
    assert.match(error.message, words);
    assert.equal(error.retryable, false);
  }
  assert.throws(() => connect('memory:', { holder: '' }), { code: 'CONFIG' });
});

test('null means the default, as undefined does', async () => {
  // TypeScript refuses it; programs without types pass it.
  const given = (...options: string[]) => Object.fromEntries(options.map((option) => [option, null])) as object;
  const lock = connect(urls.memory, given('namespace', 'holder', 'connectSeconds'));
  const name = unique();
  const numbers = given('waitSeconds', 'ttlSeconds', 'maxHoldSeconds', 'maxWaiters');
  const options = { ...numbers, ...given('autoRenew', 'onLost', 'signal', 'holder', 'note', 'metadata', 'mode') };
  const lease = await lock.acquire(name, options);
  assert.ok(lease.remainingMs > 20_000 && lease.remainingMs <= 30_000, `${lease.remainingMs}`);
  const next = connected(urls.memory).acquire(name, options);
  await waiting(lock, name, 1);
  assert.equal((await lock.list({ ...given('prefix', 'limit', 'after'), name })).leases.length, 2);
  await lease.release();
  await (await next).release();
  await lock.withPermit(unique(), { ...given('permits'), limit: 1 }, () => {});
  assert.equal((await lock.history({ ...given('prefix', 'limit', 'failures', 'since', 'until'), name })).length, 2);
  await lock.close();
});

test('connect opens nothing, and the next call connects again', async () => {
  const lock = connected('redis://127.0.0.1:1');
  for (let i = 0; i < 2; i++) {
    const error = await failure(lock.acquire('name'));
    assert.ok(error instanceof LeaseholdError);
    assert.equal(error.code, 'BACKEND_UNAVAILABLE');
    assert.ok(error.retryable);
  }
});

/** What Redis says of its clients. */
async function info(): Promise<string> {
  const { hostname, port } = new URL(redisUrl);
  const socket = dial(Number(port), hostname);
  socket.end('INFO clients\r\n');
  let text = '';
  for await (const part of socket) text += part;
  return text;
}
