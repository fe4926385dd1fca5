// The backends that the tests run on, and helpers that wait for conditions.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { connect, type Leasehold } from 'leasehold';

function server(variable: string): string {
  const url = process.env[variable];
  if (!url) throw new Error(`${variable} is not set: run the tests by bindings/typescript/test`);
  return url;
}

export const redisUrl = server('REDIS_URL');
export const postgresUrl = server('POSTGRES_URL');

const folder = mkdtempSync(join(tmpdir(), 'leasehold-test-'));
export const fileUrl = `file:${folder}`;
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));

export const urls = {
  memory: `memory:${process.pid}`,
  file: fileUrl,
  redis: redisUrl,
  postgres: postgresUrl,
};
export type Kind = keyof typeof urls;
export const kinds = Object.keys(urls) as Kind[];

const open: Leasehold[] = [];
after(() => Promise.all(open.map((lock) => lock.close())));

/** A connection that is closed after the tests of this file. */
export function connected(url: string): Leasehold {
  const lock = connect(url);
  open.push(lock);
  return lock;
}

let names = 0;
/** A name that no other test uses. */
export function unique(prefix = 'name'): string {
  return `${prefix}:${process.pid}:${names++}`;
}

export interface Fixture {
  /** Two connections to one backend. */
  lock: Leasehold;
  other: Leasehold;
  name: string;
  kind: Kind;
}

/** A test on each backend. */
export function onEach(title: string, body: (fixture: Fixture) => Promise<void>, only: Kind[] = kinds): void {
  for (const kind of only) {
    test(`${kind}: ${title}`, async () => {
      const url = urls[kind];
      await body({ lock: connected(url), other: connected(url), name: unique(), kind });
    });
  }
}

/** Waits until it returns something true. */
export async function eventually<T>(look: () => T | Promise<T>, what: string): Promise<NonNullable<T>> {
  for (const start = performance.now(); performance.now() - start < 20_000; ) {
    const seen = await look();
    if (seen) return seen;
    await sleep(10);
  }
  throw new Error(`it did not happen: ${what}`);
}

/** Waits until this many wait for the name. */
export async function waiting(lock: Leasehold, name: string, count: number): Promise<void> {
  await eventually(async () => {
    const { leases } = await lock.list({ name });
    return leases.filter((lease) => lease.state === 'waiting').length === count;
  }, `${count} waiters of ${name}`);
}

/** Blocks the event loop. */
export function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/** The error of a promise that has to fail. */
export async function failure(promise: Promise<unknown>): Promise<unknown> {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error('it should have failed');
}
