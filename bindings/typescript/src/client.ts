// Leasehold: one connection to a backend, and what can be locked on it.

import { Calls, type Reply } from './calls.js';
import { LeaseholdError, type LossReason } from './errors.js';
import { Lease, Leases } from './lease.js';
import type { NativeConnectOptions, NativeFilter } from './native.js';
import {
  type AllOptions,
  type AnyOptions,
  type ElectionOptions,
  type ModeOption,
  extraOptions,
  number,
  type PermitOptions,
  type RequestOptions,
  type TryOptions,
  type WaitOptions,
  wholeNumber,
} from './options.js';
import {
  type EndedLease,
  type Leader,
  type LeaseRecord,
  type LockEvent,
  type LockInfo,
  type LockSnapshot,
  type LeasePage,
  parseEvent,
  parseHistory,
  parseLeader,
  parsePage,
} from './records.js';

export interface ConnectOptions {
  /** Separates applications on one backend: `LEASEHOLD_NAMESPACE`, or `default`. */
  namespace?: string | undefined;
  /** The name under which others see this process; `user@host:pid:random` by default. */
  holder?: string | undefined;
  /** How long connecting may take; 3 by default. */
  connectSeconds?: number | undefined;
}

/** Chooses by name: one, or all that begin with a prefix. */
export interface NameFilter {
  name?: string | undefined;
  prefix?: string | undefined;
  limit?: number | undefined;
}

export interface ListFilter extends NameFilter {
  /** `next` of the page before. */
  after?: string | undefined;
}

export interface HistoryFilter extends NameFilter {
  /** Only what went wrong. */
  failures?: boolean | undefined;
  since?: Date | undefined;
  until?: Date | undefined;
}

/** What runs under a lock. */
export type Work<L, T> = (lease: L) => T | PromiseLike<T>;

/**
 * Prepares a connection, which opens on first use.
 *
 * Without a URL, `LEASEHOLD_URL` names the backend, and `file:` is the default: locks on this machine. Connect once in a
 * program and share the result; each worker thread makes its own.
 */
export function connect(url?: string, options: ConnectOptions = {}): Leasehold {
  return new Leasehold(url ?? process.env.LEASEHOLD_URL ?? 'file:', options);
}

/** One connection to a backend. */
export class Leasehold implements AsyncDisposable {
  readonly #calls: Calls;

  /** @internal */
  constructor(url: string, options: ConnectOptions) {
    const namespace = options.namespace ?? process.env.LEASEHOLD_NAMESPACE;
    this.#calls = new Calls(url, onlyGiven<NativeConnectOptions>({ ...options, namespace }));
  }

