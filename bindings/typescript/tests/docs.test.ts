// The examples of the documents run.

import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { createServer } from 'node:http';
import { type AddressInfo } from 'node:net';
import { after, test } from 'node:test';

import { connected, redisUrl } from './backends.js';

process.env.LEASEHOLD_URL = redisUrl;
const server = createServer((_, response) => response.end('rows')).listen(0, '127.0.0.1');
await new Promise((resolve) => server.once('listening', resolve));
after(() => server.close());

let calls = 0;
const called = async () => void calls++;
Object.assign(globalThis, {
  lock: connected(redisUrl),
  url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
  rows: ['a row'],
  request: { signal: new AbortController().signal },
  buildReport: called,
  sendMail: called,
  runScheduler: called,
  work: called,
  save: async (rows: string[], { fence }: { fence: number }) => {
    assert.ok(fence > 0);
    calls++;
    return rows.length;
  },
});

const snippets = readdirSync('out/snippets').sort();
assert.ok(snippets.length > 5);
for (const snippet of snippets) {
  test(snippet, async () => {
    const before = calls;
    await import(`../snippets/${snippet}`);
    assert.ok(calls > before, 'it does some work');
  });
}
