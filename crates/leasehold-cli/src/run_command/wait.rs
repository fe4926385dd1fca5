//! Waiting for a lock: interruptible, and explained to whoever sits at the terminal.

use std::{cell::Cell, collections::BTreeSet, future::pending, time::Duration};

use leasehold::{
    Error, ErrorKind, Fence, Leasehold, Resource,
    clock::{Clock, SystemClock},
    lease::{HeldBy, LeaseRecord, LeaseState, ListFilter, Mode, Moment, Names},
};
use leasehold_supervise::{Signal, Signals};

use super::{connect_retry::ConnectRetry, identity::short, lock_request::WaitLimit};
use crate::{
    command_ended::CommandEnded,
    duration::{Brief, Measured, millis},
    error::Result,
    exit, json,
    output::{Line, Output},
    settings::{Level, Settings},
    shell,
};

/// A wait that takes longer explains itself.
const EXPLAIN_AFTER: Duration = Duration::from_secs(2);
/// The longest time between two lines; each takes twice as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// The longest time that an answer is shown to somebody at a terminal.
const MAX_ANSWER_AGE: Duration = Duration::from_secs(30);
/// How long leaving the queue may take before we exit.
const LEAVE_LIMIT: Duration = Duration::from_millis(150);
/// The same before we stop: who is stopped in a queue holds up the others.
const LEAVE_BEFORE_STOP_LIMIT: Duration = Duration::from_secs(2);
/// How long a look at the holder may take, for the sake of a word more.
const LOOK_LIMIT: Duration = Duration::from_millis(150);
/// How long a backend has to answer before it counts as away.
const OUTAGE_LIMIT: Duration = Duration::from_secs(1);
/// How often to look whether the queue is left.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How a wait ended.
#[derive(Debug)]
pub(crate) enum Waited<T> {
    /// It is held.
    Acquired {
        /// What was got.
        held: T,
        /// Whether somebody was told that it takes a while, and now wants to know that it is over.
        explained: bool,
    },
    /// Busy, or not in time. The queue is left in the background: [`leave`] before the process exits.
    NotAcquired(Error),
    /// Somebody wants us to end; the queue was left.
    Interrupted(Signal),
}

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// Where.
    pub(crate) locks: &'a Leasehold,
    /// Which: all of them or none.
    pub(crate) all: &'a BTreeSet<Resource>,
    /// The lock that is being requested now.
    pub(crate) asked: &'a Cell<&'a Resource>,
    /// How long.
    pub(crate) wait: WaitLimit,
    /// When the command began: a server that goes away so early is tried again.
    pub(crate) connect_retry: &'a ConnectRetry<'a>,
}

/// Waits for the lock until it is granted, the wait limit is reached, or a signal asks us to end.
///
/// On Ctrl-Z we leave the queue and stop, and go to its end when we go on.
pub(crate) async fn wait<T>(
    wanted: Wanted<'_>,
    mut acquire: impl AsyncFnMut() -> leasehold::Result<T>,
    signals: &mut Signals,
    output: &Output,
) -> Result<Waited<T>> {
    let started = SystemClock.now();
    let explained = Cell::new(false);
    let result = loop {
        let mut asked = tokio::select! {
            biased;
            result = wanted.connect_retry.retry(async |_| acquire().await) => break result,
            signal = signals.next_request() => Some(signal),
            () = explain(wanted, started, &explained, output) => unreachable!("it explains until it is dropped"),
        };
        if asked == Some(Signal::TSTP) {
            leave_before_stop(wanted).await;
            asked = signals.stop().await;
        }
        if let Some(signal) = asked {
            leave(wanted.locks).await;
            output.print(Line::detail("interrupted", format!("left the queue for {} on {signal}", wanted.asked.get())));
            return Ok(Waited::Interrupted(signal));
        }
    };
    match result {
        Ok(held) => Ok(Waited::Acquired { held, explained: explained.get() }),
        Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::WaitElapsed) => {
            match outage(wanted, &error).await {
                Some(outage) => Err(wanted.connect_retry.failure(outage)),
                None => Ok(Waited::NotAcquired(error)),
            }
        }
        Err(error) => Err(wanted.connect_retry.failure(error)),
    }
}

/// Why the backend cannot be used, if that is why nobody is known to hold the lock: it went away while we waited.
async fn outage(wanted: Wanted<'_>, error: &Error) -> Option<Error> {
    if error.kind() != ErrorKind::WaitElapsed || !error.holders().is_empty() {
        return None;
    }
    let filter = ListFilter::new(Names::Exactly(wanted.asked.get().clone()));
    match tokio::time::timeout(OUTAGE_LIMIT, wanted.locks.list(&filter)).await {
        Ok(looked) => looked.err(),
        Err(_elapsed) => Some(Error::unavailable(format!("{error}, and the backend does not answer"))),
    }
}

