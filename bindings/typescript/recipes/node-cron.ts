// A job of node-cron on every host, run by whichever host is first.

import { connect } from 'leasehold';
import cron from 'node-cron';

const lock = connect();

export const task = cron.schedule('0 3 * * *', nightlyReport);

export async function nightlyReport(): Promise<string> {
  const ran = await lock.tryWithLock('cron:nightly-report', async (lease) => {
    await writeReport(lease.fence);
    // Longer than the clocks of the hosts differ, so that none starts after this one is done.
    await new Promise((resolve) => setTimeout(resolve, Number(process.env.MIN_HOLD_MS ?? 45_000)));
  });
  return ran ? 'done' : 'skipped';
}

/** Your work. */
async function writeReport(fence: number): Promise<void> {
  if (fence <= 0) throw new Error('a fence is positive');
}
