// Loads the native part, and says what it has.

import { existsSync } from 'node:fs';
import { join } from 'node:path';

/** What came of a call: the fence of a lease that was acquired, or one of these. */
export type Answer = number;
/** The call succeeded and has no value to return: a lock that was tried is busy, say, or a watch has begun. */
export const NOTHING = -1;
/** `details` has it. */
export const DETAILS = -2;
/** It is under way; `poll` has the answer later. */
export const PENDING = -3;

/** What a number cannot tell about a call, or the loss of a lease. */
export interface Details {
  fence?: number;
  loss?: string;
  json?: string;
  error?: string;
}

/** What few requests have. */
export interface ExtraOptions {
  names?: string[];
  maxHoldSeconds?: number;
  maxWaiters?: number;
  autoRenew?: boolean;
  limit?: number;
  permits?: number;
  holder?: string;
  note?: string;
  metadata?: string;
  value?: string;
}

export interface NativeFilter {
  name?: string;
  prefix?: string;
  limit?: number;
  after?: string;
  failures?: boolean;
  since?: number;
  until?: number;
}

export interface NativeClient {
  acquire(
    id: number,
    mode: string,
    name: string,
    onlyTry: boolean,
    waitSeconds: number | undefined,
    ttlSeconds: number | undefined,
    extra: ExtraOptions | undefined,
  ): Answer;
  release(id: number, lease: number, problem?: string, details?: string): Answer;
  renew(id: number, lease: number, ttl: number): Answer;
  list(id: number, filter: NativeFilter): Answer;
  history(id: number, filter: NativeFilter): Answer;
  watch(id: number, filter: NativeFilter): Answer;
  nextEvent(id: number, watch: number): Answer;
  unwatch(watch: number): void;
  evict(id: number, name: string, fence: number, reason: string): Answer;
  leader(id: number, name: string): Answer;
  close(id: number): Answer;
  /** The ids of calls and lost leases, each followed by its answer. */
  poll(): number[];
  details(id: number): Details | null;
  cancel(id: number): void;
  forget(lease: number): void;
  loss(lease: number): string | null;
  remaining(lease: number): number;
  handle(lease: number): string | null;
}

export interface NativeConnectOptions {
  namespace?: string;
  holder?: string;
  connectSeconds?: number;
}

interface Native {
  Client: new (url: string, options: NativeConnectOptions, wake: () => void, isNode: boolean) => NativeClient;
  exec(program: string, args: string[]): string;
}

/** Where the files of this platform are; on Linux, first for glibc and then for musl. */
function places(): string[] {
  const platform = `${process.platform}-${process.arch}`;
  const names = process.platform === 'linux' ? [`${platform}-gnu`, `${platform}-musl`] : [platform];
  return names.map((name) => join(__dirname, '..', 'prebuilt', name)).filter((place) => existsSync(place));
}

function load(): { native: Native; place: string } {
  const problems: unknown[] = [];
  for (const place of places()) {
    try {
      return { native: require(join(place, 'leasehold.node')) as Native, place };
    } catch (error) {
      problems.push(error);
    }
  }
  const platform = `${process.platform}-${process.arch}`;
  throw new Error(`leasehold: there is no native part for ${platform} in this package`, { cause: problems[0] });
}

const loaded = load();

export const native = loaded.native;

/** Others pass for Node in much, but have event loops of their own. */
export const isNode = !('bun' in process.versions || 'deno' in process.versions);

/** The command `leasehold`. */
export const command = join(loaded.place, 'leasehold');
