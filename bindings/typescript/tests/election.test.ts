// Elections as loops.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { connected, eventually, failure, onEach, redisUrl, unique, waiting } from './backends.js';
import { Proxy } from './proxy.js';

onEach('one leads, the next takes over, and leaving the loop resigns', async ({ lock, other, name }) => {
  const stop = new AbortController();
  const terms: number[] = [];
  let second: Promise<void> | undefined;
  for await (const term of lock.election(name, { value: '10.0.0.5:80', holder: 'first' })) {
    terms.push(term.fence);
    const leader = await other.leader(name);
    assert.equal(leader?.holder, 'first');
    assert.equal(leader?.value, '10.0.0.5:80');
    assert.equal(leader?.fence, term.fence);
    assert.ok(leader?.since instanceof Date);
    second = (async () => {
      for await (const term of other.election(name, { signal: stop.signal })) {
        terms.push(term.fence);
        break;
      }
    })();
    await waiting(lock, name, 1);
    break;
  }
  await second;
  assert.equal(terms.length, 2);
  assert.ok((terms[1] ?? 0) > (terms[0] ?? 0));
  assert.equal(await lock.leader(name), null);
});

onEach('a term that is lost aborts, and the next term is a new one', async ({ lock, other, name }) => {
  const fences: number[] = [];
  for await (const term of lock.election(name)) {
    fences.push(term.fence);
    if (fences.length === 2) break;
    const lost = new Promise((resolve) => term.signal.addEventListener('abort', resolve));
    await other.evict(name, term.fence, 'test');
    await lost;
    assert.equal(term.held, false);
  }
  assert.equal(fences.length, 2);
  assert.notEqual(fences[0], fences[1]);
});

onEach('a signal ends a candidacy, and leaves no place in the queue', async ({ lock, other, name }) => {
  const stop = new AbortController();
  const reason = new Error('shutting down');
  for await (const _ of lock.election(name)) {
    const candidate = failure(other.election(name, { signal: stop.signal }).next());
    await waiting(lock, name, 1);
    stop.abort(reason);
    assert.equal(await candidate, reason);
    await waiting(lock, name, 0);
    break;
  }
});

test('redis: a candidate campaigns again after an outage; one that cannot connect fails', async () => {
  await using proxy = await Proxy.to(redisUrl);
  const name = unique();
  let terms = 0;
  for await (const term of connected(proxy.url).election(name, { ttlSeconds: 2 })) {
    if (++terms === 2) break;
    proxy.cut();
    await eventually(() => !term.held, 'the loss');
    setTimeout(() => proxy.mend(), 500);
  }
  assert.equal(terms, 2);
  await assert.rejects(connected('redis://127.0.0.1:1').election(name).next(), { code: 'BACKEND_UNAVAILABLE' });
});
