// The package by `require`.

import assert = require('node:assert/strict');
import { test } from 'node:test';

import leasehold = require('leasehold');

test('require and import give the same classes', async () => {
  const imported = await import('leasehold');
  assert.equal(imported.LockLostError, leasehold.LockLostError);
  assert.equal(imported.connect, leasehold.connect);
  assert.deepEqual(Object.keys(imported).filter((name) => name !== 'default').sort(), Object.keys(leasehold).sort());
});

test('require gives a lock that works', async () => {
  const lock = leasehold.connect('memory:cjs');
  assert.equal(await lock.withLock('name', (lease: leasehold.Lease) => lease.held), true);
});
