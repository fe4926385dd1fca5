//! The wording of what happens to a command that runs under leases.

use std::time::Duration;

use leasehold::{Lease, Loss};
use leasehold_supervise::{Cause, Limits, Notice, Status, Straggler, Stragglers, signal_name};

use crate::{duration::Brief, output::Line};

/// How many processes a line names.
const MAX_NAMED_PROCESSES: usize = 5;

/// What a holder says about its command, which runs under these leases at this backend.
pub(super) fn of_notice(notice: Notice, command: &str, leases: &[Lease], place: &str, limits: Limits) -> Line {
    let lock = |at: usize| leases.get(at).map(|lease| lease.resource().to_string()).unwrap_or_default();
    match notice {
        Notice::Started { pid } => Line::debug(format!("{command} runs as process {pid}")),
        Notice::InDoubt { lease, left } => {
            Line::warning(format!("cannot renew {} ({place}); {} left on the lease", lock(lease), Brief(left)))
                .with("lock", lock(lease))
        }
        Notice::Stopping { cause: Cause::Lost(loss), signal, grace } => {
            let how = stopping(&signal.to_string(), grace);
            lost(lost_one(leases), loss, &format!("Stopping {command} ({how})"))
        }
        Notice::FoundLost { loss } => lost_before_the_end(lost_one(leases), loss, command),
        Notice::Stopping { cause: Cause::MaxHold, grace, .. } => Line::new(
            "max_hold",
            format!(
                "{} was held for {}, as long as --max-hold allows. Stopping {command} (TERM, then KILL in {})",
                lock(0),
                Brief(limits.max_hold.unwrap_or_default()),
                Brief(grace.unwrap_or_default())
            ),
        ),
        Notice::Stopping { cause: Cause::Interrupt, signal, grace } => Line::new(
            "interrupted",
            format!("{signal} passed on to {command}; KILL follows in {}", Brief(grace.unwrap_or_default())),
        ),
        Notice::ContinuesWithoutLease { loss } => {
            lost(&leases[0], loss, &format!("{command} goes on without the lock (--on-lost continue)"))
        }
        Notice::Stragglers { left, choice } => {
            let names = listed(&left);
            let words = match choice {
                Stragglers::Stop => {
                    format!("{command} ended and left {names} running: TERM, then KILL in {}", Brief(limits.kill_after))
                }
                Stragglers::Wait if left.len() == 1 => {
                    format!("{command} ended; the lock is kept until {names} ends (--stragglers wait)")
                }
                Stragglers::Wait => {
                    format!("{command} ended; the lock is kept until {names} end (--stragglers wait)")
                }
                Stragglers::Leave if left.len() == 1 => {
                    format!("{command} ended; {names} goes on without the lock (--stragglers leave)")
                }
                Stragglers::Leave => {
                    format!("{command} ended; {names} go on without the lock (--stragglers leave)")
                }
            };
            Line::new("stragglers", words).with("pids", left.iter().map(|straggler| straggler.pid).collect::<Vec<_>>())
        }
        Notice::Overdue => {
            Line::warning(format!("{command} or what it started does not die of KILL; the lock is kept until it does"))
        }
        other => of_supervision(&other, command).unwrap_or_else(|| Line::debug(format!("{other:?}"))),
    }
}

/// What the holder and the supervisor say about each other, or about processes that they may not stop; `None` for
/// other notices, which are about the lease.
pub(super) fn of_supervision(notice: &Notice, command: &str) -> Option<Line> {
    match notice {
        Notice::HolderGone => Some(Line::warning(format!(
            "leasehold was killed while {command} ran under its lock: killing {command} and what it started"
        ))),
        Notice::HolderHangs => {
            Some(Line::warning(format!("leasehold hangs or is stopped: stopping {command} before the lease ends")))
        }
        Notice::SupervisorGone => Some(Line::warning(format!(
            "the supervisor of {command} was killed: killing {command} and what it started"
        ))),
        Notice::Denied { left } => Some(
            Line::warning(format!("not permitted to stop {}, which must not go on without the lock", listed(left)))
                .hint("stop it with the rights it has, such as those of root")
                .with("pids", left.iter().map(|process| process.pid).collect::<Vec<_>>()),
        ),
        _ => None,
    }
}

/// `x was evicted: host gone (by alice@web-3)`
pub(crate) fn evicted(lease: &Lease, details: &str) -> Line {
    let name = lease.resource();
    Line::new("evicted", format!("{name} was evicted: {details}")).with("lock", name.as_str()).with("details", details)
}

/// `x was released, with its handle: by the command, which has it (LEASEHOLD_LEASE)?`
pub(super) fn released_by_handle(lease: &Lease) -> Line {
    let name = lease.resource();
    let words = format!("{name} was released, with its handle: by the command, which has it (LEASEHOLD_LEASE)?");
    Line::new("released_by_handle", words).with("lock", name.as_str())
}

/// `LOST x: not renewed in time. Stopping ./reindex`
pub(crate) fn lost(lease: &Lease, loss: Loss, what: &str) -> Line {
    let name = lease.resource();
    Line::lost(format!("{name}: {}. {what}", loss_message(loss)))
        .with("lock", name.as_str())
        .with("reason", loss.as_str())
}

/// `LOST x: not renewed in time before ./reindex had ended`
pub(super) fn lost_before_the_end(lease: &Lease, loss: Loss, command: &str) -> Line {
    let name = lease.resource();
    Line::lost(format!("{name}: {} before {command} had ended", loss_message(loss)))
        .with("lock", name.as_str())
        .with("reason", loss.as_str())
}

/// The first that is lost by now.
fn lost_one(leases: &[Lease]) -> &Lease {
    leases.iter().find(|lease| lease.check().is_err()).unwrap_or(&leases[0])
}

/// `sleep (4121), sh (4122)`, and how many more.
fn listed(processes: &[Straggler]) -> String {
    let named: Vec<String> = processes
        .iter()
        .take(MAX_NAMED_PROCESSES)
        .map(|process| format!("{} ({})", process.name, process.pid))
        .collect();
    let rest = processes.len() - named.len();
    let more = if rest == 0 { String::new() } else { format!(" and {rest} more") };
    named.join(", ") + &more
}

/// `TERM, then KILL in 5s`
fn stopping(signal: &str, grace: Option<Duration>) -> String {
    match grace {
        Some(grace) if grace < Duration::from_millis(1) => format!("{signal}, then KILL at once"),
        Some(grace) => format!("{signal}, then KILL in {}", Brief(grace)),
        None => signal.to_owned(),
    }
}

/// `ended with code 3`, `ended by KILL`
pub(super) fn how(status: Status) -> String {
    match status {
        Status::Exited(code) => format!("ended with code {code}"),
        Status::Killed(number) => format!("ended by {}", signal_name(number)),
    }
}

pub(super) fn loss_message(loss: Loss) -> &'static str {
    match loss {
        Loss::RenewTimeout => "not renewed in time",
        Loss::Evicted => "evicted by an operator",
        Loss::Gone => "the backend no longer knows the lease",
        _ => "no longer held",
    }
}

/// The error without the number that only programmers read.
pub(super) fn bare(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_time_left_is_killed_at_once() {
        let micros = Duration::from_micros;
        for (grace, words) in [
            (Some(micros(5_000_000)), "TERM, then KILL in 5s"),
            (Some(micros(300)), "TERM, then KILL at once"),
            (None, "TERM"),
        ] {
            assert_eq!(stopping("TERM", grace), words);
        }
    }
}
