//! `leasehold history`: how past leases and waits ended.

use std::cmp::Reverse;

use leasehold::{
    clock::{Clock, SystemClock},
    lease::{EndedLease, Ending, HistoryFilter, Names, Timestamp},
};

use super::{Context, time_format};
use crate::{
    args::{HistoryArgs, When},
    duration::Brief,
    exit::{self, Result},
    json,
    output::Line,
    redact,
    table::{self, Table},
    work::{ask, note::short, runs},
};

const HEADER: [&str; 8] = ["ENDED", "NAME", "EVENT", "HOLDER", "WAITED", "HELD", "FENCE", "DETAILS"];
const SKIPPED_HEADER: [&str; 5] = ["NAME", "SKIPPED", "LAST SKIP", "HELD BY", "LAST SUCCESS"];
/// As many are looked through when only some endings are wanted.
const LOOKED_THROUGH: usize = 100_000;

/// Prints what ended, newest first.
pub(crate) async fn run(context: &Context<'_>, args: &HistoryArgs) -> Result<u8> {
    let names = match args.name.as_deref() {
        None => Names::All,
        Some(name) => match name.strip_suffix('*') {
            Some(prefix) => Names::Prefix(prefix.to_owned()),
            None => Names::Exactly(ask::resource(name)?),
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
        is_kind && !(args.failures && was_resumed(ended))
    };
    let limit = match (args.event.is_empty(), args.failures) {
        (true, false) => args.limit,
        // A few of them are left out.
        (true, true) => args.limit.saturating_mul(10).min(LOOKED_THROUGH),
        (false, _) => LOOKED_THROUGH,
    };
    let mut filter = HistoryFilter::new(names).failures(args.failures).limit(limit);
    filter.since = args.since.map(at);
    filter.until = args.until.map(at);
    let locks = context.connect().await?;
    let page = locks.history_page(&filter).await?;
    let mut ended = page.leases;
    ended.retain(is_wanted);
    let is_truncated = page.is_truncated || ended.len() > args.limit;
    ended.truncate(args.limit);
    if context.output.looks().json {
        for ended in &ended {
            json::print(json::ended(ended).to_string())?;
        }
    } else {
        json::write(&render(context, args, &ended, now))?;
        say_if_empty(context, ended.is_empty());
    }
    if is_truncated {
        context.output.print(Line::new("truncated", format!("{} shown, more exist: --limit", ended.len())));
    }
    Ok(exit::OK)
}

/// Nothing printed could also mean that nothing was looked for.
fn say_if_empty(context: &Context<'_>, is_empty: bool) {
    if is_empty {
        context.output.print(Line::new("empty", "nothing in the history"));
    }
}

/// Whether only a place in the queue was lost: who still wants the lock has asked again, and who died held nothing.
fn was_resumed(ended: &EndedLease) -> bool {
    ended.acquired_at.is_none() && matches!(ended.ending, Ending::Expired | Ending::Disconnected)
}

/// Prints how often each job was skipped, those skipped last first.
async fn skipped(context: &Context<'_>, args: &HistoryArgs, names: &Names) -> Result<u8> {
    let locks = context.connect().await?;
    let mut records = locks.runs(names).await?;
    records.retain(|record| record.skips > 0);
    records.sort_by_key(|record| Reverse(record.last_skip));
    records.truncate(args.limit);
    if context.output.looks().json {
        for record in &records {
            json::print(runs::to_json(record, None).to_string())?;
        }
        return Ok(exit::OK);
    }
    let now = SystemClock.wall();
    let mut table = Table::new((!args.no_headers && !records.is_empty()).then_some(&SKIPPED_HEADER));
    for record in &records {
        let ago = |at: Option<Timestamp>| at.map_or_else(String::new, |at| format!("{} ago", Brief(now.since(at))));
        table.row(vec![
            record.resource.to_string(),
            record.skips.to_string(),
            ago(record.last_skip),
            record.held_by.as_ref().map(|holder| short(holder.as_str()).to_owned()).unwrap_or_default(),
            ago(record.last_success),
        ]);
    }
    say_if_empty(context, records.is_empty());
    json::write(&table.render(context.output.looks().color_out, table::terminal_width()))?;
    Ok(exit::OK)
}

fn render(context: &Context<'_>, args: &HistoryArgs, ended: &[EndedLease], now: Timestamp) -> String {
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
            redact::words(&details),
        ]);
    }
    table.render(context.output.looks().color_out, table::terminal_width())
}
