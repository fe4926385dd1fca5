//! The functions for any SQL client, beside the classic functions that people write by hand.

use leasehold_testkit::postgres::Postgres;
use tokio::runtime::Runtime;

use super::prelude::*;
use crate::postgres_locks::{Callers, Functions, server, server_cpu};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "postgres-functions",
    title: "postgres:, acquire_lock + release_lock on distinct names by 1, 8 and 32 clients, durable and not, with history \
            `problems` and `all`, and failed tries on a busy name; beside the classic functions.",
    measure,
};

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let runtime = two_workers()?;
    for durable in [true, false] {
        let server = server(&runtime, durable)?;
        let how = if durable { "durable" } else { "not durable" };
        for (history, least, most_cpu) in
            [("problems", if durable { 0.95 } else { 0.9 }, 1.1), ("all", if durable { 0.85 } else { 0.75 }, 1.3)]
        {
            server.psql(&format!("select leasehold.record('{history}')"));
            for clients in [1, 8, 32] {
                let what = format!("{clients} clients, {how}, history {history}");
                let [ours, theirs] = callers(&runtime, &server, clients)?;
                let contenders = [
                    ours.pairs(Functions::Leasehold.name(), &runtime),
                    theirs.pairs(Functions::Classic.name(), &runtime),
                ];
                let scores = compare(effort, &contenders)?;
                section.ratio(
                    format!("{what}: rate, beside the classic functions"),
                    scores[1].ratio,
                    Bar::AtLeast(least),
                );
                if clients == 8 && !durable {
                    let ratio = cpu_ratio(&server, &contenders)?;
                    section.ratio(format!("{what}: server processor time"), ratio, Bar::AtMost(most_cpu));
                }
            }
        }
    }
    busy(effort, &runtime, section)
}

fn callers(runtime: &Runtime, server: &Postgres, clients: u64) -> Result<[Callers; 2]> {
    let connect = |functions| runtime.block_on(Callers::connect(server, functions, clients));
    Ok([connect(Functions::Leasehold)?, connect(Functions::Classic)?])
}

/// Failed tries, and whether they write.
fn busy(effort: Effort, runtime: &Runtime, section: &mut Section) -> Result<()> {
    let server = server(runtime, true)?;
    server.psql("select leasehold.acquire_lock('busy', 'other', 86400), classic_acquire('busy', 'other', 86400)");
    let [ours, theirs] = callers(runtime, &server, 8)?;
    let contenders =
        [ours.tries(Functions::Leasehold.name(), runtime), theirs.tries(Functions::Classic.name(), runtime)];
    let scores = compare(effort, &contenders)?;
    section.ratio("8 clients, durable: failed tries, beside the classic functions", scores[1].ratio, Bar::AtLeast(5.0));
    let written =
        || server.psql("select txid_snapshot_xmax(txid_current_snapshot())").parse::<f64>().unwrap_or(f64::NAN);
    let before = written();
    (contenders[0].operate)(1000)?;
    section.figure("transactions that 1,000 failed tries wrote", written() - before, "", Some(Bar::AtMost(0.0)));
    Ok(())
}

/// The processor time that ours costs the server beside theirs.
fn cpu_ratio(server: &Postgres, contenders: &[Contender<'_>; 2]) -> Result<Spread> {
    const PAIRS: u64 = 8_000;
    let cost = |contender: &Contender<'_>| -> Result<f64> {
        let before = server_cpu(server);
        (contender.operate)(PAIRS)?;
        Ok(server_cpu(server) - before)
    };
    let ratio = |_| Ok(cost(&contenders[0])? / cost(&contenders[1])?);
    Ok(Spread::of((0..5).map(ratio).collect::<Result<Vec<f64>>>()?))
}