/// Lets what was asked for be taken back before we exit.
pub(crate) async fn leave(locks: &Leasehold) {
    let _lapses_by_itself = tokio::time::timeout(LEAVE_LIMIT, locks.close()).await;
}

/// Comes back when we are in no queue and hold none of several locks, or the limit has passed: the server may be away.
async fn leave_before_stop(wanted: Wanted<'_>) {
    let is_in = async |name: &Resource| {
        let page = wanted.locks.list(&ListFilter::new(Names::Exactly(name.clone()))).await;
        page.is_ok_and(|page| page.leases.iter().any(|lease| lease.holder == *wanted.locks.holder()))
    };
    let leaving = async {
        for name in wanted.all {
            while is_in(name).await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    };
    let _loses_its_turn_by_itself = tokio::time::timeout(LEAVE_BEFORE_STOP_LIMIT, leaving).await;
}

/// That the lock is held now; `-v` tells it always, others hear it after a wait that was explained.
pub(crate) fn acquired(name: &Resource, fence: Fence, waited: Duration, explained: bool) -> Line {
    let words = format!("acquired {name} after {} (fence {fence})", Measured(waited));
    let line = if explained { Line::new("acquired", words) } else { Line::detail("acquired", words) };
    line.with("lock", name.as_str()).with("fence", fence.get()).with("waited_ms", millis(waited))
}

/// Says why the lock was not acquired, and what to type next.
pub(crate) async fn say_not_acquired(
    wanted: Wanted<'_>,
    error: &Error,
    exit_code: u8,
    settings: &Settings,
    output: &Output,
) {
    // With `-E 0` a skip is a success, and cron mails every line that a command prints.
    if exit_code == exit::OK && !output.style().is_terminal {
        output.print(not_acquired(wanted, error, None, settings).at(Level::Verbose));
        return;
    }
    let page = listing(wanted, error).await;
    output.print(not_acquired(wanted, error, page.as_deref(), settings));
}

/// By the error, and by a listing that was made since, if there is one: the answer to a request is older, does not say
/// that a command has ended, and a reader that is refused does not learn of a writer that waits.
fn not_acquired(wanted: Wanted<'_>, error: &Error, page: Option<&[LeaseRecord]>, settings: &Settings) -> Line {
    let name = error.resource().unwrap_or(wanted.asked.get());
    let mut holders = error.holders().to_vec();
    let first = holders.first_mut().and_then(|first| {
        let record = page?.iter().find(|lease| lease.fence() == Some(first.fence))?;
        if let LeaseState::Holding { held_for, .. } = record.state {
            first.held_for = held_for;
        }
        Some(record)
    });
    let ended = first.and_then(CommandEnded::of).map(|ended| format!(" ({})", ended.brief())).unwrap_or_default();
    let waits_to_write = |lease: &&LeaseRecord| {
        // We may not have left the queue yet.
        let is_other = lease.holder != *wanted.locks.holder();
        is_other && lease.fence().is_none() && lease.claim.mode() == Mode::Exclusive
    };
    let are_readers = holders.iter().all(|holder| holder.mode == Mode::Shared);
    let writer = page.filter(|_| are_readers).and_then(|leases| leases.iter().find(waits_to_write));
    let writer = writer.map(|writer| format!("; {} waits to write", short(writer.holder.as_str()))).unwrap_or_default();
    let end = match wanted.wait {
        WaitLimit::For(wait) => format!("gave up after {} (-w)", Brief(wait)),
        _ => String::from("not waiting (-n)"),
    };
    Line::new("not_acquired", format!("{}{ended}{writer} — {end}", busy(name, &holders)))
        .hint(format!("see it: {}", settings.command(&format!("inspect {}", shell::operand(name.as_str())))))
        .with("lock", name.as_str())
        .with("holders", holders.iter().map(json::held_by).collect::<Vec<_>>())
}

/// The leases of the lock that was not acquired.
async fn listing(wanted: Wanted<'_>, error: &Error) -> Option<Vec<LeaseRecord>> {
    let filter = ListFilter::new(Names::Exactly(error.resource().unwrap_or(wanted.asked.get()).clone()));
    Some(tokio::time::timeout(LOOK_LIMIT, wanted.locks.list(&filter)).await.ok()?.ok()?.leases)
}

/// Who has the lock, as far as the backend can tell.
fn busy(name: &Resource, holders: &[HeldBy]) -> String {
    match held_by(holders) {
        Some(holders) => format!("{name} is held by {holders}"),
        // On redlock nobody may have a majority; on Postgres the row may be locked.
        None => format!("{name} is busy: others wait for it or use it"),
    }
}

/// `alice@laptop:8812 (sleep) for 4s`, and how many more.
pub(crate) fn held_by(holders: &[HeldBy]) -> Option<String> {
    let (first, rest) = holders.split_first()?;
    let note = first.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    let more = and_others(rest.len());
    Some(format!("{}{note} for {}{more}", short(first.holder.as_str()), Brief(first.held_for)))
}

/// ` and 3 other holders`.
fn and_others(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => String::from(" and another holder"),
        count => format!(" and {count} other holders"),
    }
}

