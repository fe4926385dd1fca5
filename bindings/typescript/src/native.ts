// Loads the native part, and says what it has.

import { existsSync } from 'node:fs';
import { join } from 'node:path';

/** The result of a call, or the loss of a lease. */
export interface Reply {
  id: number;
  fence?: number;
  loss?: string;
  json?: string;
  error?: string;
}

export interface LockRequest {
  mode: string;
  names: string[];
  onlyTry: boolean;
  waitSeconds?: number;
  ttlSeconds?: number;
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

/** A call returns its reply if it is done at once; otherwise `poll` returns it later. */
export interface NativeClient {
  acquire(id: number, request: LockRequest): Reply | null;
  release(id: number, lease: number, problem?: string, details?: string): Reply | null;
  renew(id: number, lease: number, ttl: number): Reply | null;
  list(id: number, filter: NativeFilter): Reply | null;
  history(id: number, filter: NativeFilter): Reply | null;
  watch(id: number, filter: NativeFilter): Reply | null;
  nextEvent(id: number, watch: number): Reply | null;
  unwatch(watch: number): void;
  evict(id: number, name: string, fence: number, reason: string): Reply | null;
  leader(id: number, name: string): Reply | null;
  close(id: number): Reply | null;
  poll(): Reply[];
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
  Client: new (url: string, options: NativeConnectOptions, wake: () => void) => NativeClient;
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

/** The command `leasehold`. */
export const command = join(loaded.place, 'leasehold');
