//! What endangers locks on this server, in words.

use std::time::Duration;

use tokio_postgres::Row;

use super::{
    connection::{ConnectionRouter, Connector},
    decode,
    errors::Failure,
    options::{Durability, LivenessOption},
    statements::Statement,
};
use crate::{
    backend::{Finding, Severity},
    lease::Timestamp,
};

/// A round trip above this makes short ttls dangerous.
const SLOW: Duration = Duration::from_millis(100);

/// Clocks this far apart make times that people compare misleading, and fences after a failover doubtful.
const CLOCKS_APART: Duration = Duration::from_secs(5);

/// The oldest supported server version: the first that has all the functions which the schema uses.
const OLDEST_VERSION: i32 = 130_000;

/// Busy locks leave fewer dead rows than this between autovacuums.
const DEAD_ROWS: i64 = 500_000;

/// The age, in seconds, of a snapshot that is reported. A snapshot keeps vacuum from removing dead rows: after a minute
/// the tables are several times larger.
const OLD_SNAPSHOT: f64 = 60.0;

/// Round trips used to compare clocks.
const ROUND_TRIPS: usize = 4;

/// A shorter `statement_timeout` may cancel calls that wait for a row.
const MIN_STATEMENT_TIMEOUT_MS: i32 = 1000;

/// The offset of the server's wall clock from ours, and the duration of the round trip that measured it.
struct Clocks {
    took: Duration,
    apart: Duration,
}

/// Compares the clocks by the shortest of a few round trips; the first may prepare the statement, which takes longer.
async fn compare_clocks(router: &ConnectionRouter) -> Result<Option<Clocks>, Failure> {
    let clock = &router.connector.options.clock;
    let mut best: Option<Clocks> = None;
    for _ in 0..ROUND_TRIPS {
        let (sent, before) = (clock.now(), clock.wall());
        let reply = router.call(Statement::Clock, &[]).await?;
        let (took, after) = (clock.now().since(sent), clock.wall());
        let Some(seen) = reply.rows.first() else { continue };
        // The server read its clock about half a round trip after the call was sent.
        let ours = Timestamp::from_micros(u64::midpoint(before.as_micros(), after.as_micros()));
        let theirs = Timestamp::from_micros(decode::get::<i64>(seen, "now_us")?.unsigned_abs());
        let apart = theirs.since(ours).max(ours.since(theirs));
        if best.as_ref().is_none_or(|best| took < best.took) {
            best = Some(Clocks { took, apart });
        }
    }
    Ok(best)
}

