//! `leasehold inspect`: shows one lock, its holders, its queue and its last 24 hours.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::builder::styling::{AnsiColor, Style};
use leasehold::{
    Leasehold,
    backend::Liveness,
    clock::{Clock, SystemClock},
    lease::{EndedLease, Ending, HistoryFilter, LeaseRecord, LeaseState, ListFilter, Names, RunRecord, Timestamp},
};
use serde_json::{Value, json};

use super::{
    CommandContext,
    lock_summary::{LockSummary, expiry_words},
    time_format, unknown_lock,
};
use crate::{
    args::InspectArgs,
    command_ended::{self, CommandEnded},
    duration::{Brief, Measured, millis},
    error::Result,
    exit, json,
    run_command::{identity::short, lock_request, runs},
    shell,
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Prints what is known of the lock; exit 1 if nothing is.
pub(crate) async fn run(context: &CommandContext<'_>, args: &InspectArgs) -> Result<u8> {
    let name = lock_request::resource(&args.name)?;
    let locks = context.connect().await?;
    let names = Names::Exactly(name.clone());
    let page = locks.list(&ListFilter::new(names.clone())).await?;
    let now = SystemClock.wall();
    let filter = HistoryFilter::new(names.clone()).limit(10_000).since(now.before(DAY));
    let history = locks.history(&filter).await?;
    let runs = if locks.guarantees().records_runs { locks.runs(&names).await?.pop() } else { None };
    let lock =
        LockSummary::group(page.leases).pop().unwrap_or(LockSummary { name, holders: Vec::new(), waiters: Vec::new() });
    let was_known =
        !history.is_empty() || runs.is_some() || !locks.history(&HistoryFilter::new(names).limit(1)).await?.is_empty();
    let day = Day::of(&history, &lock);
    if context.output.style().json {
        let mut object = lock.to_json();
        if let Some(object) = object.as_object_mut() {
            object.insert("v".into(), 1.into());
            object.insert("state".into(), if lock.holders.is_empty() { "free" } else { "held" }.into());
            object.insert("backend".into(), locks.guarantees().kind.into());
            object.insert("namespace".into(), context.settings.namespace.as_str().into());
            object.insert("last_24h".into(), day.to_json());
            object.insert("runs".into(), runs.as_ref().map(runs_json).into());
        }
        json::print(object.to_string())?;
    } else if was_known || !lock.holders.is_empty() || !lock.waiters.is_empty() {
        json::write(&render(context, &locks, &lock, &day, runs.as_ref(), now))?;
    }
    if !was_known && lock.holders.is_empty() && lock.waiters.is_empty() {
        context.output.print(unknown_lock::line(context, &locks, &lock.name, "inspect").await);
        return Ok(exit::NO);
    }
    Ok(exit::OK)
}

fn runs_json(record: &RunRecord) -> Value {
    json!({
        "skips": record.skips,
        "last_skip": record.skipped_at().map(json::time),
        "held_by": runs::last_skip_holder(record),
        "last_success": record.last_success.map(json::time),
    })
}

fn render(
    context: &CommandContext<'_>,
    locks: &Leasehold,
    lock: &LockSummary,
    day: &Day,
    runs: Option<&RunRecord>,
    now: Timestamp,
) -> String {
    let state = if lock.holders.is_empty() { "FREE" } else { "HELD" };
    let mut title = format!("{}   {}   {state}", lock.name, lock.mode_words());
    if context.output.style().color_out {
        let (bold, color) =
            (Style::new().bold(), if lock.holders.is_empty() { AnsiColor::Green } else { AnsiColor::Yellow });
        let color = color.on_default();
        title = format!("{bold}{}{bold:#}   {}   {color}{state}{color:#}", lock.name, lock.mode_words());
    }
    let mut lines = vec![title];
    for holder in &lock.holders {
        lines.extend(holder_lines(holder, locks, now));
    }
    for (at, waiter) in lock.waiters.iter().enumerate() {
        let label = if at == 0 { "waiting" } else { "" };
        let LeaseState::Waiting { waiting_for, .. } = waiter.state else { continue };
        let note = quoted(waiter);
        let who = short(waiter.holder.as_str());
        lines.push(format!("  {label:<9} {}. {who}   {}{note}", at + 1, Brief(waiting_for)));
    }
    lines.push(format!("  {:<9} {}", "last 24h", day.message(now)));
    lines.extend(runs.map(|runs| format!("  {:<9} {}", "runs", runs::message(runs, now))));
    lines.extend(
        context.settings.user_only_notice().map(|directory| format!("  {:<9} {}", "seen by", directory.visible_to)),
    );
    let name = shell::operand(lock.name.as_str());
    let only = if day.has_failures() { "--failures " } else { "" };
    lines.push(format!("  {:<9} {}", "next", context.settings.command(&format!("history {only}{name}"))));
    if let Some(fence) = lock.fence() {
        let evict = format!("evict --fence {fence} --reason \"…\" {name}");
        lines.push(format!("  {:<9} {}", "", context.settings.command(&evict)));
    }
    let text: Vec<String> = lines.iter().map(|line| crate::redact::redact_urls(line)).collect();
    format!("{}\n", text.join("\n"))
}

fn holder_lines(holder: &LeaseRecord, locks: &Leasehold, now: Timestamp) -> Vec<String> {
    let LeaseState::Holding { fence, acquired_at, held_for } = holder.state else { return Vec::new() };
    let note = quoted(holder);
    let since = format!("{} ({})", time_format::time_of_day(acquired_at, now), Brief(held_for));
    let life = match holder.expires_in {
        Some(_) => format!(
            "renewed {} ago     expires {}     ttl {}",
            Brief(holder.renewed_ago),
            expiry_words(holder.expires_in, locks),
            Brief(holder.ttl.get())
        ),
        None => format!("ends {}", expiry_words(None, locks)),
    };
    let mut lines = vec![
        format!("  {:<9} {}{note}", "holder", short(holder.holder.as_str())),
        format!("  {:<9} {since}     {life}", "since"),
        format!("  {:<9} {fence}", "fence"),
    ];
    lines.extend(CommandEnded::of(holder).map(|kept| format!("  {:<9} {}", "command", kept.message())));
    if locks.guarantees().liveness == Liveness::Process {
        lines.extend(keepers(holder.holder.as_str()).map(|words| format!("  {:<9} {words}", "process")));
    }
    let metadata = command_ended::without_mark(&holder.metadata);
    if !metadata.is_empty() {
        lines.push(format!("  {:<9} {}", "meta", Value::Object(metadata)));
    }
    lines
}

/// Names the processes that keep the lock although its own process has ended: those that it started.
fn keepers(holder: &str) -> Option<String> {
    let pid: u32 = holder.rsplit(':').nth(1)?.parse().ok()?;
    if Path::new(&format!("/proc/{pid}")).exists() {
        return None;
    }
    let mark = format!("LEASEHOLD_HOLDER={holder}");
    let started_by_it = |process: &PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let named = |process: PathBuf| {
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        Some(format!("{} {}", process.file_name()?.to_str()?, name.trim_end().replace(char::is_control, " ")))
    };
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let found: Vec<String> = processes.filter(started_by_it).filter_map(named).collect();
    // A holder in another container, or of a user whose processes are hidden, is alive all the same.
    (!found.is_empty()).then(|| format!("{pid} is gone; the lock is kept by {}", found.join(", ")))
}

/// The note in quotes, without control characters: any client may have written it.
fn quoted(lease: &LeaseRecord) -> String {
    lease.note.as_ref().map(|note| format!("  \"{}\"", note.replace(char::is_control, " "))).unwrap_or_default()
}

/// What happened to a lock within a day.
#[derive(Debug)]
struct Day {
    acquired: usize,
    p95_wait: Option<Duration>,
    p95_held: Option<Duration>,
    failed: usize,
    lost: usize,
    last_lost: Option<(String, Timestamp)>,
    gave_up: usize,
}

impl Day {
    fn of(history: &[EndedLease], lock: &LockSummary) -> Self {
        let live = lock.holders.iter().filter_map(|holder| match holder.state {
            LeaseState::Holding { acquired_at, .. } => Some(acquired_at.since(holder.asked_at)),
            LeaseState::Waiting { .. } => None,
        });
        let ended = history.iter().filter_map(|ended| Some(ended.acquired_at?.since(ended.asked_at)));
        let waits: Vec<Duration> = ended.chain(live).collect();
        let holds = history.iter().filter_map(|ended| Some(ended.ended_at.since(ended.acquired_at?))).collect();
        let count = |wanted: &[Ending]| history.iter().filter(|ended| wanted.contains(&ended.ending)).count();
        let is_lost = |ended: &&EndedLease| {
            ended.acquired_at.is_some()
                && !command_ended::lapsed_after_success(ended)
                && matches!(ended.ending, Ending::Expired | Ending::Disconnected | Ending::Evicted)
        };
        Self {
            acquired: waits.len(),
            p95_wait: percentile(waits),
            p95_held: percentile(holds),
            failed: count(&[Ending::Failed, Ending::MaxHold]),
            lost: history.iter().filter(is_lost).count(),
            last_lost: history.iter().find(is_lost).map(|ended| (ended.ending.to_string(), ended.ended_at)),
            gave_up: count(&[Ending::GaveUp]),
        }
    }

    fn has_failures(&self) -> bool {
        self.failed + self.lost + self.gave_up > 0
    }

    fn message(&self, now: Timestamp) -> String {
        let mut parts = vec![format!("{} acquired", self.acquired)];
        parts.extend(self.p95_wait.map(|wait| format!("p95 wait {}", Measured(wait))));
        parts.extend(self.p95_held.map(|held| format!("p95 held {}", Measured(held))));
        if self.failed > 0 {
            parts.push(format!("{} failed", self.failed));
        }
        if let Some((ending, at)) = &self.last_lost {
            parts.push(format!("{} lost ({ending}, {} ago)", self.lost, Brief(now.since(*at))));
        }
        if self.gave_up > 0 {
            parts.push(format!("{} timed out", self.gave_up));
        }
        parts.join(" · ")
    }

    fn to_json(&self) -> Value {
        json!({
            "acquired": self.acquired,
            "p95_wait_ms": self.p95_wait.map(millis),
            "p95_held_ms": self.p95_held.map(millis),
            "failed": self.failed,
            "lost": self.lost,
            "gave_up": self.gave_up,
        })
    }
}

/// The value that 95 of 100 do not exceed.
pub(crate) fn percentile(mut values: Vec<Duration>) -> Option<Duration> {
    values.sort_unstable();
    let at = (values.len() * 95).div_ceil(100).checked_sub(1)?;
    values.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_95th_percentile_is_one_of_the_values() {
        assert_eq!(percentile(Vec::new()), None);
        assert_eq!(percentile(vec![Duration::from_secs(3)]), Some(Duration::from_secs(3)));
        let hundred = (1..=100).rev().map(Duration::from_secs).collect();
        assert_eq!(percentile(hundred), Some(Duration::from_secs(95)));
    }
}
