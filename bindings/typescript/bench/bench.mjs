// Pairs, hand-off and waiters of leasehold beside other locks for Node on Redis, in interleaved rounds.
// `bench.mjs --seconds 0.5 --rounds 7` sets how long a round takes, and how many there are.

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect as connectSocket, createServer } from 'node:net';
import { parseArgs } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';

import Redis from 'ioredis';
import { connect } from 'leasehold';
import { Mutex } from 'redis-semaphore';
import Redlock4 from 'redlock';
import Redlock5 from 'redlock-5';

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '0.5' },
    rounds: { type: 'string', default: '7' },
    waiters: { type: 'string' },
  },
});
const [roundMs, rounds] = [Number(values.seconds) * 1000, Number(values.rounds)];
const url = process.env.REDIS_URL;
const ttl = 10_000;

/** Each makes a client of these servers: how to acquire for ever, which returns how to release. All else is as it comes. */
const redlocks = {
  leasehold: (urls) => {
    const hosts = urls.map((url) => new URL(url).host).join(',');
    // As with the others, a server that has just started votes at once.
    const lock = connect(urls.length === 1 ? urls[0] : `redlock://${hosts}?longest_ttl=0`);
    return {
      acquire: async (name) => {
        const lease = await lock.acquire(name, { ttlSeconds: ttl / 1000, waitSeconds: Infinity });
        return () => lease.release();
      },
      close: () => lock.close(),
    };
  },
  'redlock 5 beta': (urls) => redlock(urls, (clients) => new (Redlock5.default ?? Redlock5)(clients, { retryCount: -1 })),
  'redlock 4': (urls) => redlock(urls, (clients) => new Redlock4(clients, { retryCount: -1 })),
};
const locks = {
  ...redlocks,
  'redis-semaphore': ([url]) => {
    const redis = new Redis(url);
    return {
      acquire: async (name) => {
        const mutex = new Mutex(redis, name, { lockTimeout: ttl, acquireTimeout: Infinity });
        await mutex.acquire();
        return () => mutex.release();
      },
      close: () => redis.disconnect(),
    };
  },
};

/** The floor of a pair that waits for the server twice: two bare commands on a socket, without a client library. */
const floor = {
  'bare commands': ([url]) => {
    const socket = connectSocket(Number(new URL(url).port), '127.0.0.1').setNoDelay();
    const callers = [];
    // Every answer is one line.
    socket.on('data', (data) => {
      for (const byte of data) if (byte === 10) callers.shift()();
    });
    const send = (...words) => {
      const command = words.map((word) => `$${word.length}\r\n${word}\r\n`).join('');
      return new Promise((resolve) => {
        callers.push(resolve);
        socket.write(`*${words.length}\r\n${command}`);
      });
    };
    const free = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
    return {
      acquire: async (name) => {
        await send('SET', name, 'token', 'NX', 'PX', `${ttl}`);
        return () => send('EVAL', free, '1', name, 'token');
      },
      close: () => socket.destroy(),
    };
  },
};

function redlock(urls, make) {
  const clients = urls.map((url) => new Redis(url));
  const lock = make(clients);
  lock.on('error', () => {});
  return {
    acquire: async (name) => {
      const held = await (lock.acquire ? lock.acquire([name], ttl) : lock.lock(name, ttl));
      return () => (held.release ? held.release() : held.unlock());
    },
    close: () => clients.forEach((client) => client.disconnect()),
  };
}

/** Starts servers of their own; returns their URLs. */
async function servers(count) {
  const started = [];
  for (let at = 0; at < count; at++) {
    const free = createServer().listen(0, '127.0.0.1');
    await once(free, 'listening');
    const { port } = free.address();
    await new Promise((resolve) => free.close(resolve));
    const server = spawn('redis-server', ['--port', port, '--bind', '127.0.0.1', '--save', ''], { stdio: 'ignore' });
    process.on('exit', () => server.kill('SIGKILL'));
    started.push(`redis://127.0.0.1:${port}`);
  }
  // Clients try again until theirs answers.
  for (const url of started) {
    const redis = new Redis(url);
    redis.on('error', () => {});
    await redis.ping();
    redis.disconnect();
  }
  return started;
}

