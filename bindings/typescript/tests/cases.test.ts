// The conformance cases that all language packages share: cases/README.md says what the words mean.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { connect, type Lease, LeaseholdError, type Leases, type Leasehold, LockBusyError, LockLostError, type LockEvent } from 'leasehold';

import { eventually, kinds, unique, urls, waiting } from './backends.js';

interface Lock {
  kind?: 'mutex' | 'read' | 'write' | 'semaphore' | 'election' | 'all';
  name: string;
  names?: string[];
  limit?: number;
  permits?: number;
  value?: string;
  wait?: number | null;
  ttl?: number;
  max_hold?: number;
  holder?: string;
  note?: string;
  metadata?: Record<string, unknown>;
  max_waiters?: number;
}

interface Step extends Lock {
  do: string;
  client: string;
  as: string;
  lease: string;
  leases: string[];
  seconds: number;
  reason: string;
  raise?: string;
  on_busy?: string;
  holders?: string[];
  expect?: unknown;
}

interface Case {
  name: string;
  backends?: string[];
  steps: Step[];
}

type AnyLease = Lease | Leases;
type Result = { held: AnyLease } | { none: true } | { failed: unknown };

const words: Record<string, string> = {
  BUSY: 'busy',
  LOST: 'lost',
  CONFIG: 'config',
  NOT_SUPPORTED: 'unsupported',
  BACKEND_UNAVAILABLE: 'unavailable',
  CLOSED: 'closed',
};

class Runner {
  readonly #namespace = unique('cases').replaceAll(':', '-');
  readonly #clients = new Map<string, Leasehold>();
  readonly #leases = new Map<string, AnyLease>();
  readonly #started = new Map<string, { result: Promise<Result>; settled: boolean; stop: AbortController; name: string }>();
  readonly #events = new Map<string, AsyncGenerator<LockEvent>>();

  constructor(readonly url: string) {}

