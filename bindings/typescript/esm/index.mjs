// The same module as for `require`, so that a program has one copy of each class.
export {
  BackendUnavailableError,
  connect,
  LeaseholdError,
  LockBusyError,
  LockLostError,
} from '../dist/index.js';
