// An Express handler: one import of an account at a time; a second request is told who is at it.

import { connect, LockBusyError } from 'leasehold';
import express from 'express';

const lock = connect();
export const app = express();

app.post('/accounts/:id/import', async (request, response) => {
  const gone = new AbortController();
  response.on('close', () => gone.abort());
  try {
    const rows = await lock.withLock(
      `import:${request.params.id}`,
      (lease) => importRows(request.params.id, lease.fence, lease.signal),
      { waitSeconds: 2, signal: gone.signal },
    );
    response.json({ rows });
  } catch (error) {
    if (!(error instanceof LockBusyError)) throw error;
    response.status(409).json({ heldBy: error.holders.map((holder) => holder.holder) });
  }
});

/** Your work. It stops when the signal aborts, and sends the fence with each write. */
async function importRows(account: string, fence: number, signal: AbortSignal): Promise<number> {
  signal.throwIfAborted();
  return account.length + (fence > 0 ? 1 : 0);
}
