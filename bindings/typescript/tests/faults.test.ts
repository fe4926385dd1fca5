// Workers that are killed, stopped and cut off: no two of them ever believe that they hold the lock at the same time.
// `LEASEHOLD_FAULTS=200` makes that many faults on each backend.

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { unique, urls } from './backends.js';
import { Proxy } from './proxy.js';

const faults = Number(process.env.LEASEHOLD_FAULTS ?? 6);
const workers = 3;
const ttlMs = 2000;
const program = fileURLToPath(new URL('./programs/believer.js', import.meta.url));

interface Belief {
  fence: bigint;
  first: bigint;
  last: bigint;
}

/** What all workers believed, by fence. */
function beliefs(folder: string): Belief[] {
  const found = readdirSync(folder).flatMap((file) => {
    const data = readFileSync(join(folder, file));
    const at = (place: number) => data.readBigInt64LE(place);
    const starts = Array.from({ length: Math.floor(data.length / 24) }, (_, record) => record * 24);
    return starts.map((start) => ({ fence: at(start), first: at(start + 8), last: at(start + 16) }));
  });
  return found.sort((a, b) => Number(a.fence - b.fence));
}

/** Neighbours of which the earlier was believed in after the later had been. */
function overlaps(found: Belief[]): Belief[][] {
  const pairs = found.slice(1).map((later, at) => [found[at] as Belief, later] as const);
  return pairs.filter(([one, two]) => one.last > two.first || one.fence === two.fence).map((pair) => [...pair]);
}

test('the checker finds an overlap', () => {
  const belief = (fence: bigint, first: bigint, last: bigint) => ({ fence, first, last });
  assert.deepEqual(overlaps([belief(1n, 0n, 10n), belief(2n, 11n, 20n)]), []);
  assert.equal(overlaps([belief(1n, 0n, 12n), belief(2n, 11n, 20n)]).length, 1);
  assert.equal(overlaps([belief(1n, 0n, 10n), belief(1n, 11n, 20n)]).length, 1);
});

for (const kind of ['redis', 'postgres'] as const) {
  test(`${kind}: no two workers believe at once`, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'leasehold-faults-'));
    await using proxy = await Proxy.to(urls[kind]);
    const name = unique('believed');
    let started = 0;
    const start = async (place: number): Promise<ChildProcess> => {
      const url = place === 0 ? proxy.url : urls[kind];
      const worker = spawn(process.execPath, [program, url, name, join(folder, `${started++}`)], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      await once(worker.stdout ?? worker, 'data');
      return worker;
    };
    const running = await Promise.all(Array.from({ length: workers }, (_, place) => start(place)));
    const length = () => (Math.random() < 0.5 ? 300 : ttlMs + 500);
    try {
      for (let fault = 0; fault < faults; fault++) {
        await sleep(50 + Math.random() * 350);
        const place = Math.floor(Math.random() * workers);
        const worker = running[place] as ChildProcess;
        switch (fault % 4) {
          case 0:
            worker.kill('SIGKILL');
            await once(worker, 'exit');
            running[place] = await start(place);
            break;
          case 1:
            worker.kill('SIGSTOP');
            await sleep(length());
            worker.kill('SIGCONT');
            break;
          case 2:
            proxy.cut();
            await sleep(length());
            proxy.mend();
            break;
          default:
            proxy.stall();
            await sleep(length());
            proxy.mend();
        }
      }
      await sleep(ttlMs + 1000);
      // Work of seconds, one after the other, may have left little room for grants.
      for (let tries = 0; tries < 300 && beliefs(folder).length <= faults; tries++) await sleep(200);
      for (const worker of running) assert.equal(worker.exitCode ?? worker.signalCode, null, 'a worker ended');
    } finally {
      for (const worker of running) worker.kill('SIGKILL');
    }
    const found = beliefs(folder);
    rmSync(folder, { recursive: true });
    assert.ok(found.length > faults, `only ${found.length} grants`);
    assert.deepEqual(overlaps(found), []);
    console.log(`${kind}: ${faults} faults, ${found.length} grants`);
  });
}
