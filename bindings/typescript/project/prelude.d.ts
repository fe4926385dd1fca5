// What the examples of the documents call and leave to the reader.

import type { Lease, Leasehold } from 'leasehold';

declare global {
  const lock: Leasehold;
  const url: string;
  const rows: string[];
  const request: { signal: AbortSignal };
  function buildReport(): Promise<void>;
  function sendMail(): Promise<void>;
  function runScheduler(signal: AbortSignal): Promise<void>;
  function save(rows: string[], options: { fence: number }): Promise<number>;
  function work(lease?: Lease): Promise<void>;
}
