// The recipes do what they say, and the documents show them as they are.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { type AddressInfo } from 'node:net';
import { after, test } from 'node:test';

import { createClient } from '@supabase/supabase-js';
import pg from 'pg';

import { connected, eventually, postgresUrl, redisUrl, unique } from './backends.js';

process.env.LEASEHOLD_URL = redisUrl;
process.env.CRON_SECRET = 'secret';
process.env.MIN_HOLD_MS = '100';
const { app } = await import('../recipes/express.js');
const { GET } = await import('../recipes/next-cron-route.js');
const { nightlyReport, task } = await import('../recipes/node-cron.js');
const { runAsLeader } = await import('../recipes/leader.js');
const { withSupabaseLock } = await import('../recipes/supabase.js');

// Also if the test of the schedule does not run: a schedule keeps its process alive.
after(() => task.destroy());

test('express: one import at a time, and a second request is told who is at it', async () => {
  const server = app.listen(0, '127.0.0.1');
  try {
    await new Promise((resolve) => server.once('listening', resolve));
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/accounts/${process.pid}/import`;
    const first = await fetch(url, { method: 'POST' });
    assert.deepEqual([first.status, await first.json()], [200, { rows: String(process.pid).length + 1 }]);

    const lock = connected(redisUrl);
    await using lease = await lock.acquire(`import:${process.pid}`, { holder: 'the other one' });
    const busy = await fetch(url, { method: 'POST' });
    assert.deepEqual([busy.status, await busy.json()], [409, { heldBy: ['the other one'] }]);

    const stop = new AbortController();
    const left = fetch(url, { method: 'POST', signal: stop.signal }).catch(() => 'left');
    const queue = async () => (await lock.list({ name: lease.name })).leases.length;
    await eventually(async () => (await queue()) === 2, 'the request waits');
    stop.abort();
    assert.equal(await left, 'left');
    await eventually(async () => (await queue()) === 1, 'who went away waits no longer');
  } finally {
    server.close();
  }
});

test('next: a cron route runs once, and only for the scheduler', async () => {
  const url = 'http://localhost/api/cron/digest';
  const headers = { authorization: 'Bearer secret' };
  assert.equal((await GET(new Request(url))).status, 401);
  assert.deepEqual(await (await GET(new Request(url, { headers }))).json(), { sent: 3 });
  await using _ = await connected(redisUrl).acquire('cron:digest');
  assert.deepEqual(await (await GET(new Request(url, { headers }))).json(), { skipped: 'another instance is at it' });
});

test('node-cron: of two hosts one runs the job', async () => {
  const results = await Promise.all([nightlyReport(), nightlyReport()]);
  assert.deepEqual(results.sort(), ['done', 'skipped']);
  const [run] = await connected(redisUrl).history({ name: 'cron:nightly-report', limit: 1 });
  assert.equal(run?.ending, 'released');
});

test('a leader leads until it is stopped', async () => {
  const stop = new AbortController();
  let fence = 0;
  await runAsLeader(async (term) => {
    fence = term.fence;
    setTimeout(() => stop.abort(), 50);
    await new Promise((resolve) => term.signal.addEventListener('abort', resolve));
  }, stop.signal);
  assert.ok(fence > 0);
  assert.equal(await connected(redisUrl).leader('scheduler'), null);
});

test('supabase: rpc contends on the same lock', async () => {
  const database = new pg.Pool({ connectionString: postgresUrl });
  const rpc = createServer(async (request, response) => {
    let body = '';
    for await (const text of request) body += text;
    const name = /^\/rest\/v1\/rpc\/([a-z_]+)$/.exec(request.url ?? '')?.[1];
    const args = Object.entries(JSON.parse(body) as Record<string, unknown>);
    const list = args.map(([key], place) => `${key} => $${place + 1}`).join(', ');
    try {
      const { rows } = await database.query(`select public.${name}(${list}) as answer`, args.map(([, value]) => value));
      response.setHeader('content-type', 'application/json').end(JSON.stringify(rows[0].answer));
    } catch (error) {
      response.writeHead(400, { 'content-type': 'application/json' }).end(JSON.stringify({ message: String(error) }));
    }
  }).listen(0, '127.0.0.1');
  try {
    await new Promise((resolve) => rpc.once('listening', resolve));
    // Node 20 has no WebSocket; rpc does not need one.
    const realtime = { transport: class {} as never };
    const supabase = createClient(`http://127.0.0.1:${(rpc.address() as AddressInfo).port}`, 'a key', { realtime });
    const lock = connected(postgresUrl);
    const name = unique();
    const ran = await withSupabaseLock(supabase, name, 30, async () => {
      assert.equal(await lock.tryAcquire(name), null);
      const { leases } = await lock.list({ name });
      assert.match(leases[0]?.holder ?? '', /^edge:/);
      return 'done';
    });
    assert.deepEqual(ran, { value: 'done' });
    await lock.withLock(name, async () => {
      assert.equal(await withSupabaseLock(supabase, name, 30, async () => 'not run'), null);
    });
  } finally {
    rpc.close();
    rpc.closeAllConnections();
    await database.end();
  }
});

test('docs/typescript.md shows each recipe as it is', () => {
  const page = readFileSync('typescript.md', 'utf8');
  for (const recipe of readdirSync('recipes')) {
    const source = readFileSync(`recipes/${recipe}`, 'utf8').trim();
    assert.ok(page.includes('```ts\n' + source + '\n```'), `${recipe} is not in docs/typescript.md, or not the same`);
  }
});
