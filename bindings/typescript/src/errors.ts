// Errors: one class for each thing that a caller decides about, and a stable code on each.

/**
 * Stable codes, for programs. `CONFIG` also says that a name is in use as another kind of lock, or with another limit;
 * `BACKEND_UNAVAILABLE` also that the backend refuses access.
 */
export type ErrorCode =
  | 'BUSY'
  | 'LOST'
  | 'BACKEND_UNAVAILABLE'
  | 'NOT_SUPPORTED'
  | 'CONFIG'
  | 'CLOSED';

/** Why a lease was lost. */
export type LossReason = 'renew_timeout' | 'evicted' | 'max_hold' | 'gone' | 'released';

/** Who holds a lock. */
export interface Holder {
  holder: string;
  mode: 'exclusive' | 'shared' | 'permit' | 'leader';
  fence: number;
  heldForMs: number;
  note: string | null;
}

/** Every error of this package. */
export class LeaseholdError extends Error {
  readonly code: ErrorCode;
  /** Whether the same call may succeed later without any change. */
  readonly retryable: boolean;

  constructor(code: ErrorCode, message: string, options?: ErrorOptions & { retryable?: boolean }) {
    super(message, options);
    this.code = code;
    this.retryable = options?.retryable ?? false;
  }

  static {
    this.prototype.name = 'LeaseholdError';
  }
}

/** The lock was not granted: at once if `waitSeconds` is 0, otherwise in that time. */
export class LockBusyError extends LeaseholdError {
  declare readonly code: 'BUSY';
  readonly holders: readonly Holder[];
  readonly waitedMs: number;

  constructor(message: string, holders: readonly Holder[], waitedMs: number) {
    super('BUSY', message, { retryable: true });
    this.holders = holders;
    this.waitedMs = waitedMs;
  }

  static {
    this.prototype.name = 'LockBusyError';
  }
}

/** The lock is no longer held. Its `cause` is the error of the callback, if that failed too. */
export class LockLostError extends LeaseholdError {
  declare readonly code: 'LOST';
  readonly reason: LossReason;

  constructor(message: string, reason: LossReason, options?: ErrorOptions) {
    super('LOST', message, options);
    this.reason = reason;
  }

  static {
    this.prototype.name = 'LockLostError';
  }
}

/** The backend cannot be reached, or did not answer. */
export class BackendUnavailableError extends LeaseholdError {
  declare readonly code: 'BACKEND_UNAVAILABLE';
  /** Whether the call may have been carried out nevertheless. */
  readonly outcomeUnknown: boolean;

  constructor(message: string, outcomeUnknown: boolean) {
    super('BACKEND_UNAVAILABLE', message, { retryable: true });
    this.outcomeUnknown = outcomeUnknown;
  }

  static {
    this.prototype.name = 'BackendUnavailableError';
  }
}

/** Makes an error of what the native part reported as JSON. */
export function errorFromReport(report: string, waitedMs: number): LeaseholdError {
  const { code, message, holders, retryable, outcomeUnknown } = JSON.parse(report) as {
    code: ErrorCode;
    message: string;
    holders: Holder[];
    retryable: boolean;
    outcomeUnknown: boolean;
  };
  switch (code) {
    case 'BUSY':
      return new LockBusyError(message, holders, waitedMs);
    case 'LOST':
      return new LockLostError(message, 'gone');
    case 'BACKEND_UNAVAILABLE':
      return new BackendUnavailableError(message, outcomeUnknown);
    default:
      return new LeaseholdError(code, message, { retryable });
  }
}

/** How a failure of the callback is recorded in the history. */
export function problemOf(error: unknown): { kind: string; details: string } {
  if (!(error instanceof Error)) return { kind: typeof error, details: String(error) };
  let details = error.message;
  for (let cause = error.cause, depth = 0; cause !== undefined && depth < 8; depth++) {
    details += `: ${cause instanceof Error ? cause.message : String(cause)}`;
    cause = cause instanceof Error ? cause.cause : undefined;
  }
  return { kind: error.name, details };
}
