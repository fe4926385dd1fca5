// The public names of the package.

/// <reference lib="esnext.disposable" preserve="true" />

export {
  connect,
  type ConnectOptions,
  type HistoryFilter,
  type Leasehold,
  type ListFilter,
  type NameFilter,
  type Work,
} from './client.js';
export {
  BackendUnavailableError,
  type ErrorCode,
  type Holder,
  LeaseholdError,
  LockBusyError,
  LockLostError,
  type LossReason,
} from './errors.js';
export type { Lease, Leases } from './lease.js';
export type { AllOptions, ElectionOptions, ModeOption, PermitOptions, RequestOptions, TryOptions, WaitOptions } from './options.js';
export type {
  EndedLease,
  Ending,
  HoldingRecord,
  Leader,
  LeaseRecord,
  LockEvent,
  LockInfo,
  LockSnapshot,
  Mode,
  LeasePage,
  WaitingRecord,
} from './records.js';
