//! Renewing: everything at every node in one call each, and what the nodes answer together.

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    Shared,
    leases::{Phase, Tracked, Turn, tagged},
    queue::{self, Progress},
    release,
    repair::{self, Missing},
    round::Round,
    vote::{Entry, most_common},
};
use crate::{
    Error, Result,
    backend::Backend,
    lease::{Decision, Fence, Grant, Moment, Outcome, Patience, Renewal, Standing},
};

/// What to do about one renewal.
enum Course {
    /// Renew on all nodes: it holds, or was asked for elsewhere.
    All(Option<Arc<Tracked>>),
    /// Renew at the node in whose queue it waits; no round for it may run meanwhile.
    AtQueue { tracked: Arc<Tracked>, queue: usize, turn: Turn },
    /// It is over, even if some nodes still have it.
    Over(Arc<Tracked>),
}

/// How one lease stands on each node.
type Standings = Vec<(usize, Standing)>;

pub(super) async fn renew(shared: &Arc<Shared>, renewals: Vec<Renewal>) -> Result<Vec<Standing>> {
    let (standings, gaps) = renew_everywhere(shared, renewals).await?;
    let mut missing = Vec::new();
    for gap in gaps {
        match gap {
            Gap::Missing(one) => missing.push(one),
            Gap::Left(tracked, at) => {
                for at in at {
                    release::later(shared, at, &tracked.key, &Outcome::Cancelled, tracked.ttl());
                }
            }
        }
    }
    repair::give_later(shared, missing);
    Ok(standings)
}

/// Finds out how leases stand that were just given to more nodes.
pub(super) async fn confirm(shared: &Arc<Shared>, renewals: Vec<Renewal>) -> Result<Vec<Standing>> {
    Ok(renew_everywhere(shared, renewals).await?.0)
}

/// Nodes that have a lease and should not, or should have it and do not.
enum Gap {
    Missing(Missing),
    /// What is left of a lease that is over.
    Left(Arc<Tracked>, Vec<usize>),
}

async fn renew_everywhere(shared: &Arc<Shared>, renewals: Vec<Renewal>) -> Result<(Vec<Standing>, Vec<Gap>)> {
    let since = shared.nodes.clock().now();
    for renewal in &renewals {
        shared.nodes.options().check_ttl(renewal.ttl, &renewal.key.resource)?;
    }
    let renewals: Vec<Renewal> = renewals.into_iter().map(tagged).collect();
    let courses = set_courses(shared, &renewals).await;
    let (answers, failures) = ask_nodes(shared, &renewals, &courses).await;
    if failures.len() + shared.nodes.majority() > shared.nodes.len() {
        return Err(Error::unanswered(shared.nodes.message("renewing on redlock", &failures)));
    }

    let mut standings = vec![Standing::Unknown; renewals.len()];
    let mut rest = FuturesUnordered::new();
    let mut gaps = Vec::new();
    for (index, (course, answers)) in courses.into_iter().zip(answers).enumerate() {
        let (shared, renewal) = (Arc::clone(shared), &renewals[index]);
        match course {
            Course::All(tracked) if renewal.fence_floor.is_none() => {
                standings[index] = merge(&shared, tracked.as_deref(), &answers);
                gaps.extend(tracked.and_then(|tracked| gap(&shared, tracked, standings[index], &answers, since)));
            }
            Course::All(tracked) => {
                let raise = async move { (index, raised(&shared, tracked, &answers).await) };
                rest.push(Box::pin(raise) as Rest);
            }
            Course::Over(tracked) => {
                shared.leases.forget(&tracked);
                standings[index] = Standing::Gone;
            }
            Course::AtQueue { tracked, queue, turn } => rest.push(Box::pin(async move {
                (index, look_after_position(&shared, &tracked, queue, turn, &answers).await)
            })),
        }
    }
    while let Some((index, standing)) = rest.next().await {
        standings[index] = standing;
    }
    Ok((standings, gaps))
}

type Rest = Pin<Box<dyn Future<Output = (usize, Standing)> + Send>>;

fn gap(shared: &Shared, tracked: Arc<Tracked>, standing: Standing, answers: &Standings, since: Moment) -> Option<Gap> {
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
        Standing::Gone => return (!holding.is_empty()).then_some(Gap::Left(tracked, holding)),
        Standing::Waiting(_) => false,
    };
    (is_held && !gone.is_empty()).then_some(Gap::Missing(Missing { tracked, at: gone, since }))
}

