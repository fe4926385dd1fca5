// Calls of the native part as promises, and the news of lost leases.

import { errorFromReport, LeaseholdError, type LossReason } from './errors.js';
import {
  type Answer,
  DETAILS,
  type Details,
  isNode,
  native,
  type NativeClient,
  type NativeConnectOptions,
  NOTHING,
  PENDING,
} from './native.js';

/**
 * Those with a call under way or a lease held. They must not be collected, though nothing else may refer to them: whoever
 * awaits a call is only known to the call itself.
 */
const active = new Set<Calls>();
/** Keeps the process alive while there are any. */
let awake: NodeJS.Timeout | undefined;

/** The result of a call, or the loss of a lease. */
export interface Reply extends Details {
  id: number;
}

export class Calls {
  readonly native: NativeClient;
  readonly #waiting = new Map<number, (reply: Reply) => void>();
  readonly #held = new Map<number, (reason: LossReason) => void>();
  /** The leases that keep the process alive. */
  readonly #kept = new Set<number>();
  #isActive = false;
  #lastId = 0;

  constructor(url: string, options: NativeConnectOptions) {
    // The native part refers to this function for as long as the thread lives, so it must not keep an idle client alive.
    const self = new WeakRef(this);
    try {
      const wake = () => {
        const calls = self.deref();
        if (calls) calls.#deliver();
      };
      this.native = new native.Client(url, options, wake, isNode);
    } catch (error) {
      throw configError(error);
    }
  }

  /**
   * Makes a call, and throws what went wrong. A signal that aborts undoes the call.
   *
   * The error is thrown here, after the `await`, so that its stack names who called.
   */
  async call(begin: (id: number) => Answer, signal?: AbortSignal): Promise<Reply> {
    signal?.throwIfAborted();
    const started = performance.now();
    const id = this.#newId();
    let answer;
    try {
      answer = begin(id);
    } catch (error) {
      throw configError(error);
    }
    const reply = answer === PENDING ? await this.#reply(id, signal) : this.#read(id, answer);
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
    if (this.#kept.delete(lease)) this.#keepOrLetGo();
  }

  #keepOrLetGo(): void {
    const isActive = this.#waiting.size + this.#kept.size > 0;
    if (isActive === this.#isActive) return;
    this.#isActive = isActive;
    if (isActive) active.add(this);
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

  #reply(id: number, signal: AbortSignal | undefined): Promise<Reply> {
    const reply = new Promise<Reply>((resolve) => this.#waiting.set(id, resolve));
    this.#keepOrLetGo();
    return signal ? this.#abortable(id, reply, signal) : reply;
  }

  async #abortable(id: number, reply: Promise<Reply>, signal: AbortSignal): Promise<Reply> {
    let onAbort;
    const aborted = new Promise<never>((_, reject) => {
      onAbort = () => {
        // Once the call is resolved, its id is that of the lease.
        if (!this.#waiting.delete(id)) return;
        this.native.cancel(id);
        this.#keepOrLetGo();
        reject(signal.reason);
      };
      signal.addEventListener('abort', onAbort, { once: true });
    });
    try {
      return await Promise.race([reply, aborted]);
    } finally {
      if (onAbort) signal.removeEventListener('abort', onAbort);
    }
  }

  /**
   * Resolves the calls that are done, and only then announces the losses: a loss runs listeners of the caller, and if
   * one of them aborted a call whose lease `poll` has taken over already, nobody would ever release that lease.
   */
  #deliver(): void {
    const answers = this.native.poll();
    const losses: Reply[] = [];
    for (let at = 0; at < answers.length; at += 2) {
      const [id, answer] = [answers[at] as number, answers[at + 1] as Answer];
      const reply = this.#read(id, answer);
      const resolve = this.#waiting.get(id);
      if (resolve) {
        this.#waiting.delete(id);
        resolve(reply);
      } else losses.push(reply);
    }
    for (const { id, loss } of losses) this.#held.get(id)?.(loss as LossReason);
    this.#keepOrLetGo();
  }

  #read(id: number, answer: Answer): Reply {
    if (answer === NOTHING) return { id };
    if (answer === DETAILS) return { id, ...this.native.details(id) };
    return { id, fence: answer };
  }
}

/** Options of the wrong type are refused before a call begins. */
function configError(error: unknown): LeaseholdError {
  const message = error instanceof Error ? error.message : String(error);
  return message.startsWith('{') ? errorFromReport(message, 0) : new LeaseholdError('CONFIG', message);
}
