//! Renewing: everything at every node in one call each, and what the nodes say together.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Shared,
    fan::Fan,
    leases::{Phase, Tracked, Turn},
    pursuit::Pursuit,
    release,
    restore::{self, Missing},
    said::most_common,
    tag,
    waiting::{self, Placed, Progress},
};
use crate::{
    Error, Result,
    lease::{Fence, Grant, Outcome, Renewal, Standing},
};

/// What to do about one renewal.
enum Course {
    /// Renew on all nodes: it holds, or was asked for elsewhere.
    All(Option<Arc<Tracked>>),
    /// Renew at the node in whose queue it waits; no round for it may run meanwhile.
    Place { tracked: Arc<Tracked>, queue: usize, turn: Turn },
    /// It is over, whatever some nodes have not heard of yet.
    Over(Arc<Tracked>),
}

/// What the nodes said about one lease.
type Standings = Vec<(usize, Standing)>;

pub(super) async fn renew(shared: &Arc<Shared>, renewals: Vec<Renewal>) -> Result<Vec<Standing>> {
    for renewal in &renewals {
        shared.nodes.options().check_ttl(renewal.ttl, &renewal.key.resource)?;
    }
    let renewals: Vec<Renewal> = renewals.iter().map(tag::tagged_renewal).collect();
    let courses = set_courses(shared, &renewals).await;
    let (answers, failures) = ask_nodes(shared, &renewals, &courses).await;
    if failures.len() + shared.nodes.majority() > shared.nodes.len() {
        return Err(Error::unanswered(shared.nodes.words("renewing on redlock", &failures)));
    }

    let mut standings = vec![Standing::Unknown; renewals.len()];
    let mut rest = Fan::new();
    let mut missing = Vec::new();
    for (index, (course, said)) in courses.into_iter().zip(answers).enumerate() {
        let (shared, renewal) = (Arc::clone(shared), renewals[index].clone());
        match course {
            Course::All(tracked) if renewal.fence_floor.is_none() => {
                standings[index] = merge(&shared, tracked.as_deref(), &said);
                missing.extend(tracked.and_then(|tracked| look_for_gaps(&shared, &tracked, standings[index], &said)));
            }
            Course::All(tracked) => rest.add(index, async move { raised(&shared, tracked, &said).await }),
            Course::Over(tracked) => {
                shared.leases.forget(&tracked);
                standings[index] = Standing::Gone;
            }
            Course::Place { tracked, queue, turn } => {
                rest.add(index, async move { look_after_place(&shared, &tracked, queue, turn, &said).await });
            }
        }
    }
    restore::later(shared, missing);
    for (index, standing) in rest.all().await {
        standings[index] = standing;
    }
    Ok(standings)
}

