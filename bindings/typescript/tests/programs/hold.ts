// Acquires and does nothing else. Arguments: URL, name, and what to do then.

import { connect } from 'leasehold';

const [url, name, then] = process.argv.slice(2) as [string, string, string];
const lock = connect(url);
const lease = await lock.acquire(name, { waitSeconds: Infinity });
process.stdout.write(`${lease.fence}\n`);
if (then === 'release') await lease.release();
if (then === 'exit') process.exit(7);
if (then === 'throw') throw new Error('on purpose');
if (then === 'wait-again') await lock.acquire(name, { waitSeconds: Infinity });