  /**
   * Runs `work` under the lock and returns its value.
   *
   * If the lock is lost, `lease.signal` aborts; the call still waits until `work` settles, and then rejects with
   * `LockLostError`, whose `cause` is the error of `work`. Otherwise an error of `work` is passed on, and recorded in
   * the lock's history.
   */
  async withLock<T>(name: string, work: Work<Lease, T>, options: WaitOptions = {}): Promise<T> {
    return (await this.#acquire('exclusive', name, options)).run(work);
  }

  /** Runs `work` if the lock is free and nobody waits for it; `null` otherwise. */
  async tryWithLock<T>(name: string, work: Work<Lease, T>, options: TryOptions = {}): Promise<{ value: T } | null> {
    const lease = await this.#tryAcquire('exclusive', name, options);
    return lease && { value: await lease.run(work) };
  }

  /** Runs `work` beside other readers, and no writer. */
  async withRead<T>(name: string, work: Work<Lease, T>, options: WaitOptions = {}): Promise<T> {
    return (await this.#acquire('shared', name, options)).run(work);
  }

  /** Runs `work` alone. This is the same lock as `withLock` of that name. */
  async withWrite<T>(name: string, work: Work<Lease, T>, options: WaitOptions = {}): Promise<T> {
    return (await this.#acquire('exclusive', name, options)).run(work);
  }

  /** Runs `work` with one of `limit` permits, or several. */
  async withPermit<T>(name: string, options: WaitOptions & PermitOptions, work: Work<Lease, T>): Promise<T> {
    return (await this.#acquire('permit', name, options)).run(work);
  }

  /** Runs `work` under all these locks. They are taken in the order of their names, so nobody deadlocks. */
  async withAll<T>(names: Iterable<string>, work: Work<Leases, T>, options: AllOptions = {}): Promise<T> {
    return (await this.acquireAll(names, options)).run(work);
  }

  /**
   * Runs `work` under the lock, as `navigator.locks.request` does: it waits without limit, unless `signal` aborts. With
   * `ifAvailable` it does not wait, and `work` gets `null` if the lock is busy.
   */
  request<T>(name: string, work: Work<Lease, T>): Promise<T>;
  request<T>(name: string, options: RequestOptions & { ifAvailable?: false | undefined }, work: Work<Lease, T>): Promise<T>;
  request<T>(name: string, options: RequestOptions, work: Work<Lease | null, T>): Promise<T>;
  async request<T>(name: string, ...given: [Work<never, T>] | [RequestOptions, Work<never, T>]): Promise<T> {
    const options = given.length === 1 ? {} : given[0];
    const work = given[given.length - 1] as Work<Lease | null, T>;
    if (!options.ifAvailable) return (await this.acquire(name, { ...options, waitSeconds: Infinity })).run(work);
    const lease = await this.tryAcquire(name, options);
    return lease ? lease.run(work) : work(null);
  }

  /** Waits for the lock. `await using` gives it back at the end of the block. */
  acquire(name: string, options: WaitOptions & ModeOption = {}): Promise<Lease> {
    return this.#acquire(options.mode ?? 'exclusive', name, options);
  }

  /** Takes the lock if it is free and nobody waits for it; `null` otherwise, which `await using` accepts. */
  tryAcquire(name: string, options: TryOptions & ModeOption = {}): Promise<Lease | null> {
    return this.#tryAcquire(options.mode ?? 'exclusive', name, options);
  }

  /** Waits for one of `limit` permits, or several. */
  acquirePermit(name: string, options: WaitOptions & PermitOptions): Promise<Lease> {
    return this.#acquire('permit', name, options);
  }

  /** Takes a permit if one is free; `null` otherwise. */
  tryAcquirePermit(name: string, options: TryOptions & PermitOptions): Promise<Lease | null> {
    return this.#tryAcquire('permit', name, options);
  }

  /** Waits for all these locks, which are taken in the order of their names. */
  async acquireAll(names: Iterable<string>, options: AllOptions = {}): Promise<Leases> {
    return this.#leases(await this.#request('all', '', false, options, [...names]), options);
  }

  /** Takes all these locks if all are free; `null` otherwise. */
  async tryAcquireAll(names: Iterable<string>, options: Omit<TryOptions, 'autoRenew'> = {}): Promise<Leases | null> {
    const reply = await this.#request('all', '', true, options, [...names]);
    return reply.json === undefined ? null : this.#leases(reply, options);
  }

  /**
   * Campaigns for ever: each time this process becomes the leader, the loop gets a term. `term.signal` aborts when the
   * leadership is lost; the end of the loop's body resigns, and leaving the loop withdraws.
   *
   * While the backend is away, the candidate waits for it. The ttl is 10 s by default.
   */
  async *election(name: string, options: ElectionOptions = {}): AsyncGenerator<Lease, void, undefined> {
    for (;;) {
      const term = await this.#acquire('leader', name, { ...options, waitSeconds: Infinity });
      try {
        yield term;
      } finally {
        // The term may be lost, or its release unanswered, in which case the library tries again: either way it is over.
        await term.release().catch(() => {});
      }
    }
  }

  /** Returns the leader of an election; `null` if nobody leads. */
  async leader(name: string): Promise<Leader | null> {
    const { json } = await this.#calls.call((id) => this.#calls.native.leader(id, name));
    return json === undefined ? null : parseLeader(json);
  }

  /** Returns all locks that are held or waited for, by anyone, in the shape of the Web Locks API. */
  async query(): Promise<LockSnapshot> {
    const snapshot: LockSnapshot = { held: [], pending: [] };
    for (let after: string | null | undefined; after !== null; ) {
      const page: LeasePage = await this.list({ after });
      for (const lease of page.leases) snapshot[lease.state === 'holding' ? 'held' : 'pending'].push(lockInfo(lease));
      after = page.next;
    }
    return snapshot;
  }

  /** Lists leases and waiters, of everyone. */
  async list(filter: ListFilter = {}): Promise<LeasePage> {
    const { json } = await this.#calls.call((id) => this.#calls.native.list(id, nativeFilter(filter)));
    return parsePage(json ?? '');
  }

  /** Returns ended leases, newest first. */
  async history(filter: HistoryFilter = {}): Promise<EndedLease[]> {
    const { json } = await this.#calls.call((id) => this.#calls.native.history(id, nativeFilter(filter)));
    return parseHistory(json ?? '');
  }

  /** Watches what happens from now on, whoever does it. Begins to watch before it resolves. */
  async watch(filter: { name?: string; prefix?: string; signal?: AbortSignal } = {}): Promise<AsyncGenerator<LockEvent, void, undefined>> {
    const { signal, ...names } = filter;
    const { id: watch } = await this.#calls.call((id) => this.#calls.native.watch(id, nativeFilter(names)), signal);
    return this.#events(watch, signal);
  }

  async *#events(watch: number, signal: AbortSignal | undefined): AsyncGenerator<LockEvent, void, undefined> {
    const { native } = this.#calls;
    try {
      for (;;) {
        const { json } = await this.#calls.call((id) => native.nextEvent(id, watch), signal);
        if (json === undefined) return;
        yield parseEvent(json);
      }
    } finally {
      native.unwatch(watch);
    }
  }

  /**
   * Takes the lease with this fence away from its holder, who is notified. Returns whether it held the lock.
   * Stores that check fences refuse what the holder writes until it notices.
   */
  async evict(name: string, fence: number, reason: string): Promise<boolean> {
    const { json } = await this.#calls.call((id) => this.#calls.native.evict(id, name, fence, reason));
    return json === 'true';
  }

  /** Ends every wait, releases every lease, and completes when nothing is left to do. */
  async close(): Promise<void> {
    await this.#calls.call((id) => this.#calls.native.close(id));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #acquire(mode: string, name: string, options: AnyOptions): Promise<Lease> {
    const { id, fence, loss } = await this.#request(mode, name, false, options);
    return new Lease(name, fence ?? 0, this.#calls, id, loss as LossReason | undefined, options);
  }

  async #tryAcquire(mode: string, name: string, options: AnyOptions): Promise<Lease | null> {
    const { id, fence, loss } = await this.#request(mode, name, true, options);
    if (fence === undefined) return null;
    return new Lease(name, fence, this.#calls, id, loss as LossReason | undefined, options);
  }

  #leases({ id, json, loss }: Reply, options: AnyOptions): Leases {
    const fences = new Map<string, number>(JSON.parse(json ?? '[]'));
    return new Leases(fences, this.#calls, id, loss as LossReason | undefined, options);
  }

  #request(mode: string, name: string, onlyTry: boolean, options: AnyOptions, names?: string[]): Promise<Reply> {
    const wait = number('waitSeconds', options.waitSeconds);
    const ttl = number('ttlSeconds', options.ttlSeconds);
    const [{ native }, extra] = [this.#calls, extraOptions(options, names)];
    return this.#calls.call((id) => native.acquire(id, mode, name, onlyTry, wait, ttl, extra), options.signal);
  }
}

function lockInfo(lease: LeaseRecord): LockInfo {
  return { name: lease.name, mode: lease.mode, clientId: lease.holder };
}

function nativeFilter(filter: ListFilter & HistoryFilter): NativeFilter {
  return onlyGiven<NativeFilter>({
    ...filter,
    limit: wholeNumber('limit', filter.limit),
    since: millis('since', filter.since),
    until: millis('until', filter.until),
  });
}

function millis(option: string, date: Date | undefined): number | undefined {
  if (date && Number.isNaN(date.getTime())) throw new LeaseholdError('CONFIG', `${option} is not a valid date`);
  return date?.getTime();
}

type Undefinable<T> = { [K in keyof T]: T[K] | undefined };

function onlyGiven<T extends object>(options: Undefinable<T>): T {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value != null)) as T;
}
