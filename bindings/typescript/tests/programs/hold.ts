// Acquires and does nothing else. Arguments: URL, name, and what to do then.

import { connect } from 'leasehold';

const [url, name, then] = process.argv.slice(2) as [string, string, string];
const lock = connect(url);
const autoRenew = then !== 'detached';
const lease = await lock.acquire(name, { waitSeconds: Infinity, autoRenew });
process.stdout.write(`${autoRenew ? lease.fence : lease.handle}\n`);
if (then === 'release') await lease.release();
if (then === 'exit') process.exit(7);
if (then === 'throw') throw new Error('on purpose');
if (then === 'wait-again') await lock.acquire(name, { waitSeconds: Infinity });
