// What listings and the history show.

/** How a lock is held. */
export type Mode = 'exclusive' | 'shared' | 'permit' | 'leader';

/** How a lease, or the wait for one, ended. */
export type Ending =
  | 'released'
  | 'failed'
  | 'expired'
  | 'disconnected'
  | 'evicted'
  | 'max_hold'
  | 'gave_up'
  | 'cancelled';

interface AnyLeaseRecord {
  name: string;
  holder: string;
  mode: Mode;
  /** Of a semaphore: how many it takes, or waits for. */
  permits?: number;
  /** Of a semaphore: how many there are. */
  limit?: number;
  askedAt: Date;
  ttlMs: number;
  /** Time left without a renewal; `null` if the lease lasts as long as its process or connection. */
  expiresInMs: number | null;
  note: string | null;
  metadata: Record<string, unknown>;
}

/** A lease that is held. */
export interface HoldingRecord extends AnyLeaseRecord {
  state: 'holding';
  fence: number;
  acquiredAt: Date;
  heldForMs: number;
}

/** A place in a queue. */
export interface WaitingRecord extends AnyLeaseRecord {
  state: 'waiting';
  /** How many wait before it. */
  ahead: number;
  waitingForMs: number;
}

export type LeaseRecord = HoldingRecord | WaitingRecord;

/** Some of the live leases; `next` is the `after` of the next page, if there is one. */
export interface LeasePage {
  leases: LeaseRecord[];
  next: string | null;
}

/** A lease, or a wait for one, that ended. */
export interface EndedLease {
  name: string;
  holder: string;
  mode: Mode;
  fence: number | null;
  askedAt: Date;
  acquiredAt: Date | null;
  endedAt: Date;
  ending: Ending;
  problem: { kind: string; details: string } | null;
  note: string | null;
  metadata: Record<string, unknown>;
}

/** Something that happened to a name; `missed` if events were lost, so that a reader should list again. */
export type LockEvent =
  | (AnyEvent & { kind: 'waiting' })
  | (AnyEvent & { kind: 'acquired'; fence: number })
  | (AnyEvent & { kind: 'ended'; ending: Ending; fence: number | null })
  | { kind: 'missed' };

interface AnyEvent {
  at: Date;
  name: string;
  holder: string;
  mode: Mode;
}

/** The leader of an election. */
export interface Leader {
  holder: string;
  value: string | null;
  fence: number;
  since: Date;
  ledForMs: number;
}

/** A lock in the shape of the Web Locks API. */
export interface LockInfo {
  name: string;
  mode: Mode;
  clientId: string;
}

export interface LockSnapshot {
  held: LockInfo[];
  pending: LockInfo[];
}

/** Parses a listing of the native part, in which dates are milliseconds. */
export function parsePage(json: string): LeasePage {
  const page = JSON.parse(json) as LeasePage;
  for (const lease of page.leases) {
    lease.askedAt = new Date(lease.askedAt);
    if (lease.state === 'holding') lease.acquiredAt = new Date(lease.acquiredAt);
  }
  return page;
}

export function parseHistory(json: string): EndedLease[] {
  const history = JSON.parse(json) as EndedLease[];
  for (const lease of history) {
    lease.askedAt = new Date(lease.askedAt);
    lease.acquiredAt = lease.acquiredAt && new Date(lease.acquiredAt);
    lease.endedAt = new Date(lease.endedAt);
  }
  return history;
}

export function parseEvent(json: string): LockEvent {
  const event = JSON.parse(json) as LockEvent;
  if (event.kind !== 'missed') event.at = new Date(event.at);
  return event;
}

export function parseLeader(json: string): Leader {
  const leader = JSON.parse(json) as Leader;
  leader.since = new Date(leader.since);
  return leader;
}
