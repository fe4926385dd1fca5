//! Renews held leases in one statement, and everything else in a task of its own. A lease whose session this instance
//! abandoned counts as lost, even if the server still has it.

use std::{
    collections::{HashMap, HashSet},
    slice,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex as SyncMutex;
use tokio::{runtime::Handle, sync::Mutex, time::timeout};
use tokio_postgres::{Row, types::Type};

use super::{
    connection::{ConnectionRouter, Parameter, Reply},
    decode,
    encode::{ExtensionColumns, RenewalColumns},
    errors::{Failure, FailureKind},
    liveness::{DeadHolderPoller, Sessions},
    ops::InstanceParams,
    statements::Statement,
};
use crate::{
    backend::HintSender,
    lease::{Answer, Incarnation, LeaseId, Moment, Renewal, Resource, Standing},
};

/// How many leases are renewed in one statement that may block.
const EACH_BATCH: usize = 100;

/// The minimum timeout of a batch that may block, if no other renewal waits for its answer.
const MIN_BLOCKING_TIMEOUT: Duration = Duration::from_secs(1);

/// A name that was not renewed for this long is no longer remembered as locked.
const FORGET_LOCKED_AFTER: Duration = Duration::from_secs(60);

/// Renews leases; at most one batch that may block runs at a time.
#[derive(Debug)]
pub(super) struct Renewals {
    calls: Arc<RenewCalls>,
    one_at_a_time: Arc<Mutex<()>>,
    runtime: Handle,
}

/// The calls that renew, shared with the task for those that may wait for a lock.
#[derive(Debug)]
struct RenewCalls {
    router: Arc<ConnectionRouter>,
    instance: InstanceParams,
    hints: HintSender,
    dead_holder_poller: Arc<DeadHolderPoller>,
    /// Names whose rows another client had locked at the last renewal, with its time. Their rows are skipped while they
    /// are locked: waiting for them would delay the renewals of others.
    locked: SyncMutex<HashMap<Resource, Moment>>,
}

/// Whether a call waits for rows that others have locked, or leaves their leases out of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockedRows {
    Wait,
    Skip,
}

impl Renewals {
    pub(super) fn new(
        router: Arc<ConnectionRouter>,
        instance: InstanceParams,
        hints: HintSender,
        dead_holder_poller: Arc<DeadHolderPoller>,
    ) -> Self {
        let runtime = router.connector.runtime.clone();
        let calls = RenewCalls { router, instance, hints, dead_holder_poller, locked: SyncMutex::default() };
        Self { calls: Arc::new(calls), one_at_a_time: Arc::default(), runtime }
    }

    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        sessions: Sessions,
    ) -> Result<Answer<Vec<Standing>>, Failure> {
        let mut standings = vec![Standing::Unknown; renewals.len()];
        let mut pending: Vec<usize> = (0..renewals.len()).collect();
        let plain: Vec<usize> = pending.iter().copied().filter(|index| only_extends(&renewals[*index])).collect();
        let mut incarnation = None;
        if !plain.is_empty() {
            let renewed =
                self.calls.renew_by_renew_many(&sessions, plain.iter().map(|index| &renewals[*index])).await?;
            incarnation = Some(renewed.incarnation);
            for decode::AnswerRow { index, verdict, .. } in renewed.answers {
                if let (Some(index), Ok(verdict)) = (plain.get(index), verdict) {
                    standings[*index] = verdict.standing();
                    self.calls.record_standing(&renewals[*index], &standings[*index]);
                }
            }
            pending.retain(|index| standings[*index] == Standing::Unknown);
        }
        if !pending.is_empty() {
            // Renewals that another client's open transaction blocks must not delay the answer to those that are done.
            let limit = renewals.iter().map(|renewal| renewal.ttl.get()).min().unwrap_or_default() / 6;
            let limit = if pending.len() == renewals.len() { limit.max(MIN_BLOCKING_TIMEOUT) } else { limit };
            let blocking = pending.iter().map(|index| renewals[*index].clone()).collect();
            match timeout(limit, self.renew_blocking(blocking, sessions)).await {
                Ok(Ok((found, answered_by))) => {
                    incarnation = incarnation.or(answered_by);
                    for (index, standing) in pending.iter().zip(found) {
                        standings[*index] = standing;
                    }
                }
                Ok(Err(failure)) if incarnation.is_none() => return Err(failure),
                // These leases stay `Unknown`; the next renewal tries them again.
                _ => {}
            }
        }
        match incarnation {
            Some(incarnation) => Ok(Answer::new(standings, incarnation)),
            None => Ok(Answer::new(standings, self.calls.router.main().await?.server_info.incarnation)),
        }
    }

    /// One batch at a time, in a task of its own: a blocked statement outlives its caller, and others must not pile up
    /// behind it.
    async fn renew_blocking(
        &self,
        renewals: Vec<Renewal>,
        sessions: Sessions,
    ) -> Result<(Vec<Standing>, Option<Incarnation>), Failure> {
        let permit = Arc::clone(&self.one_at_a_time).lock_owned().await;
        let calls = Arc::clone(&self.calls);
        let task = self.runtime.spawn(async move {
            let renewed = calls.renew_in_chunks(&renewals, &sessions).await;
            drop(permit);
            renewed
        });
        task.await
            .unwrap_or_else(|_| Err(Failure::new(FailureKind::Unavailable, "the connection to postgres was closed")))
    }
}

