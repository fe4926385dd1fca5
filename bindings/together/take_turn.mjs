// Takes the lock once, when its turn has come.

import { connect } from 'leasehold';

await connect().withLock('singleton:printer', () => {}, { note: 'typescript', waitSeconds: Infinity });
