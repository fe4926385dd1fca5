// Held leases: one, or several that are held together.

import './async-dispose.js';

import type { Calls } from './calls.js';
import { LockLostError, type LossReason, problemOf } from './errors.js';
import type { TryOptions } from './options.js';

abstract class HeldLease implements AsyncDisposable {
  readonly #calls: Calls;
  readonly #id: number;
  readonly #options: TryOptions;
  /** Made when somebody asks for the signal. */
  #controller: AbortController | undefined;
  #unlink: (() => void) | undefined;
  #loss: LossReason | null = null;
  #released: Promise<void> | null = null;

  /** @internal */
  constructor(calls: Calls, id: number, lostAlready: LossReason | undefined, options: TryOptions) {
    this.#calls = calls;
    this.#id = id;
    this.#options = options;
    calls.watch(id, (reason) => this.#onLoss(reason));
    if (options.autoRenew !== false) calls.keep(id);
    if (lostAlready) this.#onLoss(lostAlready);
  }

  /** What is locked, in words. */
  protected abstract get title(): string;

  /**
   * Aborts when the lock is lost, with a `LockLostError` as its reason, and when the `signal` among the options aborts.
   * A normal release does not abort it, nor does a loss with `onLost: 'ignore'`.
   */
  get signal(): AbortSignal {
    this.#lossNow();
    if (!this.#controller) {
      this.#controller = new AbortController();
      if (this.#reportedLoss) this.#controller.abort(this.#lostError(this.#reportedLoss));
      else this.#unlink = follow(this.#options.signal, this.#controller);
    }
    return this.#controller.signal;
  }

  /** The loss, unless the caller wants to hear of none. */
  get #reportedLoss(): LossReason | null {
    return this.#options.onLost === 'ignore' ? null : this.#loss;
  }

  /** Whether the lock is held. Computed from a deadline on each read, so it is right even if the event loop was blocked. */
  get held(): boolean {
    return this.#released === null && this.#lossNow() === null;
  }

  /** How long the lock stays valid without another renewal; `Infinity` where it lasts as long as the process. */
  get remainingMs(): number {
    return this.held ? this.#calls.native.remaining(this.#id) : 0;
  }

  /** Throws `LockLostError` if the lock is no longer held. Cheap: call it before each write. */
  check(): void {
    const loss = this.#lossNow() ?? (this.#released && 'released');
    if (loss) throw this.#lostError(loss);
  }

  /** Renews the lease for this long from now, and in later renewals. It is renewed by itself; few programs need this. */
  renew(seconds: number): Promise<void> {
    return handled(this.#renew(seconds));
  }

  /**
   * Gives the lock back. A lock that was lost or released before needs nothing.
   *
   * Later calls return the same promise. Without an `await`, a failure stays unseen, and never ends the process.
   */
  release(): Promise<void> {
    return (this.#released ??= handled(this.#release()));
  }

  /** The end of an `await using` block: releases, and throws `LockLostError` if the lock was lost meanwhile. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
    if (this.#reportedLoss) throw this.#lostError(this.#reportedLoss);
  }

  /**
   * Runs `work`, waits until it settles, even after a loss, and releases.
   * @internal
   */
  async run<L, T>(this: L & HeldLease, work: (lease: L) => T | PromiseLike<T>): Promise<T> {
    let value: T;
    try {
      value = await work(this);
    } catch (error) {
      await this.#releaseFailed(error);
      throw error;
    }
    await this[Symbol.asyncDispose]();
    return value;
  }

  /** @internal */
  protected nativeHandle(): string {
    this.check();
    return this.#calls.native.handle(this.#id) ?? '';
  }

  async #renew(seconds: number): Promise<void> {
    this.check();
    try {
      await this.#calls.call((id) => this.#calls.native.renew(id, this.#id, seconds));
    } catch (error) {
      // This one knows the reason.
      if (error instanceof LockLostError) this.check();
      throw error;
    }
    this.check();
  }

  async #release(problem?: { kind: string; details: string }): Promise<void> {
    const held = this.#id;
    this.#unlink?.();
    this.#calls.forget(held);
    if (this.#loss) return;
    const { native } = this.#calls;
    const reply = await this.#calls.call((id) => native.release(id, held, problem?.kind, problem?.details));
    this.#loss = (reply.loss as LossReason | undefined) ?? null;
  }

  /** Releases after a failure of the work, which is what to throw, unless the lock was lost. */
  async #releaseFailed(error: unknown): Promise<void> {
    try {
      await (this.#released ??= handled(this.#release(problemOf(error))));
    } catch (problem) {
      process.emitWarning(`${this.title} was not released after its work had failed: ${String(problem)}`, {
        code: 'LEASEHOLD_RELEASE',
      });
    }
    // Work that `lease.signal` stopped usually fails with its reason, which says it all.
    const stopped = error instanceof LockLostError && error === this.#controller?.signal.reason;
    if (this.#reportedLoss && !stopped) throw this.#lostError(this.#reportedLoss, { cause: error });
  }

  #lossNow(): LossReason | null {
    if (this.#loss === null && this.#released === null) {
      const loss = this.#calls.native.loss(this.#id);
      if (loss !== null) this.#onLoss(loss as LossReason);
    }
    return this.#loss;
  }

  #onLoss(reason: LossReason): void {
    if (this.#loss !== null || this.#released !== null) return;
    this.#loss = reason;
    // What is lost needs no process to stay alive, and no connection to stay open.
    this.#calls.forget(this.#id);
    this.#calls.native.forget(this.#id);
    if (this.#reportedLoss) this.#controller?.abort(this.#lostError(reason));
  }

  #lostError(reason: LossReason, options?: ErrorOptions): LockLostError {
    return new LockLostError(`${this.title} is no longer held: ${wordsFor[reason]}`, reason, options);
  }
}

/** A lock that is held. `await using` releases it at the end of the block. */
export class Lease extends HeldLease {
  readonly name: string;
  /** Rises with every grant of this name: send it with each write, so that the store can refuse a late one. */
  readonly fence: number;

  /** @internal */
  constructor(
    name: string,
    fence: number,
    ...held: ConstructorParameters<typeof HeldLease>
  ) {
    super(...held);
    this.name = name;
    this.fence = fence;
  }

  /** A secret word by which another process can check, renew or release the lease, as `leasehold release` does. */
  get handle(): string {
    return this.nativeHandle();
  }

  protected override get title(): string {
    return `${this.name} (fence ${this.fence})`;
  }
}

/** Several locks that are held together. The loss of one is the loss of all. */
export class Leases extends HeldLease {
  /** The fence of each name, sorted by name. */
  readonly fences: ReadonlyMap<string, number>;

  /** @internal */
  constructor(fences: ReadonlyMap<string, number>, ...held: ConstructorParameters<typeof HeldLease>) {
    super(...held);
    this.fences = fences;
  }

  get names(): string[] {
    return [...this.fences.keys()];
  }

  protected override get title(): string {
    return this.names.join(', ');
  }
}

const wordsFor: Record<LossReason, string> = {
  renew_timeout: 'no renewal was answered in time',
  evicted: 'an operator evicted it',
  max_hold: 'it was held for as long as maxHoldSeconds allows',
  gone: 'the backend no longer has it',
  released: 'it was released',
};

/** Aborts the controller with the signal; returns what undoes that. */
function follow(signal: AbortSignal | undefined, controller: AbortController): () => void {
  if (!signal) return () => {};
  const abort = () => controller.abort(signal.reason);
  if (signal.aborted) abort();
  signal.addEventListener('abort', abort, { once: true });
  return () => signal.removeEventListener('abort', abort);
}

/** Nobody has to await this: whoever does still gets its error. */
function handled<T>(promise: Promise<T>): Promise<T> {
  promise.catch(ignore);
  return promise;
}

function ignore(): void {}