impl RenewCalls {
    /// Renews any leases; rows that were locked at the last renewal are skipped while they are locked.
    async fn renew_in_chunks(
        &self,
        renewals: &[Renewal],
        sessions: &Sessions,
    ) -> Result<(Vec<Standing>, Option<Incarnation>), Failure> {
        let mut standings = vec![Standing::Unknown; renewals.len()];
        let mut incarnation = None;
        let (mut skipping, waiting): (Vec<usize>, Vec<usize>) =
            (0..renewals.len()).partition(|index| self.was_locked(&renewals[*index].key.resource));
        for chunk in waiting.chunks(EACH_BATCH) {
            match self.renew_chunk(renewals, chunk, LockedRows::Wait, sessions, &mut standings).await {
                Ok(now) => incarnation = Some(now),
                Err(failure) if !is_blocked(&failure) => return Err(failure),
                // One locked row fails the whole statement: retry, skipping locked rows.
                Err(_) => skipping.extend_from_slice(chunk),
            }
        }
        for chunk in skipping.chunks(EACH_BATCH) {
            match self.renew_chunk(renewals, chunk, LockedRows::Skip, sessions, &mut standings).await {
                Ok(now) => incarnation = Some(now),
                Err(failure) if !is_blocked(&failure) => return Err(failure),
                Err(_) => {
                    let found = self.renew_individually(renewals, chunk, sessions, &mut standings).await;
                    incarnation = incarnation.or(found);
                }
            }
            for index in chunk {
                self.record_locked(&renewals[*index].key.resource, standings[*index] == Standing::Unknown);
            }
        }
        Ok((standings, incarnation))
    }

    /// Renews leases one by one after their chunk was blocked although it skips locked rows: by something else, such as
    /// the reader lock of a name. Waits for that once for each name.
    async fn renew_individually(
        &self,
        renewals: &[Renewal],
        chunk: &[usize],
        sessions: &Sessions,
        standings: &mut [Standing],
    ) -> Option<Incarnation> {
        let mut incarnation = None;
        let mut blocked = HashSet::new();
        for index in chunk {
            let resource = &renewals[*index].key.resource;
            if blocked.contains(resource) {
                continue;
            }
            let one = slice::from_ref(index);
            match self.renew_chunk(renewals, one, LockedRows::Skip, sessions, standings).await {
                Ok(now) => incarnation = Some(now),
                Err(failure) if failure.kind == FailureKind::Locked => drop(blocked.insert(resource)),
                Err(_) => {}
            }
        }
        incarnation
    }

    fn was_locked(&self, resource: &Resource) -> bool {
        let locked = self.locked.lock();
        !locked.is_empty() && locked.contains_key(resource)
    }

