// Works under locks while the way to the backend is cut again and again. Arguments: URL of Redis, number of cycles.
// Prints what came of the cycles, and what nobody handled.

import { LeaseholdError, LockLostError, connect } from 'leasehold';

import { Proxy } from '../proxy.js';

const [url, cycles] = [process.argv[2] ?? '', Number(process.argv[3])];
let unhandled = 0;
process.on('unhandledRejection', () => unhandled++);
process.on('uncaughtException', () => unhandled++);

const proxy = await Proxy.to(url);
const lock = connect(proxy.url);
let [done, lost, refused] = [0, 0, 0];
const flapping = setInterval(() => {
  proxy.cut();
  setTimeout(() => proxy.mend(), 30);
}, 150);

async function cycle(place: number): Promise<void> {
  try {
    await lock.withLock(
      `flapping:${process.pid}:${place % 50}`,
      async (lease) => {
        // Some of the work stops when the lock is lost; some leases are released in passing.
        if (place % 3 === 0) void lease.release();
        if (place % 7 === 0) await new Promise((resolve) => setTimeout(resolve, 20));
        lease.signal.throwIfAborted();
      },
      { waitSeconds: 2, ttlSeconds: 0.5 },
    );
    done++;
  } catch (error) {
    if (error instanceof LockLostError) lost++;
    else if (error instanceof LeaseholdError) refused++;
    else throw error;
  }
}

let next = 0;
await Promise.all(
  Array.from({ length: 100 }, async () => {
    while (next < cycles) await cycle(next++);
  }),
);
clearInterval(flapping);
proxy.mend();
await lock.close().catch(() => {});
await proxy[Symbol.asyncDispose]();
process.stdout.write(JSON.stringify({ done, lost, refused, unhandled }));