/// Decides for each what to do. Turns are taken in the order of ids, so that two calls never wait for each other.
async fn set_courses(shared: &Arc<Shared>, renewals: &[Renewal]) -> Vec<Course> {
    let now = shared.nodes.clock().now();
    let mut in_order: Vec<usize> = (0..renewals.len()).collect();
    in_order.sort_by_key(|index| renewals[*index].key.id);
    let mut courses = BTreeMap::new();
    for index in in_order {
        let renewal = &renewals[index];
        let tracked = shared.leases.get(renewal.key.id);
        if let Some(tracked) = &tracked {
            tracked.apply(renewal, now);
        }
        let course = match tracked {
            Some(tracked) if matches!(tracked.phase(), Phase::New | Phase::Waiting { .. }) => {
                let turn = tracked.turn().await;
                match tracked.phase() {
                    Phase::Waiting { queue } => Course::AtQueue { tracked, queue, turn },
                    Phase::New | Phase::Ended => Course::Over(tracked),
                    Phase::Holding { .. } => Course::All(Some(tracked)),
                }
            }
            Some(tracked) if tracked.phase() == Phase::Ended => Course::Over(tracked),
            tracked => Course::All(tracked),
        };
        courses.insert(index, course);
    }
    courses.into_values().collect()
}

/// One call to each node with everything that concerns it.
async fn ask_nodes(
    shared: &Arc<Shared>,
    renewals: &[Renewal],
    courses: &[Course],
) -> (Vec<Standings>, Vec<(usize, Error)>) {
    let concerned_at = |at: usize| -> Vec<usize> {
        let concerns = |course: &Course| match course {
            Course::All(_) => true,
            Course::AtQueue { queue, .. } => *queue == at,
            Course::Over(_) => false,
        };
        (0..courses.len()).filter(|index| concerns(&courses[*index])).collect()
    };
    let concerned: Vec<Vec<usize>> = (0..shared.nodes.len()).map(concerned_at).collect();
    let asked = (0..concerned.len()).filter(|at| !concerned[*at].is_empty());
    let renew = |at: usize, backend: Arc<dyn Backend>| {
        let batch: Vec<Renewal> = concerned[at].iter().map(|index| renewals[*index].clone()).collect();
        async move { backend.renew(&batch).await }
    };
    let mut standings: Vec<Standings> = courses.iter().map(|_| Vec::new()).collect();
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
fn merge(shared: &Shared, tracked: Option<&Tracked>, answers: &Standings) -> Standing {
    let nodes = &shared.nodes;
    let holding = |(at, standing): &(usize, Standing)| match standing {
        Standing::Holding(grant) => Some((*at, *grant)),
        _ => None,
    };
    let grants: Vec<(usize, Grant)> = answers.iter().filter_map(holding).collect();
    let votes: Vec<Fence> = grants.iter().filter(|(at, _)| nodes.votes(*at)).map(|(_, grant)| grant.fence).collect();
    if votes.len() >= nodes.majority() {
        let known = tracked.and_then(|tracked| match tracked.phase() {
            Phase::Holding { grant, .. } => Some(grant),
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
        Standing::Waiting(place) => Some(*place),
        _ => None,
    });
    if let (Some(place), None) = (waiting, tracked) {
        return Standing::Waiting(place);
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

/// The same for one that was renewed with a floor: its fence is made one again where only some took the floor.
async fn raised(shared: &Arc<Shared>, tracked: Option<Arc<Tracked>>, answers: &Standings) -> Standing {
    let standing = merge(shared, tracked.as_deref(), answers);
    let (Standing::Holding(grant), Some(tracked)) = (standing, tracked) else {
        return merge(shared, None, answers);
    };
    let Phase::Holding { queue, .. } = tracked.phase() else { return standing };
    match Round::of_holders(shared, &tracked, queue, answers).agree().await {
        Some(fence) => {
            let grant = Grant { fence, ..grant };
            tracked.enter(Phase::Holding { grant, queue });
            Standing::Holding(grant)
        }
        None => Standing::Unknown,
    }
}

/// A lease that waits: if it holds at the node it waits at, completes the quorum first.
async fn look_after_position(
    shared: &Arc<Shared>,
    tracked: &Arc<Tracked>,
    queue: usize,
    turn: Turn,
    answers: &Standings,
) -> Standing {
    let (queue, entry) = match answers.first() {
        Some((_, Standing::Waiting(position))) => return Standing::Waiting(*position),
        Some((_, Standing::Gone)) => {
            shared.leases.forget(tracked);
            return Standing::Gone;
        }
        Some((_, Standing::Holding(grant))) => (queue, Entry::HandedOver(grant.fence)),
        Some((_, Standing::Unknown)) | None => match queue::ask_first(shared, tracked, Patience::Queue).await {
            Ok((queue, Decision::Granted(grant))) => (queue, Entry::Granted(grant)),
            Ok((_, Decision::Queued(position))) => return Standing::Waiting(position),
            Ok((_, Decision::Busy(_) | Decision::WrongShape { .. })) => {
                shared.leases.forget(tracked);
                return Standing::Gone;
            }
            Err(_) => return Standing::Unknown,
        },
    };
    match queue::complete(shared, tracked, queue, entry, turn).await {
        Progress::Granted(grant) => Standing::Holding(grant),
        Progress::Waiting(position) => Standing::Waiting(position),
        Progress::NotYet(position) => {
            queue::drive_later(shared, tracked, Fence::new(position.last_fence.get() + 1));
            Standing::Waiting(position)
        }
        Progress::Gone => Standing::Gone,
    }
}
