// A worker thread: counts under the lock, or holds it until it is terminated.

import { parentPort, workerData } from 'node:worker_threads';

import { connect } from 'leasehold';

const { url, name, cell, rounds } = workerData as { url: string; name: string; cell: SharedArrayBuffer; rounds: number };
const lock = connect(url);
const counter = new Int32Array(cell);
for (let round = 0; round < rounds; round++) {
  await lock.withLock(
    name,
    async () => {
      const seen = counter[0] ?? 0;
      await new Promise(setImmediate);
      counter[0] = seen + 1;
    },
    { waitSeconds: 60 },
  );
}
if (rounds === 0) {
  const lease = await lock.acquire(name);
  parentPort?.postMessage(lease.fence);
}
