//! Renewing: everything at every node in one call each, and what the nodes answer together.

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    RedlockShared,
    leases::{LeasePhase, RoundLock, Tracked, tagged},
    queue::{self, Progress},
    release,
    repair::{self, Missing},
    round::Round,
    vote::{QueueNodeCall, most_common},
};
use crate::{
    Error, Result,
    backend::Backend,
    lease::{Decision, Fence, Grant, Moment, Outcome, Patience, Renewal, Standing},
};

/// What to do about one renewal.
enum RenewalPlan {
    /// Renew on all nodes: it holds, or was asked for elsewhere.
    All(Option<Arc<Tracked>>),
    /// Renew at its queue node; no round for it may run meanwhile.
    AtQueue { tracked: Arc<Tracked>, queue_node: usize, round_lock: RoundLock },
    /// The lease is over, even if some nodes still have it.
    Over(Arc<Tracked>),
}

/// How one lease stands on each node.
type Standings = Vec<(usize, Standing)>;

pub(super) async fn renew(shared: &Arc<RedlockShared>, renewals: Vec<Renewal>) -> Result<Vec<Standing>> {
    let (standings, discrepancies) = renew_everywhere(shared, renewals).await?;
    let mut missing = Vec::new();
    for discrepancy in discrepancies {
        match discrepancy {
            Discrepancy::Missing(one) => missing.push(one),
            Discrepancy::Leftover(tracked, at) => {
                for at in at {
                    release::later(shared, at, &tracked.key, &Outcome::Cancelled, tracked.ttl());
                }
            }
        }
    }
    repair::give_later(shared, missing);
    Ok(standings)
}

/// Asks for the standing of leases that were just added to more nodes.
pub(super) async fn confirm(shared: &Arc<RedlockShared>, renewals: Vec<Renewal>) -> Result<Vec<Standing>> {
    Ok(renew_everywhere(shared, renewals).await?.0)
}

/// Nodes that have a lease and should not, or should have it and do not.
enum Discrepancy {
    Missing(Missing),
    /// What is left of a lease that is over.
    Leftover(Arc<Tracked>, Vec<usize>),
}

async fn renew_everywhere(
    shared: &Arc<RedlockShared>,
    renewals: Vec<Renewal>,
) -> Result<(Vec<Standing>, Vec<Discrepancy>)> {
    let since = shared.nodes.clock().now();
    for renewal in &renewals {
        shared.nodes.options().check_ttl(renewal.ttl, &renewal.key.resource)?;
    }
    let renewals: Vec<Renewal> = renewals.into_iter().map(tagged).collect();
    let plans = make_plans(shared, &renewals).await;
    let (answers, failures) = ask_nodes(shared, &renewals, &plans).await;
    if failures.len() + shared.nodes.majority() > shared.nodes.len() {
        return Err(Error::unanswered(shared.nodes.message("renewing on redlock", &failures)));
    }

    let mut standings = vec![Standing::Unknown; renewals.len()];
    let mut rest = FuturesUnordered::new();
    let mut discrepancies = Vec::new();
    for (index, (plan, answers)) in plans.into_iter().zip(answers).enumerate() {
        let (shared, renewal) = (Arc::clone(shared), &renewals[index]);
        match plan {
            RenewalPlan::All(tracked) if renewal.fence_floor.is_none() => {
                standings[index] = merge(&shared, tracked.as_deref(), &answers);
                discrepancies.extend(
                    tracked.and_then(|tracked| discrepancy(&shared, tracked, standings[index], &answers, since)),
                );
            }
            RenewalPlan::All(tracked) => {
                let raise = async move { (index, raised(&shared, tracked, &answers).await) };
                rest.push(Box::pin(raise) as Rest);
            }
            RenewalPlan::Over(tracked) => {
                shared.leases.forget(&tracked);
                standings[index] = Standing::Gone;
            }
            RenewalPlan::AtQueue { tracked, queue_node, round_lock } => rest.push(Box::pin(async move {
                (index, look_after_position(&shared, &tracked, queue_node, round_lock, &answers).await)
            })),
        }
    }
    while let Some((index, standing)) = rest.next().await {
        standings[index] = standing;
    }
    Ok((standings, discrepancies))
}

type Rest = Pin<Box<dyn Future<Output = (usize, Standing)> + Send>>;