/// Explains the wait; never ends. Where somebody sits at a terminal one line is drawn over again, elsewhere lines come
/// at growing intervals.
async fn explain(wanted: Wanted<'_>, started: Moment, explained: &Cell<bool>, output: &Output) {
    if wanted.wait == WaitLimit::Try || output.style().level == Level::Quiet {
        return pending().await;
    }
    tokio::time::sleep(EXPLAIN_AFTER).await;
    let mut pause = EXPLAIN_AFTER;
    let mut is_away = false;
    loop {
        let (asked, name) = (SystemClock.now(), wanted.asked.get());
        let filter = ListFilter::new(Names::Exactly(name.clone()));
        let answer = if wanted.connect_retry.is_away() { None } else { Some(wanted.locks.list(&filter).await) };
        let was_away = std::mem::replace(&mut is_away, matches!(answer, Some(Err(_))));
        explained.set(explained.get() || answer.is_some());
        match answer {
            Some(Ok(page)) if output.has_screen() => {
                show_for(pause.min(MAX_ANSWER_AGE), wanted, name, &page.leases, [started, asked], output).await;
            }
            Some(Ok(page)) => {
                output.print(explanation(wanted, name, &page.leases, asked.since(started), Duration::ZERO));
                tokio::time::sleep(pause).await;
            }
            Some(Err(error)) => {
                if !was_away {
                    let words = format!("{error:#}; still waiting for {name}");
                    output.print(Line::warning(words).with("lock", name.as_str()));
                }
                tokio::time::sleep(pause).await;
            }
            None => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Shows the same answer for a while, with its times going on, so that the backend is not asked every second; until
/// another lock is requested.
async fn show_for(
    pause: Duration,
    wanted: Wanted<'_>,
    name: &Resource,
    leases: &[LeaseRecord],
    times: [Moment; 2],
    output: &Output,
) {
    let [started, asked] = times;
    loop {
        let now = SystemClock.now();
        output.show(&explanation(wanted, name, leases, now.since(started), now.since(asked)).message());
        if now.since(asked) >= pause {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        if wanted.asked.get() != name {
            return;
        }
    }
}

/// The waiting message, from a listing taken `age` ago.
fn explanation(wanted: Wanted<'_>, name: &Resource, leases: &[LeaseRecord], since: Duration, age: Duration) -> Line {
    let holders: Vec<&LeaseRecord> =
        leases.iter().filter(|lease| matches!(lease.state, LeaseState::Holding { .. })).collect();
    let own = wanted.locks.holder();
    let ahead = leases.iter().rev().find_map(|lease| match lease.state {
        LeaseState::Waiting { ahead, .. } if lease.holder == *own => Some(ahead),
        _ => None,
    });
    let held = holders.split_first().map(|(first, rest)| {
        let note = first.note.as_ref().map(|note| format!(" \"{note}\"")).unwrap_or_default();
        let duration = match first.state {
            LeaseState::Holding { held_for, .. } => format!(" for {}", Brief(held_for + age)),
            LeaseState::Waiting { .. } => String::new(),
        };
        // Whether it was renewed since is not known.
        let renewed = first.expires_in.filter(|_| age < Duration::from_secs(1));
        let renewed = renewed.map(|_| format!(", renewed {} ago", Brief(first.renewed_ago)));
        let more = and_others(rest.len());
        let ended = CommandEnded::of(first).map(|ended| ended.after(age));
        let ended = ended.map(|ended| format!(" ({})", ended.brief())).unwrap_or_default();
        let renewed = renewed.unwrap_or_default();
        format!(" — held by {}{note}{duration}{renewed}{ended}{more}", short(first.holder.as_str()))
    });
    let place = ahead.filter(|ahead| *ahead > 0).map(|ahead| format!("; {ahead} ahead of you"));
    let end = match wanted.wait {
        WaitLimit::For(wait) => Some(format!("; giving up in {}", Brief(wait.saturating_sub(since)))),
        WaitLimit::Try | WaitLimit::Forever => None,
    };
    let parts = [held, place, end].map(Option::unwrap_or_default).concat();
    Line::new("waiting", format!("waiting for {name}{parts}"))
        .with("lock", name.as_str())
        .with("ahead", ahead)
        .with("waited_ms", millis(since))
        .with("holders", holders.iter().map(|record| json::lease(record)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_holders_are_counted_as_such() {
        assert_eq!([0, 1, 3].map(and_others), ["", " and another holder", " and 3 other holders"]);
    }

    #[test]
    fn a_busy_lock_without_a_holder_is_described_in_words_of_every_backend() {
        let name = Resource::new("deploy").unwrap();
        let words = busy(&name, &[]);
        assert!(words.starts_with("deploy is busy") && !words.contains("transaction"), "{words}");
    }
}
