//! Renews leases, those of each partition by calls of their own, so that a server that hangs hardly delays the others.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redis::Cmd;
use tokio::{task::JoinSet, time};

use super::{
    batches::numbered,
    connection::Reply,
    decode::{self, FastAnswer},
    encode,
    keys::Partition,
    ops::Shared,
    scripts::{self, ScriptCall},
};
use crate::{
    Error, Result,
    lease::{Answer, Fence, Renewal, Standing, micros},
};

/// After the first answer, wait at most `answer_limit` / this for each further one, so that a hanging server does not
/// make leases elsewhere expire.
const LATE_ANSWER_DIVISOR: u32 = 4;

/// Renewals of one partition, and their indices in the call.
#[derive(Default)]
struct PartitionRenewals {
    indices: Vec<usize>,
    renewals: Vec<Renewal>,
}

impl Shared {
    /// Renews in all partitions at once. A server that hangs delays the leases of others by `answer_limit` /
    /// `LATE_ANSWER_DIVISOR` at most.
    pub(super) async fn renew_in_partitions(self: &Arc<Self>, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let mut by_partition: BTreeMap<u16, PartitionRenewals> = BTreeMap::new();
        for (at, renewal) in renewals.iter().enumerate() {
            let of_partition = by_partition.entry(self.keys.of(&renewal.key.resource).number).or_default();
            of_partition.indices.push(at);
            of_partition.renewals.push(renewal.clone());
        }
        let mut asking = JoinSet::new();
        for (number, PartitionRenewals { indices, renewals }) in by_partition {
            let instance = Arc::clone(self);
            let ask = async move {
                let partition = &instance.keys.all()[usize::from(number)];
                (indices, instance.renew_in(partition, &renewals).await)
            };
            asking.spawn_on(ask, &self.runtime);
        }
        let mut standings = vec![Standing::Unknown; renewals.len()];
        let (mut incarnation, mut failed) = (None, None);
        loop {
            let limit = match incarnation {
                None => Duration::MAX,
                Some(_) => self.options.answer_limit / LATE_ANSWER_DIVISOR,
            };
            let Ok(next) = time::timeout(limit, asking.join_next()).await else {
                failed = Some(Error::unanswered("some servers of the cluster did not answer in time"));
                break;
            };
            match next {
                Some(Ok((indices, Ok(answer)))) => {
                    incarnation = Some(answer.incarnation);
                    indices.iter().zip(answer.value).for_each(|(at, standing)| standings[*at] = standing);
                }
                Some(Ok((_, Err(error)))) => failed = Some(error),
                Some(Err(_)) => failed = Some(Error::unavailable("the runtime ends")),
                None => break,
            }
        }
        // Left to run to their limit: a late answer does no harm.
        asking.detach_all();
        match (incarnation, failed) {
            (Some(incarnation), failed) => {
                if let Some(error) = failed {
                    tracing::warn!(%error, "some leases were not renewed");
                }
                Ok(Answer::new(standings, incarnation))
            }
            (None, failed) => Err(failed.unwrap_or_else(|| Error::unavailable("no partition answered"))),
        }
    }

    /// Renews leases of one partition; returns how each of them stands. Fails only if no lease was decided.
    pub(super) async fn renew_in(
        self: &Arc<Self>,
        partition: &Partition,
        renewals: &[Renewal],
    ) -> Result<Answer<Vec<Standing>>> {
        // Chosen once: which names need the full script may change while the answers are on their way.
        let fast: Vec<usize> = (0..renewals.len())
            .filter(|&at| encode::only_moves_end(&renewals[at]) && !self.needs_full_script(&renewals[at].key.resource))
            .collect();
        let mut standings: Vec<Option<Standing>> = vec![None; renewals.len()];
        let mut incarnation = None;
        if !fast.is_empty() {
            let call = ScriptCall::new(&scripts::FAST_RENEW, &[&partition.names.leases], |command| {
                for renewal in fast.iter().map(|&at| &renewals[at]) {
                    command.arg(renewal.key.resource.as_str()).arg(encode::plain_renewal(renewal));
                }
            });
            let reply = self.run_renewal(partition, &call).await?;
            let answers = decode::fast_standings(&reply.value)?;
            for (at, answer) in fast.iter().copied().zip(answers) {
                match answer {
                    FastAnswer::Decided(standing) => standings[at] = Some(standing),
                    FastAnswer::NeedsFullScript => {}
                }
            }
            incarnation = Some(reply.incarnation);
        }
        let rest: Vec<usize> = (0..renewals.len()).filter(|at| standings[*at].is_none()).collect();
        if !rest.is_empty() {
            let left: Vec<&Renewal> = rest.iter().map(|at| &renewals[*at]).collect();
            match self.renew_by_full_script(partition, &left).await {
                Ok(answer) => {
                    for (at, standing) in rest.iter().zip(answer.value) {
                        standings[*at] = Some(standing);
                    }
                    incarnation = Some(answer.incarnation);
                }
                // The leases that the fast script has renewed must not be in doubt here.
                Err(error) if rest.len() < renewals.len() => {
                    tracing::warn!(%error, "some leases were not renewed");
                }
                Err(error) => return Err(error),
            }
        }
        let standings = standings.into_iter().map(|standing| standing.unwrap_or(Standing::Unknown)).collect();
        incarnation
            .map(|incarnation| Answer::new(standings, incarnation))
            .ok_or_else(|| Error::unavailable("no renewal"))
    }

    async fn renew_by_full_script(
        self: &Arc<Self>,
        partition: &Partition,
        renewals: &[&Renewal],
    ) -> Result<Answer<Vec<Standing>>> {
        let (resources, numbers) = numbered(renewals.iter().map(|renewal| &renewal.key.resource));
        let call = ScriptCall::for_resources(&scripts::RENEW, partition, &resources, |command| {
            for (renewal, number) in renewals.iter().zip(&numbers) {
                add_renewal(command, *number, renewal);
            }
        });
        let reply = self.run_renewal(partition, &call).await?;
        let (standings, work_is_left) = decode::standings(&reply.value, renewals.len(), &self.options)?;
        if work_is_left {
            self.settle(partition.number, resources.clone());
        }
        Ok(Answer::new(standings, reply.incarnation))
    }

    async fn run_renewal(&self, partition: &Partition, call: &ScriptCall<'_>) -> Result<Reply> {
        match &self.durable {
            None => self.router.run(partition, call, None).await,
            Some(durable) => durable.run_renewing(partition, call, &self.options).await,
        }
    }
}

fn add_renewal(command: &mut Cmd, number: usize, renewal: &Renewal) {
    command
        .arg(number)
        .arg(renewal.key.id.to_string())
        .arg(format!("{:013}", micros(renewal.ttl.get())))
        .arg(format!("{:016}", renewal.fence_floor.map_or(0, Fence::get)))
        .arg(renewal.downgrade.map(encode::claim).unwrap_or_default())
        .arg(renewal.metadata.as_ref().map(encode::metadata).unwrap_or_default());
}