pub(super) async fn examine(router: &ConnectionRouter) -> Result<Vec<Finding>, Failure> {
    let connector = &*router.connector;
    let clocks = compare_clocks(router).await?;
    let reply = router.call(Statement::Examine, &[]).await?;
    let Some(seen) = reply.rows.first() else { return Ok(Vec::new()) };

    let mut findings = vec![promises(connector)];
    let version: String = decode::get(seen, "version")?;
    findings.push(Finding::new(Severity::Ok, "server", format!("Postgres {version}")));
    if let Some(Clocks { took, apart }) = clocks {
        if took > SLOW {
            let message = format!("one round trip takes {:.0} ms: every lock waits as long; move closer", millis(took));
            findings.push(Finding::new(Severity::Warning, "reach", message));
        }
        findings.push(Finding::new(
            if apart > CLOCKS_APART { Severity::Warning } else { Severity::Info },
            "clock",
            format!("the server's wall clock is {:.1} ms from ours; only the server's decides", millis(apart)),
        ));
    }
    if decode::get::<i32>(seen, "version_number")? < OLDEST_VERSION {
        let message = format!("server {version} is too old: 13 and newer are supported");
        findings.push(Finding::new(Severity::Failure, "version", message));
    }

    findings.push(if connector.is_transaction_pooled() {
        Finding::new(
            Severity::Warning,
            "pooler",
            "a pooler may lend connections for a transaction at a time: grants cannot be pushed, waiting asks at intervals, \
             liveness=connection and session-level advisory locks do not work; connect to the server itself, or say \
             ?pooler=session where the pooler lends them for as long as a client stays",
        )
    } else {
        Finding::new(Severity::Ok, "pooler", "none that shares connections between transactions")
    });

    let isolation: String = decode::get(seen, "isolation")?;
    if isolation != "read committed" {
        let (role, database): (&str, &str) = (decode::get(seen, "role")?, decode::get(seen, "database")?);
        let message = format!(
            "transactions of this role are {isolation} by default: lock calls of other SQL clients are refused unless they \
             begin with READ COMMITTED; to change that: alter role {role} in database {database} set \
             default_transaction_isolation = 'read committed'"
        );
        findings.push(Finding::new(Severity::Warning, "isolation", message));
    }
    findings.push(durability(seen, connector)?);

    let standbys: i32 = decode::get(seen, "async_standbys")?;
    if standbys > 0 {
        findings.push(Finding::new(
            Severity::Warning,
            "failover",
            format!("{standbys} standbys follow asynchronously: a failover to one may forget the last grants"),
        ));
    }
    let (max, used): (i32, i32) = (decode::get(seen, "max_connections")?, decode::get(seen, "in_use")?);
    let wanted = i32::try_from(connector.options.connections).unwrap_or(i32::MAX).saturating_add(3);
    let head_room = max.saturating_sub(used);
    findings.push(Finding::new(
        if head_room < wanted { Severity::Warning } else { Severity::Ok },
        "connections",
        format!("{used} of {max} in use; this instance may want {wanted}"),
    ));
    if let Some(limit) = decode::get::<Option<String>>(seen, "idle_session_timeout")?.filter(|limit| limit != "0") {
        let severity = if connector.options.liveness == LivenessOption::Connection {
            Severity::Failure
        } else {
            Severity::Warning
        };
        let message = format!(
            "idle_session_timeout is {limit}: idle connections are cut, and leases that end with them are lost"
        );
        findings.push(Finding::new(severity, "idle timeout", message));
    }
    let queue: f64 = decode::get(seen, "notification_queue")?;
    if queue > 0.5 {
        let message =
            format!("the notification queue is {:.0} % full: a listener sits in an open transaction", queue * 100.0);
        findings.push(Finding::new(Severity::Failure, "notifications", message));
    }
    let oldest: f64 = decode::get(seen, "oldest_snapshot_s")?;
    if oldest > OLD_SNAPSHOT {
        let message = format!("a transaction is open since {oldest:.0} s: dead rows pile up and locking slows down");
        findings.push(Finding::new(Severity::Warning, "old transaction", message));
    }
    if let Some(who) = decode::get::<Option<String>>(seen, "blocking_transactions")? {
        let message = format!(
            "a lock that was used in a transaction cannot be had by others until that ends: {who}; commit right after \
             the call, or look who holds it in pg_stat_activity"
        );
        findings.push(Finding::new(Severity::Warning, "open transaction", message));
    }
    findings.extend(server_features(seen)?);
    findings.extend(upkeep(router).await);
    findings.extend(dead_rows(seen)?);
    findings.extend(keepalives(seen, connector)?);
    Ok(findings)
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1000.0
}

/// What a crash of the server loses.
fn durability(seen: &Row, connector: &Connector) -> Result<Finding, Failure> {
    let synchronous: String = decode::get(seen, "synchronous_commit")?;
    let fsync: String = decode::get(seen, "fsync")?;
    Ok(if fsync == "off" {
        Finding::new(
            Severity::Failure,
            "durability",
            "fsync is off: a crash of the machine may corrupt or lose everything",
        )
    } else if synchronous == "off" && connector.options.durability == Durability::Durable {
        Finding::new(Severity::Warning, "durability", "synchronous_commit is off: a crash may lose the last grants")
    } else {
        Finding::new(Severity::Ok, "durability", format!("synchronous_commit is {synchronous}"))
    })
}