  async run(step: Step): Promise<void> {
    switch (step.do) {
      case 'acquire':
        this.#expect(step, await this.#acquireOrNameHolders(step));
        // Whoever gave up leaves the queue in the background.
        if (step.expect === 'busy') await this.#withoutWaiter(step);
        return;
      case 'try':
        return this.#expect(step, await settle(this.#try(step)));
      case 'start': {
        const before = await this.#waiters(step);
        const stop = new AbortController();
        const started = { result: settle(this.#acquire(step, stop.signal)), settled: false, stop, name: step.name };
        void started.result.then(() => (started.settled = true));
        this.#started.set(step.as, started);
        return waiting(this.#client(step), step.name, before + 1);
      }
      case 'finish':
        return this.#expect(step, await found(this.#started, step.as).result);
      case 'pending':
        await sleep(50);
        return assert.equal(found(this.#started, step.as).settled, false);
      case 'cancel': {
        const started = found(this.#started, step.as);
        const before = await this.#waiters({ ...step, name: started.name });
        const gone = new Error('cancelled');
        started.stop.abort(gone);
        assert.deepEqual(await started.result, { failed: gone });
        return waiting(this.#client(step), started.name, before - 1);
      }
      case 'release':
        return found(this.#leases, step.lease).release();
      case 'renew': {
        const renewed = await found(this.#leases, step.lease).renew(step.ttl ?? 0).then(() => 'renewed', wordFor);
        return assert.equal(renewed, step.expect);
      }
      case 'check': {
        const lease = found(this.#leases, step.lease);
        assert.equal(lease.held ? 'held' : 'lost', step.expect);
        if (step.expect === 'held') lease.check();
        else assert.throws(() => lease.check(), LockLostError);
        return;
      }
      case 'lost': {
        const { signal } = found(this.#leases, step.lease);
        if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve));
        assert.ok(signal.reason instanceof LockLostError);
        return assert.equal(signal.reason.reason, step.expect);
      }
      case 'order': {
        const fences = step.leases.map((name) => fenceOf(found(this.#leases, name)));
        return assert.deepEqual(fences, [...new Set(fences)].sort((a, b) => a - b));
      }
      case 'run':
      case 'decorate': {
        const own = new Error(step.raise);
        const work = () => {
          if (step.raise !== undefined) throw own;
        };
        const lock = this.#client(step);
        const ran =
          step.on_busy === 'skip'
            ? lock.tryWithLock(step.name, work).then((done) => (done ? 'returned' : 'skipped'))
            : lock.withLock(step.name, work, options(step)).then(() => 'returned');
        return assert.equal(await ran.catch((error: unknown) => (error === own ? 'raised' : wordFor(error))), step.expect);
      }
      case 'evict': {
        const lease = found(this.#leases, step.lease);
        assert.ok('name' in lease);
        const evicted = await this.#client(step).evict(lease.name, lease.fence, step.reason);
        return assert.equal(evicted ? 'evicted' : 'gone', step.expect);
      }
      case 'list': {
        const count = (step.expect as unknown[]).length;
        const look = async () => (await this.#client(step).list({ name: step.name })).leases;
        return this.#matches(await eventually(async () => matching(await look(), count), 'the listing'), step.expect);
      }
      case 'history': {
        const look = async () => {
          const history = await this.#client(step).history({ name: step.name });
          return history.map((ended) => ({ ...ended, problem_details: ended.problem?.details }));
        };
        const count = (step.expect as unknown[]).length;
        const seen = await eventually(async () => {
          const history = await look();
          return history.length >= count ? history.slice(0, count) : null;
        }, 'the history');
        return this.#matches(seen, step.expect);
      }
      case 'events':
        this.#events.set(step.as, await this.#client(step).watch({ name: step.name }));
        return;
      case 'event': {
        const next = await found(this.#events, step.as).next();
        return this.#matches([next.value], [step.expect]);
      }
      case 'close':
        return this.#client(step).close();
      case 'sleep':
        return sleep(step.seconds * 1000);
      default:
        throw new Error(`the runner does not know how to ${step.do}`);
    }
  }

  async close(): Promise<void> {
    for (const { result, stop } of this.#started.values()) {
      stop.abort();
      await result;
    }
    for (const client of this.#clients.values()) await client.close();
  }

  #client({ client }: { client: string }): Leasehold {
    let lock = this.#clients.get(client);
    if (!lock) {
      lock = connect(this.url, { holder: client, namespace: this.#namespace });
      this.#clients.set(client, lock);
    }
    return lock;
  }

  async #waiters(step: Step): Promise<number> {
    const { leases } = await this.#client(step).list({ name: step.name });
    return leases.filter((lease) => lease.state === 'waiting').length;
  }

  async #withoutWaiter(step: Step): Promise<void> {
    for (const name of step.names ?? [step.name]) {
      await eventually(async () => {
        const { leases } = await this.#client(step).list({ name });
        return !leases.some((lease) => lease.state === 'waiting' && lease.holder === step.client);
      }, `${step.client} waits no longer for ${name}`);
    }
  }

  /** The library looks for the holders while it waits, and does without them if the backend is slow: then again. */
  async #acquireOrNameHolders(step: Step): Promise<Result> {
    for (let tries = 1; ; tries++) {
      const result = await settle(this.#acquire(step));
      const isNameless = 'failed' in result && result.failed instanceof LockBusyError && result.failed.holders.length === 0;
      if (!isNameless || !step.holders || tries === 5) return result;
    }
  }

  async #acquire(step: Step, signal?: AbortSignal): Promise<AnyLease> {
    const [lock, given] = [this.#client(step), { ...options(step), signal }];
    switch (step.kind) {
      case 'read':
        return lock.acquire(step.name, { ...given, mode: 'shared' });
      case 'semaphore':
        return lock.acquirePermit(step.name, { ...given, limit: step.limit ?? 0, permits: step.permits });
      case 'election': {
        const { value } = await lock.election(step.name, { ...given, value: step.value }).next();
        assert.ok(value);
        return value;
      }
      case 'all':
        return lock.acquireAll(step.names ?? [], given);
      default:
        return lock.acquire(step.name, given);
    }
  }

  async #try(step: Step): Promise<AnyLease | null> {
    const [lock, { waitSeconds: _, ...given }] = [this.#client(step), options(step)];
    switch (step.kind) {
      case 'read':
        return lock.tryAcquire(step.name, { ...given, mode: 'shared' });
      case 'semaphore':
        return lock.tryAcquirePermit(step.name, { ...given, limit: step.limit ?? 0, permits: step.permits });
      case 'all':
        return lock.tryAcquireAll(step.names ?? [], given);
      default:
        return lock.tryAcquire(step.name, given);
    }
  }

  #expect(step: Step, result: Result): void {
    if ('held' in result) {
      this.#leases.set(step.as, result.held);
      assert.equal('held', step.expect);
    } else if ('none' in result) {
      assert.equal('none', step.expect);
    } else {
      assert.equal(wordFor(result.failed), step.expect, String(result.failed));
      if (step.holders) {
        assert.ok(result.failed instanceof LockBusyError);
        assert.deepEqual(result.failed.holders.map((holder) => holder.holder), step.holders);
      }
    }
  }

  /** Each has at least the expected fields; `lease` stands for a fence. */
  #matches(actual: readonly unknown[], expected: unknown): void {
    assert.ok(Array.isArray(expected));
    const wanted = expected.map(({ lease, ...fields }: Record<string, unknown>) =>
      lease === undefined ? fields : { ...fields, fence: fenceOf(found(this.#leases, lease as string)) },
    );
    const seen = actual.map((one, place) => {
      const keys = Object.keys(wanted[place] ?? {});
      return Object.fromEntries(keys.map((key) => [key, (one as Record<string, unknown>)[key]]));
    });
    assert.deepEqual(seen, wanted);
  }
}

/** Some things end in the background: a listing is right when it has as many entries as it should. */
function matching<T>(seen: T[], count: number): T[] | null {
  return seen.length === count ? seen : null;
}

function options(step: Lock) {
  return {
    waitSeconds: step.wait === null ? Infinity : (step.wait ?? 10),
    ttlSeconds: step.ttl,
    maxHoldSeconds: step.max_hold,
    maxWaiters: step.max_waiters,
    holder: step.holder,
    note: step.note,
    metadata: step.metadata,
  };
}

function settle(call: Promise<AnyLease | null>): Promise<Result> {
  return call.then(
    (held) => (held ? { held } : { none: true }),
    (failed: unknown) => ({ failed }),
  );
}

function wordFor(error: unknown): string {
  if (error instanceof LeaseholdError) return words[error.code] ?? error.code;
  throw error;
}

function fenceOf(lease: AnyLease): number {
  return 'fence' in lease ? lease.fence : Math.max(...lease.fences.values());
}

function found<T>(map: Map<string, T>, name: string): T {
  const value = map.get(name);
  assert.ok(value !== undefined, `no step before had "as": "${name}"`);
  return value;
}

const { format, cases } = JSON.parse(readFileSync('cases/cases.json', 'utf8')) as { format: number; cases: Case[] };
assert.equal(format, 1);
for (const kind of kinds) {
  // Most of a case is waiting.
  describe(kind, { concurrency: 4 }, () => {
    for (const { name, backends, steps } of cases) {
      if (backends && !backends.includes(kind)) continue;
      test(`${kind}: ${name}`, async () => {
        const runner = new Runner(urls[kind]);
        try {
          for (const step of steps) {
            await runner.run(step).catch((error: unknown) => {
              throw new Error(`step ${JSON.stringify(step)}: ${String(error)}`, { cause: error });
            });
          }
        } finally {
          await runner.close();
        }
      });
    }
  });
}