/// Where a lease that is held is to be put back; what is left of one that is over is freed.
fn look_for_gaps(
    shared: &Arc<Shared>,
    tracked: &Arc<Tracked>,
    standing: Standing,
    said: &Standings,
) -> Option<Missing> {
    let nodes_where = |is_so: fn(&Standing) -> bool| -> Vec<usize> {
        said.iter().filter(|(_, standing)| is_so(standing)).map(|(at, _)| *at).collect()
    };
    match standing {
        Standing::Holding(_) => {
            let at = nodes_where(|standing| matches!(standing, Standing::Gone));
            (!at.is_empty()).then(|| Missing { tracked: Arc::clone(tracked), at })
        }
        Standing::Gone => {
            for at in nodes_where(|standing| matches!(standing, Standing::Holding(_))) {
                release::owe(shared, at, &tracked.key, &Outcome::Cancelled, tracked.ttl());
            }
            None
        }
        Standing::Waiting(_) | Standing::Unknown => None,
    }
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
            Some(tracked) if matches!(tracked.phase(), Phase::Asked | Phase::Waiting { .. }) => {
                let turn = tracked.turn().await;
                match tracked.phase() {
                    Phase::Waiting { queue } => Course::Place { tracked, queue, turn },
                    Phase::Asked | Phase::Ended => Course::Over(tracked),
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
    let limit = shared.nodes.limit();
    let mut fan = Fan::new();
    for (at, node) in shared.nodes.iter().enumerate() {
        let concerns = |course: &Course| match course {
            Course::All(_) => true,
            Course::Place { queue, .. } => *queue == at,
            Course::Over(_) => false,
        };
        let indices: Vec<usize> = (0..courses.len()).filter(|index| concerns(&courses[*index])).collect();
        let batch: Vec<Renewal> = indices.iter().map(|index| renewals[*index].clone()).collect();
        let node = Arc::clone(node);
        fan.add(at, async move {
            if batch.is_empty() {
                return Ok((indices, Vec::new()));
            }
            node.ask(limit, node.backend.renew(&batch)).await.map(|standings| (indices, standings))
        });
    }
    let mut said: Vec<Standings> = courses.iter().map(|_| Vec::new()).collect();
    let mut failures = Vec::new();
    for (at, answer) in fan.all().await {
        match answer {
            Ok((indices, standings)) => {
                for (index, standing) in indices.into_iter().zip(standings) {
                    said[index].push((at, standing));
                }
            }
            Err(error) => failures.push((at, error)),
        }
    }
    (said, failures)
}

/// What the nodes say together about a lease that is renewed on all of them.
fn merge(shared: &Shared, tracked: Option<&Tracked>, said: &Standings) -> Standing {
    let nodes = &shared.nodes;
    let holding = |(at, standing): &(usize, Standing)| match standing {
        Standing::Holding(grant) => Some((*at, *grant)),
        _ => None,
    };
    let grants: Vec<(usize, Grant)> = said.iter().filter_map(holding).collect();
    let votes: Vec<Fence> = grants.iter().filter(|(at, _)| nodes.votes(*at)).map(|(_, grant)| grant.fence).collect();
    if votes.len() >= nodes.majority() {
        let known = tracked.and_then(|tracked| match tracked.phase() {
            Phase::Holding { grant, .. } => Some(grant),
            _ => None,
        });
        let told = || {
            let fence = most_common(&votes).map(|(fence, _)| fence).unwrap_or_default();
            let acquired_at = grants.first().map(|(_, grant)| grant.acquired_at).unwrap_or_default();
            Grant { fence, acquired_at }
        };
        return Standing::Holding(known.unwrap_or_else(told));
    }
    let waiting = said.iter().find_map(|(_, standing)| match standing {
        Standing::Waiting(place) => Some(*place),
        _ => None,
    });
    if let (Some(place), None) = (waiting, tracked) {
        return Standing::Waiting(place);
    }
    let gone = said.iter().filter(|(_, standing)| matches!(standing, Standing::Gone | Standing::Waiting(_))).count();
    if gone + nodes.majority() <= nodes.len() {
        return Standing::Unknown;
    }
    if let Some(tracked) = tracked {
        shared.leases.forget(tracked);
    }
    Standing::Gone
}

/// The same for one that was renewed with a floor: its fence is made one again where only some took the floor.
async fn raised(shared: &Arc<Shared>, tracked: Option<Arc<Tracked>>, said: &Standings) -> Standing {
    let standing = merge(shared, tracked.as_deref(), said);
    let (Standing::Holding(grant), Some(tracked)) = (standing, tracked) else {
        return merge(shared, None, said);
    };
    let Phase::Holding { queue, .. } = tracked.phase() else { return standing };
    match Pursuit::of_holders(shared, &tracked, queue, said).agree().await {
        Some(fence) => {
            let grant = Grant { fence, ..grant };
            tracked.enter(Phase::Holding { grant, queue });
            Standing::Holding(grant)
        }
        None => Standing::Unknown,
    }
}

/// A lease that waits: if it has come to hold where it waits, the quorum is completed before that is told.
async fn look_after_place(
    shared: &Arc<Shared>,
    tracked: &Arc<Tracked>,
    queue: usize,
    turn: Turn,
    said: &Standings,
) -> Standing {
    let placed = match said.first() {
        Some((_, Standing::Waiting(place))) => return Standing::Waiting(*place),
        Some((_, Standing::Gone)) => {
            shared.leases.forget(tracked);
            return Standing::Gone;
        }
        Some((_, Standing::Holding(grant))) => Ok(Placed::Head { queue, fence: grant.fence }),
        Some((_, Standing::Unknown)) | None => waiting::take_place(shared, tracked).await,
    };
    match placed {
        Ok(Placed::Head { queue, fence }) => match waiting::complete(shared, tracked, queue, fence, turn).await {
            Progress::Granted(grant) => Standing::Holding(grant),
            Progress::Waiting(place) => Standing::Waiting(place),
            Progress::NotYet(place) => {
                waiting::drive_later(shared, tracked, fence);
                Standing::Waiting(place)
            }
            Progress::Gone => Standing::Gone,
        },
        Ok(Placed::Queued { place }) => Standing::Waiting(place),
        Ok(Placed::Refused(_)) => {
            shared.leases.forget(tracked);
            Standing::Gone
        }
        Err(_) => Standing::Unknown,
    }
}
