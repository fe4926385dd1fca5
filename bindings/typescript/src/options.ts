// The options of each call, and the request that they make.

import { LeaseholdError } from './errors.js';
import type { LockRequest } from './native.js';

/** Options of every call that acquires. */
export interface TryOptions {
  /** How long the lease lives without a renewal; 30 by default. It is renewed by itself for as long as it is held. */
  ttlSeconds?: number | undefined;
  /** The longest time to hold it, no matter how often it is renewed; then it is lost. No limit by default. */
  maxHoldSeconds?: number | undefined;
  /** Ends the wait when it aborts, and aborts `lease.signal` later. */
  signal?: AbortSignal | undefined;
  /** The name under which others see the holder; `user@host:pid:random` by default. */
  holder?: string | undefined;
  /** One line that others see. */
  note?: string | undefined;
  /** A JSON object that other programs can read. */
  metadata?: Record<string, unknown> | undefined;
}

/** Options of calls that wait. */
export interface WaitOptions extends TryOptions {
  /** How long to wait: 10 by default, 0 not at all, `Infinity` for ever. */
  waitSeconds?: number | undefined;
  /** Fails at once if more than this many wait already. */
  maxWaiters?: number | undefined;
}

export interface ModeOption {
  /** `shared` for many readers at a time; `exclusive` by default. */
  mode?: 'exclusive' | 'shared' | undefined;
}

export interface PermitOptions {
  /** How many may be held at once, by all. Everybody who uses the name must agree on it. */
  limit: number;
  /** How many to take; 1 by default. */
  permits?: number | undefined;
}

export interface ElectionOptions extends TryOptions {
  /** What the leader publishes, such as its address. */
  value?: string | undefined;
}

export type AnyOptions = WaitOptions & Partial<PermitOptions> & { value?: string | undefined };

export function lockRequest(mode: string, names: string[], onlyTry: boolean, options: AnyOptions): LockRequest {
  const request: LockRequest = { mode, names, onlyTry };
  const set = <K extends keyof LockRequest>(key: K, value: LockRequest[K] | undefined) => {
    if (value !== undefined) request[key] = value;
  };
  set('waitSeconds', options.waitSeconds);
  set('ttlSeconds', options.ttlSeconds);
  set('maxHoldSeconds', options.maxHoldSeconds);
  set('maxWaiters', wholeNumber('maxWaiters', options.maxWaiters));
  set('limit', wholeNumber('limit', options.limit));
  set('permits', wholeNumber('permits', options.permits));
  set('holder', options.holder);
  set('note', options.note);
  set('metadata', options.metadata && JSON.stringify(options.metadata));
  set('value', options.value);
  return request;
}

/** The native part would cut off a fraction. */
export function wholeNumber(option: string, value: number | undefined): number | undefined {
  if (value === undefined || (Number.isInteger(value) && value >= 0 && value < 2 ** 32)) return value;
  throw new LeaseholdError('CONFIG', `${option} is a whole number, not ${value}`);
}
