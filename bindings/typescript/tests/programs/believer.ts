// Takes a lock again and again, and records each grant: its fence, and when this process first and last believed to hold it.
// Arguments: URL, name of the lock, file for the records.

import { openSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

import { BackendUnavailableError, connect, LockLostError } from 'leasehold';

const [url, name, file] = process.argv.slice(2) as [string, string, string];
const lock = connect(url);
const log = openSync(file, 'w');
/** Nanoseconds of a clock that all processes share. */
const now = () => process.hrtime.bigint();
let end = 0;

process.stdout.write('began\n');
for (;;) {
  try {
    await lock.withLock(
      name,
      async (lease) => {
        const place = end;
        // Some of the work takes longer than the ttl, so that a fault can outlast the lease.
        const seconds = Math.random() < 0.125 ? 3 : 0.01 + Math.random() * 0.3;
        const until = now() + BigInt(Math.floor(seconds * 1e9));
        let first: bigint | undefined;
        for (;;) {
          // The last is read before the question and the first after it, so that two records overlap only if the beliefs do.
          const last = now();
          if (!lease.held) return;
          first ??= now();
          writeSync(log, new BigInt64Array([BigInt(lease.fence), first, last]), 0, 24, place);
          end = place + 24;
          // Asked once more after the end of the work: the process may have been stopped meanwhile.
          if (last >= until) return;
          await sleep(2);
        }
      },
      { ttlSeconds: 2, waitSeconds: Infinity },
    );
  } catch (error) {
    if (!(error instanceof LockLostError || error instanceof BackendUnavailableError)) throw error;
  }
}
