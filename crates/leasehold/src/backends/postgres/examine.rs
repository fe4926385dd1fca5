//! What endangers locks on this server, in words.

use std::{sync::Arc, time::Duration};

use super::{
    connection::{Call, Connector, Slot},
    failure::Failure,
    options::{By, Durability},
    row,
};
use crate::{
    backend::{Finding, Severity},
    lease::Timestamp,
};

/// A round trip above this makes short ttls dangerous.
const SLOW: Duration = Duration::from_millis(100);

/// A snapshot that is held longer keeps dead rows from being removed.
const OLD_SNAPSHOT: f64 = 600.0;

pub(super) async fn examine(slot: &Slot, connector: &Arc<Connector>) -> Result<Vec<Finding>, Failure> {
    let clock = &connector.options.clock;
    slot.get().await?;
    let sent = clock.now();
    let wall = clock.wall();
    let told = slot.ask(Call::Examine, &[]).await?;
    let took = clock.now().since(sent);
    let Some(seen) = told.rows.first() else { return Ok(Vec::new()) };

    let mut findings = vec![promises(connector)];
    let version: String = row::get(seen, "version")?;
    let words = format!("server {version}, one round trip takes {took:?}");
    findings.push(Finding::new(if took > SLOW { Severity::Warning } else { Severity::Ok }, "reach", words));

    let theirs = Timestamp::from_micros(row::get::<i64>(seen, "now_us")?.unsigned_abs());
    let apart = theirs.since(wall).max(wall.since(theirs));
    findings.push(Finding::new(
        Severity::Info,
        "clock",
        format!("the server's wall clock is {apart:?} from ours; only the server's decides"),
    ));

    findings.push(if connector.is_pooled() {
        Finding::new(
            Severity::Warning,
            "pooler",
            "a pooler lends connections for a transaction at a time: grants cannot be pushed, waiting asks at intervals, \
             liveness=connection and session-level advisory locks do not work; connect to the server itself",
        )
    } else {
        Finding::new(Severity::Ok, "pooler", "none that shares connections between transactions")
    });

    let synchronous: String = row::get(seen, "synchronous_commit")?;
    let fsync: String = row::get(seen, "fsync")?;
    findings.push(if fsync == "off" {
        Finding::new(
            Severity::Failure,
            "durability",
            "fsync is off: a crash of the machine may corrupt or lose everything",
        )
    } else if synchronous == "off" && connector.options.durability == Durability::Durable {
        Finding::new(Severity::Warning, "durability", "synchronous_commit is off: a crash may lose the last grants")
    } else {
        Finding::new(Severity::Ok, "durability", format!("synchronous_commit is {synchronous}"))
    });

    let standbys: i32 = row::get(seen, "async_standbys")?;
    if standbys > 0 {
        findings.push(Finding::new(
            Severity::Warning,
            "failover",
            format!("{standbys} standbys follow asynchronously: a failover to one may forget the last grants"),
        ));
    }
    let (most, used): (i32, i32) = (row::get(seen, "max_connections")?, row::get(seen, "in_use")?);
    let wanted = i32::try_from(connector.options.connections).unwrap_or(i32::MAX).saturating_add(3);
    let head_room = most.saturating_sub(used);
    findings.push(Finding::new(
        if head_room < wanted { Severity::Warning } else { Severity::Ok },
        "connections",
        format!("{used} of {most} in use; this instance may want {wanted}"),
    ));
    if let Some(limit) = row::get::<Option<String>>(seen, "idle_session_timeout")?.filter(|limit| limit != "0") {
        let severity = if connector.options.by == By::Connection { Severity::Failure } else { Severity::Warning };
        let words =
            format!("idle_session_timeout is {limit}: idle connections are cut, and what lives by them with them");
        findings.push(Finding::new(severity, "idle timeout", words));
    }
    let queue: f64 = row::get(seen, "notification_queue")?;
    if queue > 0.5 {
        let words =
            format!("the notification queue is {:.0} % full: a listener sits in an open transaction", queue * 100.0);
        findings.push(Finding::new(Severity::Failure, "notifications", words));
    }
    let oldest: f64 = row::get(seen, "oldest_snapshot_s")?;
    if oldest > OLD_SNAPSHOT {
        let words = format!("a transaction is open since {oldest:.0} s: dead rows pile up and locking slows down");
        findings.push(Finding::new(Severity::Warning, "old transaction", words));
    }
    Ok(findings)
}

fn promises(connector: &Connector) -> Finding {
    let words = match connector.options.by {
        By::Ttl => "a holder that stops renewing keeps its lease for one ttl",
        By::Connection => "a lease lives as long as its connection, a dead one is recorded as disconnected",
    };
    let kept = match connector.options.durability {
        Durability::Durable => "a crash loses no grant",
        Durability::Async => "a crash may lose the last grants, which the next renewal tells",
        Durability::Unlogged => "a crash loses all leases, which the next renewal tells",
    };
    Finding::new(Severity::Info, "promises", format!("{words}; queues are fair, fences rise; {kept}"))
}
