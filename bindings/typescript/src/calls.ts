// Calls of the native part as promises, and the news of lost leases.

import { errorFromReport, LeaseholdError, type LossReason } from './errors.js';
import { native, type NativeClient, type NativeConnectOptions, type Reply } from './native.js';

/**
 * Those with a call under way or a lease held. They must not be collected, though nothing else may refer to them: whoever
 * awaits a call is only known to the call itself.
 */
const active = new Set<Calls>();
/** Keeps the process alive while there are any. */
let awake: NodeJS.Timeout | undefined;

interface Waiting {
  resolve(reply: Reply): void;
}

export class Calls {
  readonly native: NativeClient;
  readonly #waiting = new Map<number, Waiting>();
  readonly #held = new Map<number, (reason: LossReason) => void>();
  /** The leases that keep the process alive. */
  readonly #kept = new Set<number>();
  #lastId = 0;

  constructor(url: string, options: NativeConnectOptions) {
    // The native part refers to this function for as long as the thread lives, so it must not keep an idle client alive.
    const self = new WeakRef(this);
    try {
      this.native = new native.Client(url, options, () => {
        const calls = self.deref();
        if (calls) calls.#deliver();
      });
    } catch (error) {
      throw configError(error);
    }
  }

  /**
   * Makes a call, and throws what went wrong. A signal that aborts undoes the call.
   *
   * The error is thrown here, after the `await`, so that its stack names who called.
   */
  async call(begin: (id: number) => Reply | null, signal?: AbortSignal): Promise<Reply> {
    signal?.throwIfAborted();
    const started = performance.now();
    const id = this.#newId();
    let reply;
    try {
      reply = begin(id);
    } catch (error) {
      throw configError(error);
    }
    reply ??= await this.#reply(id, signal);
    if (reply.error !== undefined) throw errorFromReport(reply.error, performance.now() - started);
    return reply;
  }

  /** Delivers the loss of this lease until it is forgotten. */
  watch(lease: number, onLoss: (reason: LossReason) => void): void {
    this.#held.set(lease, onLoss);
  }

  /** Keeps the process alive until this lease is forgotten. */
  keep(lease: number): void {
    this.#kept.add(lease);
    this.#keepOrLetGo();
  }

  forget(lease: number): void {
    this.#held.delete(lease);
    this.#kept.delete(lease);
    this.#keepOrLetGo();
  }

  #keepOrLetGo(): void {
    if (this.#waiting.size + this.#kept.size > 0) active.add(this);
    else active.delete(this);
    awake ??= setInterval(() => {}, 2 ** 31 - 1);
    if (active.size > 0) awake.ref();
    else awake.unref();
  }

  #newId(): number {
    do this.#lastId = (this.#lastId + 1) >>> 0;
    while (this.#waiting.has(this.#lastId) || this.#held.has(this.#lastId));
    return this.#lastId;
  }

  async #reply(id: number, signal: AbortSignal | undefined): Promise<Reply> {
    let onAbort;
    try {
      return await new Promise<Reply>((resolve, reject) => {
        this.#waiting.set(id, { resolve });
        this.#keepOrLetGo();
        if (!signal) return;
        onAbort = () => {
          this.native.cancel(id);
          reject(signal.reason);
        };
        signal.addEventListener('abort', onAbort, { once: true });
      });
    } finally {
      this.#waiting.delete(id);
      this.#keepOrLetGo();
      if (onAbort) signal?.removeEventListener('abort', onAbort);
    }
  }

  #deliver(): void {
    for (const reply of this.native.poll()) {
      const waiting = this.#waiting.get(reply.id);
      if (waiting) waiting.resolve(reply);
      else this.#held.get(reply.id)?.(reply.loss as LossReason);
    }
  }
}

/** Options of the wrong type are refused before a call begins. */
function configError(error: unknown): LeaseholdError {
  const message = error instanceof Error ? error.message : String(error);
  return message.startsWith('{') ? errorFromReport(message, 0) : new LeaseholdError('CONFIG', message);
}