/// Features and settings of the server that hinder locks, and what this role cannot see of them.
fn server_features(seen: &Row) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    if let Some(prepared) = decode::get::<Option<String>>(seen, "prepared")? {
        let message = format!(
            "a prepared transaction keeps a lock from others until somebody ends it: {prepared}; commit prepared or rollback \
             prepared"
        );
        findings.push(Finding::new(Severity::Failure, "prepared transaction", message));
    }
    if let Some(publications) = decode::get::<Option<String>>(seen, "publications")? {
        let message = format!(
            "the tables of the locks are published by {publications}: every lock call is sent to its subscribers, where the \
             leases mean nothing; publish the schemas that are wanted instead"
        );
        findings.push(Finding::new(Severity::Warning, "publication", message));
    }
    if !decode::get::<bool>(seen, "sees_all")? {
        let role: &str = decode::get(seen, "role")?;
        let message = format!(
            "this role sees only its own transactions: others that keep locks are not shown; for the whole picture: grant \
             pg_read_all_stats to {role}"
        );
        findings.push(Finding::new(Severity::Info, "visibility", message));
    }
    let limit: i32 = decode::get(seen, "statement_timeout_ms")?;
    if (1..MIN_STATEMENT_TIMEOUT_MS).contains(&limit) {
        let message = format!(
            "statement_timeout is {limit} ms for this role: lock calls that wait for another's transaction are ended by it; \
             a second or more is enough"
        );
        findings.push(Finding::new(Severity::Warning, "statement timeout", message));
    }
    Ok(findings)
}

/// Whether upkeep works.
async fn upkeep(router: &ConnectionRouter) -> Option<Finding> {
    let failure = router.call_slow(Statement::Maintain, &[]).await.err()?;
    let message = format!("upkeep of the tables fails, and they will grow: {failure}");
    Some(Finding::new(Severity::Failure, "upkeep", message))
}

/// Dead rows, which slow down every call.
fn dead_rows(seen: &Row) -> Result<Option<Finding>, Failure> {
    let (dead, live): (i64, i64) = (decode::get(seen, "dead_rows")?, decode::get(seen, "live_rows")?);
    if decode::get::<String>(seen, "autovacuum")? == "off" {
        let message =
            "autovacuum is off: every lock taken leaves dead rows that nobody removes; turn it on, or vacuum often";
        return Ok(Some(Finding::new(Severity::Warning, "dead rows", message)));
    }
    Ok((dead > DEAD_ROWS && dead > live.saturating_mul(2)).then(|| {
        let message = format!(
            "{dead} dead rows beside {live} live ones: something keeps autovacuum from removing them, such as an old \
             transaction, a replication slot or a prepared transaction"
        );
        Finding::new(Severity::Warning, "dead rows", message)
    }))
}

/// Reports whether a vanished client, and its session-bound leases, would go unnoticed for long.
fn keepalives(seen: &Row, connector: &Connector) -> Result<Option<Finding>, Failure> {
    if connector.options.liveness == LivenessOption::Ttl || !decode::get::<bool>(seen, "by_network")? {
        return Ok(None);
    }
    let (idle, unconfirmed): (i32, i32) = (decode::get(seen, "keepalives_idle")?, decode::get(seen, "unconfirmed_ms")?);
    if (1..=60).contains(&idle) && (1..=60_000).contains(&unconfirmed) {
        let message = format!("a client that vanished is looked for after {idle} s");
        return Ok(Some(Finding::new(Severity::Ok, "keepalives", message)));
    }
    let message = format!(
        "the server looks for a vanished client after {idle} s, and gives up what it does not confirm after {unconfirmed} \
         ms (0: after many minutes): leases that end with its connection stay that long"
    );
    Ok(Some(Finding::new(Severity::Failure, "keepalives", message)))
}

fn promises(connector: &Connector) -> Finding {
    let message = match connector.options.liveness {
        LivenessOption::Ttl => "a holder that stops renewing keeps its lease for one ttl",
        LivenessOption::Connection => "a lease lives as long as its connection, a dead one is recorded as disconnected",
    };
    let kept = match connector.options.durability {
        Durability::Durable => "a crash loses no grant",
        Durability::Async => "a crash may lose the last grants, as the next renewal finds out",
        Durability::Unlogged => "a crash loses all leases, as the next renewal finds out",
    };
    Finding::new(Severity::Info, "promises", format!("{message}; queues are fair, fences rise; {kept}"))
}
