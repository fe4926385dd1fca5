// The options of each call, and the request that they make. `null`, which programs without types pass, means the default.

import { LeaseholdError } from './errors.js';
import type { ExtraOptions } from './native.js';

/** Options of every call that acquires. */
export interface TryOptions {
  /** How long the lease lives without a renewal; 30 by default. It is renewed by itself for as long as it is held. */
  ttlSeconds?: number | undefined;
  /**
   * `false`: the lease ends with its ttl unless `lease.renew` extends it. It outlives this process and does not keep it
   * alive; `lease.handle` lets another process go on with it. For one lock or permit, not for several locks at once.
   */
  autoRenew?: boolean | undefined;
  /**
   * `abort`, the default: a loss aborts `lease.signal`, and the call rejects with `LockLostError`. `ignore`, for work that
   * may run twice: a loss aborts nothing and rejects nothing; only `lease.held` and `lease.check()` tell.
   */
  onLost?: 'abort' | 'ignore' | undefined;
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

/** Options of several locks at once. */
export type AllOptions = Omit<WaitOptions, 'autoRenew'>;

export interface ModeOption {
  /** `shared` for many readers at a time; `exclusive` by default. */
  mode?: 'exclusive' | 'shared' | undefined;
}

/** Options of `request`, which has the shape of `navigator.locks.request`. */
export interface RequestOptions extends TryOptions, ModeOption {
  /** Do not wait: if the lock is busy, the callback gets `null`. */
  ifAvailable?: boolean | undefined;
}

export interface PermitOptions {
  /** How many may be held at once, by all. Everybody who uses the name must agree on it. */
  limit: number;
  /** How many to take; 1 by default. */
  permits?: number | undefined;
}

export interface ElectionOptions extends Omit<TryOptions, 'autoRenew' | 'onLost'> {
  /** What the leader publishes, such as its address. */
  value?: string | undefined;
}

export type AnyOptions = WaitOptions & Partial<PermitOptions> & { value?: string | undefined };

/** The options that are no arguments of their own; nothing if there are none. */
export function extraOptions(options: AnyOptions, names: string[] | undefined): ExtraOptions | undefined {
  let extra: ExtraOptions | undefined;
  const set = <K extends keyof ExtraOptions>(key: K, value: ExtraOptions[K] | undefined) => {
    if (value != null) (extra ??= {})[key] = value;
  };
  set('names', names);
  set('maxHoldSeconds', options.maxHoldSeconds);
  set('maxWaiters', wholeNumber('maxWaiters', options.maxWaiters));
  set('autoRenew', options.autoRenew);
  set('limit', wholeNumber('limit', options.limit));
  set('permits', wholeNumber('permits', options.permits));
  set('holder', options.holder);
  set('note', options.note);
  set('metadata', options.metadata && JSON.stringify(options.metadata));
  set('value', options.value);
  return extra;
}

/** The native part would not name the option. */
export function number(option: string, value: number | undefined): number | undefined {
  if (value == null || typeof value === 'number') return value ?? undefined;
  throw new LeaseholdError('CONFIG', `${option} is a number, not ${JSON.stringify(value)}`);
}

/** The native part would cut off a fraction. */
export function wholeNumber(option: string, value: number | undefined): number | undefined {
  if (value == null || (Number.isInteger(value) && value >= 0 && value < 2 ** 32)) return value ?? undefined;
  throw new LeaseholdError('CONFIG', `${option} is a whole number, not ${value}`);
}
