//! Looking at leases, watching and ending them: what operators call.

use async_trait::async_trait;
use tokio_postgres::types::Type;

use super::{
    PostgresBackend,
    connection::Parameter,
    decode::{self, Verdict},
    encode::long,
    errors::{Failure, FailureKind},
    examine,
    statements::Statement,
};
use crate::{
    Result,
    backend::{EventStream, Finding, Inspect, RunTable},
    lease::{
        EndedLease, Evicted, Fence, HistoryFilter, Holder, LeasePage, ListFilter, Names, Resource, RunRecord,
        RunReport, Timestamp, micros,
    },
};

#[async_trait]
impl Inspect for PostgresBackend {
    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        let reply = self
            .router
            .call_blocking(
                &[],
                Statement::Evict,
                &[
                    (&self.instance.namespace, Type::TEXT),
                    (&self.instance.channel, Type::TEXT),
                    (&self.instance.history, Type::CHAR),
                    (&resource.as_str(), Type::TEXT),
                    (&long(expected.get()), Type::INT8),
                    (&reason, Type::TEXT),
                ],
            )
            .await
            .inspect_err(|failure| failure.wake_waiters([resource].into_iter(), &self.hints))
            .map_err(Failure::error)?;
        let mut answers =
            reply.rows.iter().map(decode::answer).collect::<Result<Vec<_>, _>>().map_err(Failure::error)?;
        let Some(answer) = answers.pop() else {
            return Err(Failure::new(FailureKind::Unanswered, "postgres did not answer what it evicted").error());
        };
        for hint in answer.hints {
            self.hints.send(hint);
        }
        answer.verdict.and_then(Verdict::evicted).map_err(Failure::error)
    }

    async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        let (exactly, prefix) = exact_and_prefix(&filter.names);
        let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
        let after = filter.after.as_ref().map(Resource::as_str);
        let parameters: &[Parameter<'_>] = &[
            (&self.instance.namespace, Type::TEXT),
            (&exactly, Type::TEXT),
            (&prefix, Type::TEXT),
            (&after, Type::TEXT),
            (&limit.saturating_add(1), Type::INT8),
        ];
        let reply = match filter.names {
            // One name takes no longer than a renewal: no other connection is opened for it.
            Names::Exactly(_) => self.router.call(Statement::List, parameters).await,
            _ => self.router.call_slow(Statement::List, parameters).await,
        }
        .map_err(Failure::error)?;
        let mut leases = decode::leases(&reply.rows).map_err(Failure::error)?;
        let mut names = 0;
        let mut last = None;
        let cut = leases.iter().position(|lease| {
            if last != Some(&lease.resource) {
                names += 1;
                if names > filter.limit {
                    return true;
                }
                last = Some(&lease.resource);
            }
            false
        });
        let next = cut.and(last.cloned());
        leases.truncate(cut.unwrap_or(leases.len()));
        Ok(LeasePage { leases, next })
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        let (exactly, prefix) = exact_and_prefix(&filter.names);
        let until = Some(filter.ended.end).filter(|end| *end < Timestamp::MAX).map(|end| long(end.as_micros()));
        let reply = self
            .router
            .call_slow(
                Statement::History,
                &[
                    (&self.instance.namespace, Type::TEXT),
                    (&exactly, Type::TEXT),
                    (&prefix, Type::TEXT),
                    (&filter.failures, Type::BOOL),
                    (&long(filter.ended.start.as_micros()), Type::INT8),
                    (&until, Type::INT8),
                    (&i64::try_from(filter.limit).unwrap_or(i64::MAX), Type::INT8),
                ],
            )
            .await
            .map_err(Failure::error)?;
        reply.rows.iter().map(decode::ended).collect::<Result<_, _>>().map_err(Failure::error)
    }

    async fn record_runs(&self, reports: &[RunReport]) -> Result<()> {
        let mut reports: Vec<&RunReport> = reports.iter().collect();
        reports.sort_by(|one, other| one.resource.as_str().cmp(other.resource.as_str()));
        let names: Vec<&str> = reports.iter().map(|report| report.resource.as_str()).collect();
        let skips: Vec<i64> = reports.iter().map(|report| long(report.skips)).collect();
        let held_by: Vec<Option<&str>> =
            reports.iter().map(|report| report.held_by.as_ref().map(Holder::as_str)).collect();
        let successes: Vec<bool> = reports.iter().map(|report| report.success).collect();
        let max_names = i32::try_from(RunTable::MAX_NAMES).unwrap_or(i32::MAX);
        self.router
            .call_blocking(
                &[],
                Statement::RecordRuns,
                &[
                    (&self.instance.namespace, Type::TEXT),
                    (&long(micros(RunTable::KEPT)), Type::INT8),
                    (&max_names, Type::INT4),
                    (&names, Type::TEXT_ARRAY),
                    (&skips, Type::INT8_ARRAY),
                    (&held_by, Type::TEXT_ARRAY),
                    (&successes, Type::BOOL_ARRAY),
                ],
            )
            .await
            .map(drop)
            .map_err(Failure::error)
    }

    async fn runs(&self, names: &Names) -> Result<Vec<RunRecord>> {
        let (exactly, prefix) = exact_and_prefix(names);
        let reply = self
            .router
            .call_slow(
                Statement::Runs,
                &[
                    (&self.instance.namespace, Type::TEXT),
                    (&long(micros(RunTable::KEPT)), Type::INT8),
                    (&exactly, Type::TEXT),
                    (&prefix, Type::TEXT),
                ],
            )
            .await
            .map_err(Failure::error)?;
        reply.rows.iter().map(decode::run).collect::<Result<_, _>>().map_err(Failure::error)
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        let Some(listener) = &self.listener else {
            let message = format!(
                "the pooler at {} lets nobody listen; connect to the server itself",
                self.router.connector.address
            );
            return Err(Failure::new(FailureKind::Unsupported, message).error());
        };
        listener.watch(names).await.map_err(Failure::error)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::examine(&self.router).await.map_err(Failure::error)
    }
}

fn exact_and_prefix(names: &Names) -> (Option<&str>, Option<&str>) {
    match names {
        Names::All => (None, None),
        Names::Prefix(prefix) => (None, Some(prefix)),
        Names::Exactly(resource) => (Some(resource.as_str()), None),
    }
}
