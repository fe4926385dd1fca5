//! `leasehold history`: how past leases and waits ended.

use std::cmp::Reverse;

use leasehold::{
    Leasehold, Resource,
    clock::{Clock, SystemClock},
    lease::{EndedLease, Ending, HistoryFilter, ListFilter, Names, RunRecord, Timestamp},
};

use super::{CommandContext, time_format, unknown_lock};
use crate::{
    args::{HistoryArgs, When},
    command_ended,
    duration::Brief,
    error::Result,
    exit, json,
    output::Line,
    redact,
    run_command::{identity::short, lock_request, runs},
    settings::Level,
    shell,
    table::{self, Table},
};

const HEADER: [&str; 8] = ["ENDED", "NAME", "EVENT", "HOLDER", "WAITED", "HELD", "FENCE", "DETAILS"];
const SKIPPED_HEADER: [&str; 5] = ["NAME", "SKIPPED", "LAST SKIP", "HELD BY", "LAST SUCCESS"];
/// At most this many records are scanned when only some endings are wanted.
const MAX_SCANNED: usize = 100_000;

/// At most this many names are searched for holders that died.
const MAX_LISTED: usize = 1000;

/// Prints what ended, newest first.
pub(crate) async fn run(context: &CommandContext<'_>, args: &HistoryArgs) -> Result<u8> {
    let names = match args.name.as_deref() {
        None => Names::All,
        Some(name) => match name.strip_suffix('*') {
            Some(prefix) => Names::Prefix(prefix.to_owned()),
            None => Names::Exactly(lock_request::resource(name)?),
        },
    };
    if args.skipped {
        return skipped(context, args, &names).await;
    }
    let now = SystemClock.wall();
    let at = |when: When| match when {
        When::Ago(ago) => now.before(ago),
        When::At(time) => time,
    };
    let is_wanted = |ended: &EndedLease| {
        let is_kind = args.event.is_empty() || args.event.iter().any(|wanted| ended.ending == (*wanted).into());
        let is_failure = !lost_only_queue_position(ended) && !command_ended::lapsed_after_success(ended);
        is_kind && (!args.failures || is_failure)
    };
    let limit = match (args.event.is_empty(), args.failures) {
        (true, false) => args.limit,
        // A few of them are left out.
        (true, true) => args.limit.saturating_mul(10).min(MAX_SCANNED),
        (false, _) => MAX_SCANNED,
    };
    let mut filter = HistoryFilter::new(names).failures(args.failures).limit(limit);
    filter.ended = args.since.map_or(Timestamp::MIN, at)..args.until.map_or(Timestamp::MAX, at);
    let locks = context.connect().await?;
    // The backend notices that a holder died when somebody looks at its lock.
    locks.list(&ListFilter::new(filter.names.clone()).limit(MAX_LISTED)).await?;
    let page = locks.history_page(&filter).await?;
    let mut ended = page.leases;
    ended.retain(is_wanted);
    let is_truncated = page.is_truncated || ended.len() > args.limit;
    ended.truncate(args.limit);
    if ended.is_empty() && !is_truncated {
        let is_narrowed = args.failures || !args.event.is_empty() || args.since.is_some() || args.until.is_some();
        let words = if is_narrowed { "nothing of this kind in the history" } else { "nothing in the history" };
        return nothing_found(context, &locks, &filter.names, words).await;
    }
    if context.output.style().json {
        for ended in &ended {
            if json::print(json::ended(ended).to_string())? == json::OutputReader::Left {
                return Ok(exit::OK);
            }
        }
    } else {
        json::write(&render(context, args, &ended, now))?;
    }
    if is_truncated {
        say_truncated(context, ended.len());
    }
    Ok(exit::OK)
}

/// Reports an empty result. Exits 1 if the user named one lock that nothing is known of: the name may be mistyped.
async fn nothing_found(context: &CommandContext<'_>, locks: &Leasehold, names: &Names, words: &str) -> Result<u8> {
    let output = context.output;
    let level = if output.style().json { Level::Debug } else { Level::Normal };
    let nothing_such = Line::new("empty", words).at(level);
    let Names::Exactly(name) = names else {
        output.print(nothing_such);
        return Ok(exit::OK);
    };
    if !locks.history(&HistoryFilter::new(names.clone()).limit(1)).await?.is_empty() {
        output.print(nothing_such);
        return Ok(exit::OK);
    }
    let runs = if locks.guarantees().records_runs { locks.runs(names).await?.pop() } else { None };
    let inspect = context.settings.command(&format!("inspect {}", shell::operand(name.as_str())));
    let line = if let Some(record) = runs {
        let words = runs::message(&record, SystemClock.wall());
        Line::new("empty", format!("the history has nothing of {name}: {words}"))
    } else if !locks.list(&ListFilter::new(names.clone())).await?.leases.is_empty() {
        Line::new("empty", format!("nothing of {name} has ended yet: it is held or waited for now"))
            .hint(format!("see it: {inspect}"))
    } else {
        output.print(unknown_lock::line(context, locks, name, "history").await);
        return Ok(exit::NO);
    };
    output.print(line.with("lock", name.as_str()));
    Ok(exit::OK)
}

