// A scheduler that runs on one host, and moves to another when that one fails.

import { connect, type Lease } from 'leasehold';

const lock = connect();

export async function runAsLeader(schedule: (term: Lease) => Promise<void>, stop: AbortSignal): Promise<void> {
  try {
    for await (const term of lock.election('scheduler', { value: '10.0.0.5:8080', signal: stop })) {
      // `term.signal` aborts when the leadership is lost or the program stops.
      await schedule(term);
    }
  } catch (error) {
    if (!stop.aborted) throw error;
  }
}
