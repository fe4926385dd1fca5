// app/api/cron/digest/route.ts of a Next.js application: the scheduler calls every instance, or calls twice; one runs.

import { connect } from 'leasehold';

export const runtime = 'nodejs';
const lock = connect();

export async function GET(request: Request): Promise<Response> {
  if (request.headers.get('authorization') !== `Bearer ${process.env.CRON_SECRET}`) {
    return new Response('unauthorized', { status: 401 });
  }
  const ran = await lock.tryWithLock('cron:digest', (lease) => sendDigest(lease.signal), { maxHoldSeconds: 300 });
  return Response.json(ran ? { sent: ran.value } : { skipped: 'another instance is at it' });
}

/** Your work. */
async function sendDigest(signal: AbortSignal): Promise<number> {
  signal.throwIfAborted();
  return 3;
}
