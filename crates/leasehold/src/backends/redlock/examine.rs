//! What doctor sees: who is there, who votes, whose clock is off, who is listed twice.

use std::{sync::Arc, time::Duration};

use super::{Shared, fan::Fan, nodes::Nodes};
use crate::{
    Result,
    backend::{Finding, Severity},
    lease::{Brief, LeaseId, LeaseKey, Renewal, Resource, Ttl},
};

/// A clock that is further off costs a round trip on every grant; one that is 9 s off costs the node its vote.
const CLOCK_OFF: Duration = Duration::from_millis(500);

pub(super) async fn examine(shared: &Shared) -> Result<Vec<Finding>> {
    let nodes = &shared.nodes;
    get_to_know(nodes).await;
    let answers = nodes.look(|backend| async move { backend.examine().await }).await;
    let there = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    let (all, majority) = (nodes.len(), nodes.majority());
    let mut findings = vec![
        Finding::new(
            Severity::Info,
            "promises",
            format!(
                "a lease is held where {majority} of {all} nodes hold it; {} may be down; fences rise as long as \
                 clocks do not go back, order among waiters is likely and not promised",
                all - majority
            ),
        ),
        Finding::new(
            if there == all { Severity::Ok } else { Severity::Failure.min(severity_of(there, majority)) },
            "nodes",
            format!("{there} of {all} answer; {majority} are needed"),
        ),
    ];
    for (at, answer) in answers {
        let name = &nodes.get(at).name;
        match nodes.silent_for(at) {
            Some(Duration::MAX) => findings.push(Finding::new(
                Severity::Failure,
                "same node twice",
                format!("{name} is the same server as one before it in the list: its vote does not count"),
            )),
            Some(left) => findings.push(Finding::new(
                Severity::Warning,
                "restart",
                format!("{name} may have forgotten leases: its vote counts in {}", Brief(left)),
            )),
            None => {}
        }
        findings.extend(nodes.get(at).ahead().and_then(|micros| clock_finding(name, micros)));
        match answer {
            Ok(of_node) => findings.extend(
                of_node
                    .into_iter()
                    .map(|finding| Finding { subject: format!("{name}: {}", finding.subject), ..finding }),
            ),
            Err(error) => findings.push(Finding::new(Severity::Warning, "node", format!("{name}: {error}"))),
        }
    }
    Ok(findings)
}

/// Learns which life of which server each node is, which only answers about leases tell: about one that nobody has.
async fn get_to_know(nodes: &Nodes) {
    let id = LeaseId::random();
    let Ok(resource) = Resource::new(format!("leasehold:doctor:{id}")) else { return };
    let renewal = Renewal::new(LeaseKey::new(resource, id), Ttl::DEFAULT);
    let mut fan = Fan::new();
    for (at, node) in nodes.iter().enumerate() {
        let (node, renewal, limit) = (Arc::clone(node), renewal.clone(), nodes.limit());
        fan.add(at, async move { node.ask(limit, node.backend.renew(&[renewal])).await });
    }
    // Who does not answer is found out by looking.
    fan.all().await;
}

fn severity_of(there: usize, majority: usize) -> Severity {
    if there >= majority { Severity::Warning } else { Severity::Failure }
}

fn clock_finding(name: &str, micros: i64) -> Option<Finding> {
    let off = Duration::from_micros(micros.unsigned_abs());
    let direction = if micros < 0 { "behind" } else { "ahead of" };
    (off > CLOCK_OFF).then(|| {
        let words = format!("the clock of {name} is {} {direction} this machine's; keep clocks in step", Brief(off));
        Finding::new(Severity::Warning, "clock", words)
    })
}