    fn record_locked(&self, resource: &Resource, is_locked: bool) {
        let now = self.router.connector.options.clock.now();
        let mut locked = self.locked.lock();
        if is_locked {
            locked.retain(|_, seen| now.since(*seen) < FORGET_LOCKED_AFTER);
            locked.insert(resource.clone(), now);
        } else {
            locked.remove(resource);
        }
    }

    /// Renews those with these indices in one statement, and records how they stand.
    async fn renew_chunk(
        &self,
        renewals: &[Renewal],
        chunk: &[usize],
        locked_rows: LockedRows,
        sessions: &Sessions,
        standings: &mut [Standing],
    ) -> Result<Incarnation, Failure> {
        let chosen: Vec<&Renewal> = chunk.iter().map(|index| &renewals[*index]).collect();
        let Renewed { answers, incarnation } = self.renew_by_renew_each(sessions, &chosen, locked_rows).await?;
        for decode::AnswerRow { index, verdict, hints } in answers {
            for hint in hints {
                self.hints.send(hint);
            }
            if let (Some(renewal), Some(index), Ok(verdict)) = (chosen.get(index), chunk.get(index), verdict) {
                if verdict.is_behind_session() {
                    self.dead_holder_poller.watch_for(&renewal.key);
                }
                standings[*index] = verdict.standing();
                self.record_standing(renewal, &standings[*index]);
            }
        }
        Ok(incarnation)
    }

    fn record_standing(&self, renewal: &Renewal, standing: &Standing) {
        self.router.record_standing(renewal.key.id, standing, renewal.ttl);
    }

    /// Renews leases that hold by `renew_many`, which waits for no lock.
    async fn renew_by_renew_many<'a>(
        &self,
        sessions: &Sessions,
        renewals: impl Iterator<Item = &'a Renewal>,
    ) -> Result<Renewed, Failure> {
        let columns = ExtensionColumns::of(renewals);
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&self.instance.namespace, Type::TEXT),
            (&self.instance.channel, Type::TEXT),
            (&sessions.abandoned, Type::INT4_ARRAY),
        ];
        parameters.extend(columns.parameters());
        let reply = self.router.call(Statement::RenewMany, &parameters).await?;
        Renewed::from(&reply, decode::renewed)
    }

    /// Renews leases by `renew_each`.
    async fn renew_by_renew_each(
        &self,
        sessions: &Sessions,
        renewals: &[&Renewal],
        locked_rows: LockedRows,
    ) -> Result<Renewed, Failure> {
        // The call could delay some of these leases for the sake of another: a lease is exempt only if it is alone.
        let exempt: &[LeaseId] = if let [only] = renewals { &[only.key.id] } else { &[] };
        let waits = locked_rows == LockedRows::Wait;
        let columns = RenewalColumns::of(renewals);
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&self.instance.namespace, Type::TEXT),
            (&self.instance.channel, Type::TEXT),
            (&sessions.current, Type::INT4),
            (&sessions.abandoned, Type::INT4_ARRAY),
            (&self.instance.history, Type::CHAR),
        ];
        parameters.extend(columns.parameters());
        parameters.push((&waits, Type::BOOL));
        let reply = self.router.call_blocking(exempt, Statement::RenewEach, &parameters).await?;
        Renewed::from(&reply, decode::answer)
    }
}

/// The answers to one statement.
struct Renewed {
    answers: Vec<decode::AnswerRow>,
    incarnation: Incarnation,
}

impl Renewed {
    fn from(reply: &Reply, decode: fn(&Row) -> Result<decode::AnswerRow, Failure>) -> Result<Self, Failure> {
        let answers = reply.rows.iter().map(decode).collect::<Result<_, _>>()?;
        Ok(Self { answers, incarnation: reply.incarnation })
    }
}

/// Whether another client's lock was in the way.
fn is_blocked(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Locked | FailureKind::Conflict)
}

/// Whether it changes nothing but the expiry.
fn only_extends(renewal: &Renewal) -> bool {
    renewal.fence_floor.is_none() && renewal.downgrade.is_none() && renewal.metadata.is_none() && !renewal.detach
}