fn discrepancy(
    shared: &RedlockShared,
    tracked: Arc<Tracked>,
    standing: Standing,
    answers: &Standings,
    since: Moment,
) -> Option<Discrepancy> {
    let nodes = &shared.nodes;
    let (mut holding, mut gone) = (Vec::new(), Vec::new());
    for (at, standing) in answers {
        match standing {
            Standing::Holding(_) => {
                tracked.on_asked(*at);
                holding.push(*at);
            }
            Standing::Gone => gone.push(*at),
            Standing::Waiting(_) | Standing::Unknown => {}
        }
    }
    let is_held = match standing {
        Standing::Holding(_) => true,
        // A majority granted it, and those that do not answer have it still: whoever else is granted it needs one of them.
        Standing::Unknown => holding.len() + nodes.len() - answers.len() >= nodes.majority(),
        Standing::Gone => return (!holding.is_empty()).then_some(Discrepancy::Leftover(tracked, holding)),
        Standing::Waiting(_) => false,
    };
    (is_held && !gone.is_empty()).then_some(Discrepancy::Missing(Missing { tracked, at: gone, since }))
}

/// Decides for each what to do. Round locks are taken in the order of ids, so that two calls never
/// wait for each other.
async fn make_plans(shared: &Arc<RedlockShared>, renewals: &[Renewal]) -> Vec<RenewalPlan> {
    let now = shared.nodes.clock().now();
    let mut in_order: Vec<usize> = (0..renewals.len()).collect();
    in_order.sort_by_key(|index| renewals[*index].key.id);
    let mut plans = BTreeMap::new();
    for index in in_order {
        let renewal = &renewals[index];
        let tracked = shared.leases.get(renewal.key.id);
        if let Some(tracked) = &tracked {
            tracked.apply(renewal, now);
        }
        let plan = match tracked {
            Some(tracked) if matches!(tracked.phase(), LeasePhase::New | LeasePhase::Waiting { .. }) => {
                let round_lock = tracked.lock_round().await;
                match tracked.phase() {
                    LeasePhase::Waiting { queue_node } => RenewalPlan::AtQueue { tracked, queue_node, round_lock },
                    LeasePhase::New | LeasePhase::Ended => RenewalPlan::Over(tracked),
                    LeasePhase::Holding { .. } => RenewalPlan::All(Some(tracked)),
                }
            }
            Some(tracked) if tracked.phase() == LeasePhase::Ended => RenewalPlan::Over(tracked),
            tracked => RenewalPlan::All(tracked),
        };
        plans.insert(index, plan);
    }
    plans.into_values().collect()
}

/// One call to each node with everything that concerns it.
async fn ask_nodes(
    shared: &Arc<RedlockShared>,
    renewals: &[Renewal],
    plans: &[RenewalPlan],
) -> (Vec<Standings>, Vec<(usize, Error)>) {
    let concerned_at = |at: usize| -> Vec<usize> {
        let concerns = |plan: &RenewalPlan| match plan {
            RenewalPlan::All(_) => true,
            RenewalPlan::AtQueue { queue_node, .. } => *queue_node == at,
            RenewalPlan::Over(_) => false,
        };
        (0..plans.len()).filter(|index| concerns(&plans[*index])).collect()
    };
    let concerned: Vec<Vec<usize>> = (0..shared.nodes.len()).map(concerned_at).collect();
    let asked = (0..concerned.len()).filter(|at| !concerned[*at].is_empty());
    let renew = |at: usize, backend: Arc<dyn Backend>| {
        let batch: Vec<Renewal> = concerned[at].iter().map(|index| renewals[*index].clone()).collect();
        async move { backend.renew(&batch).await }
    };
    let mut standings: Vec<Standings> = plans.iter().map(|_| Vec::new()).collect();
    let mut failures = Vec::new();
    for (at, answer) in shared.nodes.ask_each_at(asked, renew).await {
        match answer {
            Ok(of_node) => {
                for (index, standing) in concerned[at].iter().zip(of_node) {
                    standings[*index].push((at, standing));
                }
            }
            Err(error) => failures.push((at, error)),
        }
    }
    (standings, failures)
}

