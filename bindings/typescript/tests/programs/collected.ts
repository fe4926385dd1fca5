// Nobody refers to the client, only to what it will do: garbage collection must not take it. Prints what came of it.

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { connect } from 'leasehold';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

const other = connect('memory:collected');
const lease = await other.acquire('waited-for');
void connect('memory:collected').withLock('waited-for', () => process.stdout.write('acquired\n'));
void connect('memory:collected')
  .acquire('held')
  .then(() => {});
for (let round = 0; round < 20; round++) {
  await new Promise((resolve) => setTimeout(resolve, 5));
  collect();
}
process.stdout.write((await other.tryAcquire('held')) ? 'dropped\n' : 'held\n');
await lease.release();
setTimeout(() => process.exit(0), 300);