/// Whether only a place in the queue was lost: who still wants the lock has asked again, and who died held nothing.
fn lost_only_queue_position(ended: &EndedLease) -> bool {
    ended.acquired_at.is_none() && matches!(ended.ending, Ending::Expired | Ending::Disconnected)
}

/// Prints how often each job was skipped and when it last succeeded: those skipped last come first, then those that
/// were never skipped. A job that is neither skipped nor done any more is the one to look for.
async fn skipped(context: &CommandContext<'_>, args: &HistoryArgs, names: &Names) -> Result<u8> {
    let locks = context.connect().await?;
    let mut records = locks.runs(names).await?;
    if let Names::Exactly(name) = names
        && records.is_empty()
    {
        return never_run(context, &locks, name).await;
    }
    records.sort_by_key(|record| Reverse((record.skipped_at(), record.last_success)));
    let is_truncated = records.len() > args.limit;
    records.truncate(args.limit);
    if context.output.style().json {
        for record in &records {
            if json::print(runs::to_json(record, None).to_string())? == json::OutputReader::Left {
                return Ok(exit::OK);
            }
        }
    } else {
        json::write(&render_runs(context, args, &records))?;
    }
    if records.is_empty() {
        let level = if context.output.style().json { Level::Debug } else { Level::Normal };
        context.output.print(Line::new("empty", "no run was skipped, and no success is recorded").at(level));
    }
    if is_truncated {
        say_truncated(context, records.len());
    }
    Ok(exit::OK)
}

fn render_runs(context: &CommandContext<'_>, args: &HistoryArgs, records: &[RunRecord]) -> String {
    let now = SystemClock.wall();
    let mut table = Table::new((!args.no_headers && !records.is_empty()).then_some(&SKIPPED_HEADER));
    for record in records {
        let ago = |at: Option<Timestamp>| at.map_or_else(String::new, |at| format!("{} ago", Brief(now.since(at))));
        table.row(vec![
            record.resource.to_string(),
            record.skips.to_string(),
            ago(record.skipped_at()),
            runs::last_skip_holder(record).map(|holder| short(holder).to_owned()).unwrap_or_default(),
            ago(record.last_success),
        ]);
    }
    table.render(context.output.style().color_out, table::terminal_width())
}

fn say_truncated(context: &CommandContext<'_>, count: usize) {
    let words = format!("{count} shown; there are more: use a higher --limit");
    context.output.print(Line::new("truncated", words));
}

/// Says that no run under this lock is recorded. Exit 1 if nothing else is known of it either.
async fn never_run(context: &CommandContext<'_>, locks: &Leasehold, name: &Resource) -> Result<u8> {
    let names = Names::Exactly(name.clone());
    let is_known = !locks.list(&ListFilter::new(names.clone())).await?.leases.is_empty()
        || !locks.history(&HistoryFilter::new(names).limit(1)).await?.is_empty();
    let line = if is_known {
        Line::new("empty", format!("{name} was never skipped, and no success is recorded"))
    } else {
        unknown_lock::line(context, locks, name, "history --skipped").await
    };
    context.output.print(line.with("lock", name.as_str()));
    Ok(if is_known { exit::OK } else { exit::NO })
}

fn render(context: &CommandContext<'_>, args: &HistoryArgs, ended: &[EndedLease], now: Timestamp) -> String {
    let mut table = Table::new((!args.no_headers && !ended.is_empty()).then_some(&HEADER));
    for ended in ended {
        let problem = ended.problem.as_ref().map(|problem| problem.details.clone());
        let note = ended.note.as_ref().map(|note| format!("\"{note}\""));
        let details = problem.into_iter().chain(note).collect::<Vec<_>>().join("  ");
        let waited = ended.acquired_at.unwrap_or(ended.ended_at).since(ended.asked_at);
        let held = ended.acquired_at.map(|acquired| Brief(ended.ended_at.since(acquired)).to_string());
        table.row(vec![
            time_format::time_of_day(ended.ended_at, now),
            ended.resource.to_string(),
            ended.ending.to_string(),
            short(ended.holder.as_str()).to_owned(),
            Brief(waited).to_string(),
            held.unwrap_or_default(),
            ended.fence.map(|fence| fence.to_string()).unwrap_or_default(),
            redact::redact_urls(&details),
        ]);
    }
    table.render(context.output.style().color_out, table::terminal_width())
}