/// How a lease stands that is renewed on all nodes.
fn merge(shared: &RedlockShared, tracked: Option<&Tracked>, answers: &Standings) -> Standing {
    let nodes = &shared.nodes;
    let holding = |(at, standing): &(usize, Standing)| match standing {
        Standing::Holding(grant) => Some((*at, *grant)),
        _ => None,
    };
    let grants: Vec<(usize, Grant)> = answers.iter().filter_map(holding).collect();
    let counts = |at: usize| tracked.map_or_else(|| nodes.votes(at), |tracked| nodes.votes_for(tracked, at));
    let votes: Vec<Fence> = grants.iter().filter(|(at, _)| counts(*at)).map(|(_, grant)| grant.fence).collect();
    if votes.len() >= nodes.majority() {
        let known = tracked.and_then(|tracked| match tracked.phase() {
            LeasePhase::Holding { grant, .. } => Some(grant),
            _ => None,
        });
        let reported = || {
            let fence = most_common(&votes).map(|(fence, _)| fence).unwrap_or_default();
            let acquired_at = grants.first().map(|(_, grant)| grant.acquired_at).unwrap_or_default();
            Grant { fence, acquired_at }
        };
        return Standing::Holding(known.unwrap_or_else(reported));
    }
    let waiting = answers.iter().find_map(|(_, standing)| match standing {
        Standing::Waiting(position) => Some(*position),
        _ => None,
    });
    if let (Some(position), None) = (waiting, tracked) {
        return Standing::Waiting(position);
    }
    let gone = answers.iter().filter(|(_, standing)| matches!(standing, Standing::Gone | Standing::Waiting(_))).count();
    if gone + nodes.majority() <= nodes.len() {
        return Standing::Unknown;
    }
    if let Some(tracked) = tracked {
        shared.leases.forget(tracked);
    }
    Standing::Gone
}

/// Like [`merge`], for a renewal with a fence floor: if only some nodes raised the fence, makes a majority agree on one.
async fn raised(shared: &Arc<RedlockShared>, tracked: Option<Arc<Tracked>>, answers: &Standings) -> Standing {
    let standing = merge(shared, tracked.as_deref(), answers);
    let (Standing::Holding(grant), Some(tracked)) = (standing, tracked) else {
        return merge(shared, None, answers);
    };
    let LeasePhase::Holding { queue_node, .. } = tracked.phase() else { return standing };
    match Round::of_holders(shared, &tracked, queue_node, answers).agree().await {
        Some(fence) => {
            let grant = Grant { fence, ..grant };
            tracked.set_phase(LeasePhase::Holding { grant, queue_node });
            Standing::Holding(grant)
        }
        None => Standing::Unknown,
    }
}

/// A lease that waits: if its queue node granted it, completes the quorum first.
async fn look_after_position(
    shared: &Arc<RedlockShared>,
    tracked: &Arc<Tracked>,
    queue_node: usize,
    round_lock: RoundLock,
    answers: &Standings,
) -> Standing {
    let (queue_node, queue_node_call) = match answers.first() {
        Some((_, Standing::Waiting(position))) => return Standing::Waiting(*position),
        Some((_, Standing::Gone)) => {
            shared.leases.forget(tracked);
            return Standing::Gone;
        }
        Some((_, Standing::Holding(grant))) => (queue_node, QueueNodeCall::HandedOver(grant.fence)),
        Some((_, Standing::Unknown)) | None => match queue::ask_first(shared, tracked, Patience::Queue).await {
            Ok((queue_node, Decision::Granted(grant))) => (queue_node, QueueNodeCall::Granted(grant)),
            Ok((_, Decision::Queued(position))) => return Standing::Waiting(position),
            Ok((_, Decision::Busy(_) | Decision::WrongShape { .. })) => {
                shared.leases.forget(tracked);
                return Standing::Gone;
            }
            Err(_) => return Standing::Unknown,
        },
    };
    match queue::complete(shared, tracked, queue_node, queue_node_call, round_lock).await {
        Progress::Granted(grant) => Standing::Holding(grant),
        Progress::Waiting(position) => Standing::Waiting(position),
        Progress::NotYet(position) => {
            queue::complete_after_pause(shared, tracked, Fence::new(position.last_fence.get() + 1));
            Standing::Waiting(position)
        }
        Progress::Gone => Standing::Gone,
    }
}
