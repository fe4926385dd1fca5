//! Run records: a hash of name -> record in each partition, bounded by the script that writes it.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use redis::Value;

use super::{
    decode,
    keys::Partition,
    ops::Shared,
    scripts::{self, ScriptCall},
};
use crate::{
    Error, Result,
    backend::RunTable,
    lease::{Holder, Names, Resource, RunRecord, RunReport, SkippedRun, Timestamp},
};

/// The most reports in one call, so that no call keeps the server busy for long.
const REPORTS_AT_ONCE: usize = 200;

impl Shared {
    pub(super) async fn record_runs(&self, reports: &[RunReport]) -> Result<()> {
        let mut by_partition: BTreeMap<u16, Vec<&RunReport>> = BTreeMap::new();
        for report in reports {
            by_partition.entry(self.keys.of(&report.resource).number).or_default().push(report);
        }
        let chunks = by_partition.iter().flat_map(|(number, reports)| {
            let partition = &self.keys.all()[usize::from(*number)];
            reports.chunks(REPORTS_AT_ONCE).map(move |some| self.record_runs_in(partition, some))
        });
        try_join_all(chunks).await.map(drop)
    }

    async fn record_runs_in(&self, partition: &Partition, reports: &[&RunReport]) -> Result<()> {
        let keys = partition.runs();
        let max_names = RunTable::MAX_NAMES.div_ceil(self.keys.all().len());
        let call = ScriptCall::new(&scripts::RECORD_RUNS, &keys.each_ref().map(String::as_str), |command| {
            command.arg(retention_micros()).arg(max_names);
            for report in reports {
                command.arg(report.resource.as_str()).arg(report.skips).arg(u8::from(report.success));
                command.arg(report.held_by.as_ref().map_or("", Holder::as_str));
            }
        });
        self.router.run(partition, &call, None).await.map(drop)
    }

    pub(super) async fn runs(&self, names: &Names) -> Result<Vec<RunRecord>> {
        let found = match names {
            Names::Exactly(resource) => self.runs_in(self.keys.of(resource), "", resource.as_str()).await?,
            Names::All | Names::Prefix(_) => {
                let prefix = if let Names::Prefix(prefix) = names { prefix.as_str() } else { "" };
                let read = |partition| self.runs_in(partition, prefix, "");
                try_join_all(self.keys.all().iter().map(read)).await?.into_iter().flatten().collect()
            }
        };
        // A scan may return a name twice.
        let by_name: BTreeMap<Resource, RunRecord> =
            found.into_iter().map(|record| (record.resource.clone(), record)).collect();
        Ok(by_name.into_values().collect())
    }

    async fn runs_in(&self, partition: &Partition, prefix: &str, name: &str) -> Result<Vec<RunRecord>> {
        let [runs, _] = partition.runs();
        let mut records = Vec::new();
        let mut cursor: u64 = 0;
        loop {
            let call = ScriptCall::new(&scripts::LIST_RUNS, &[&runs], move |command| {
                command.arg(cursor).arg(prefix).arg(name).arg(retention_micros());
            });
            let reply = self.router.run(partition, &call, None).await?;
            let [next, found @ ..] = decode::array(&reply.value)? else { return Ok(records) };
            for pair in found.chunks_exact(2) {
                records.push(record(&pair[0], &pair[1])?);
            }
            cursor = decode::number(next)?;
            if cursor == 0 {
                return Ok(records);
            }
        }
    }
}

fn retention_micros() -> String {
    RunTable::KEPT.as_micros().to_string()
}

/// The record of a name, as `record_runs.lua` writes it.
fn record(name: &Value, value: &Value) -> Result<RunRecord> {
    let mut record = RunRecord::new(Resource::new(decode::text(name)?)?);
    let text = decode::text(value)?;
    let unexpected = || Error::unsupported(format!("a newer version of leasehold wrote this record of runs: {text}"));
    let mut columns = text.splitn(5, ' ').skip(1);
    let mut number = || columns.next().and_then(|column| column.parse::<u64>().ok()).ok_or_else(unexpected);
    let (skips, skip, success) = (number()?, number()?, number()?);
    let time = |micros: u64| (micros > 0).then(|| Timestamp::from_micros(micros));
    let held_by = columns.next().and_then(|holder| Holder::new(holder).ok());
    (record.skips, record.last_success) = (skips, time(success));
    record.last_skip = time(skip).map(|at| SkippedRun::new(at, held_by));
    Ok(record)
}