const median = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

/** Rounds take turns, so that what else the machine does hits all alike. A ratio is the median of those of each round. */
async function compare(title, unit, contenders, measure, isBetter) {
  const names = Object.keys(contenders);
  const figures = Object.fromEntries(names.map((name) => [name, []]));
  for (let round = 0; round < rounds; round++) {
    for (const name of names) figures[name].push(await measure(contenders[name], `${name}:${round}`));
  }
  console.log(`\n${title}`);
  for (const name of names) {
    const middle = median(figures[name]);
    const ratios = figures[name].map((theirs, round) => {
      const ours = figures.leasehold[round];
      return isBetter === 'more' ? ours / theirs : theirs / ours;
    });
    const figure = `${middle.toFixed(middle < 10 ? 2 : 0).padStart(8)} ${unit}`;
    console.log(`  ${name.padEnd(16)} ${figure}   leasehold is ${median(ratios).toFixed(2)} times as good`);
  }
}

/** Pairs of acquire and release per second, by this many tasks that each have a name. */
const pairs = (tasks, urls) => async (make, name) => {
  const client = make(urls);
  await (await client.acquire(`warm:${name}`))();
  let count = 0;
  const start = performance.now();
  await Promise.all(
    Array.from({ length: tasks }, async (_, task) => {
      while (performance.now() - start < roundMs) {
        await (await client.acquire(`${name}:${task}`))();
        count++;
      }
    }),
  );
  const seconds = (performance.now() - start) / 1000;
  await client.close();
  return count / seconds;
};

/** Milliseconds from the release by one client until another, which waits, has the lock. */
async function handOff(make, name) {
  const clients = [make([url]), make([url])];
  const times = [];
  let release = await clients[0].acquire(name);
  for (let turn = 1; turn <= 5; turn++) {
    const next = clients[turn % 2].acquire(name).then((release) => [release, performance.now()]);
    // Whoever polls does so at no particular time.
    await sleep(20 + Math.random() * 30);
    const start = performance.now();
    await release();
    const [taken, at] = await next;
    times.push(at - start);
    release = taken;
  }
  await release();
  for (const client of clients) await client.close();
  return median(times);
}

/** What a thousand waiters of one process cost: its CPU in percent of a core, and commands per second at the server. */
async function waiters(make, name) {
  const [holder, client, admin] = [make([url]), make([url]), new Redis(url)];
  await holder.acquire(name);
  for (let i = 0; i < 1000; i++) client.acquire(name).catch(() => {});
  await sleep(1500);
  const commands = async () => Number(/total_commands_processed:(\d+)/.exec(await admin.info('stats'))[1]);
  const [before, cpu] = [await commands(), process.cpuUsage()];
  await sleep(3000);
  const { user, system } = process.cpuUsage(cpu);
  return [(user + system) / 30_000, ((await commands()) - before - 1) / 3];
}

if (values.waiters) {
  const [cpu, commands] = await waiters(locks[values.waiters], `waiters:${values.waiters}`);
  console.log(`  ${values.waiters.padEnd(16)} ${cpu.toFixed(1).padStart(8)} % of a core ${commands.toFixed(0).padStart(8)} commands/s`);
  process.exit(0);
}

for (const [tasks, of] of [[1, 'one task'], [64, '64 tasks with a name each']]) {
  await compare(`uncontended pairs, ${of}`, 'pairs/s', { ...locks, ...floor }, pairs(tasks, [url]), 'more');
}
const five = await servers(5);
for (const [tasks, of] of [[1, 'one task'], [64, '64 tasks with a name each']]) {
  await compare(`uncontended pairs over five servers, ${of}`, 'pairs/s', redlocks, pairs(tasks, five), 'more');
}
await compare('hand-off to a waiter of another client', 'ms', locks, handOff, 'less');
console.log('\na thousand waiters of one process');
// Those who poll for ever cannot be told to stop, so each has a process of its own.
for (const name of Object.keys(locks)) {
  execFileSync(process.execPath, [process.argv[1], '--waiters', name], { stdio: 'inherit' });
}
process.exit(0);
