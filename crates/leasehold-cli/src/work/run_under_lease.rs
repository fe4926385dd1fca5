//! Runs a command under leases that are held, reports what happens, and releases them.

use std::{os::fd::OwnedFd, time::Duration};

use leasehold::{
    ErrorKind, Guard, Lease, Leasehold, Loss, Outcome,
    clock::{Clock, SystemClock},
    lease::{Moment, Released},
};
use leasehold_supervise::{
    Cause, Ended, Launch, Limits, NotStarted, Notice, Signals, Status, Straggler, Stragglers, signal_name, supervise,
};

use super::{report, supervisor};
use crate::{
    duration::{Brief, Measured},
    exit::{self, Failure},
    output::{Line, Output},
    settings::Level,
};

/// How long the last answer of the backend may take.
pub(crate) const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// How many processes a line names.
const NAMED: usize = 5;

/// The command and the rules it runs by.
#[derive(Debug)]
pub(crate) struct Work {
    /// What to start.
    pub(crate) launch: Launch,
    /// How long it may go on, and whom to signal.
    pub(crate) limits: Limits,
    /// Keep the lock at least this long.
    pub(crate) min_hold: Duration,
    /// Let the child keep our presence alive.
    pub(crate) inherit: bool,
    /// The backend, as anybody may see it.
    pub(crate) place: String,
    /// Whether a command that ends because we were asked to end has done its work: a leader has, a job has not.
    pub(crate) runs_until_asked: bool,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Done {
    /// Our exit code.
    pub(crate) exit_code: u8,
    /// What came of it, in the report's words.
    pub(crate) outcome: report::Outcome,
    /// Why, in one word.
    pub(crate) reason: Option<String>,
    /// The child, unless it could not be started at all.
    pub(crate) ended: Option<Ended>,
    /// How long the leases were held.
    pub(crate) held: Duration,
    /// A release that could not be made.
    pub(crate) unreleased: Option<Failure>,
}

impl Work {
    /// Runs the command under these guards and gives them back, unless they were lost.
    ///
    /// The first guard is the lock that was named first.
    pub(crate) async fn run(
        self,
        locks: &Leasehold,
        guards: Vec<Guard>,
        signals: &mut Signals,
        output: &Output,
    ) -> Done {
        let acquired = SystemClock.now();
        let leases: Vec<Lease> = guards.iter().map(|guard| guard.lease().clone()).collect();
        let inherit = self.inherit.then(|| locks.backend().inheritable()).flatten();
        let ended = match self.supervise(&leases, inherit, signals, output).await {
            Ok(ended) => ended,
            Err(NotStarted::Lost(loss)) => return self.lost_before(loss, &leases, acquired, output),
            Err(NotStarted::Failed(error)) => return self.not_started(&error, guards, acquired, output).await,
        };
        let mut done = self.judge(ended, acquired, output);
        if done.outcome == report::Outcome::Lost {
            // A lease that is gone has nothing to give back. One that was only close to its end is let go in the
            // background: the command is dead, and nobody shall wait for us.
            drop(guards);
            return done;
        }
        self.keep_for_min_hold(&leases, acquired, signals).await;
        let outcome = self.outcome_of(&done);
        self.release(guards, outcome, &mut done, output).await;
        done.held = SystemClock.now().since(acquired);
        done
    }

    async fn supervise(
        &self,
        leases: &[Lease],
        inherit: Option<OwnedFd>,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<Ended, NotStarted> {
        let mut tell = |notice| {
            // A lease that is gone is no longer in doubt, though its command may go on.
            let is_known = matches!(notice, Notice::InDoubt { lease, .. } if leases[lease].loss().is_some());
            if !is_known {
                output.print(self.words(notice, leases));
            }
        };
        supervise(&self.launch, leases, self.limits, inherit, signals, &mut tell).await
    }

    fn words(&self, notice: Notice, leases: &[Lease]) -> Line {
        let command = self.launch.name();
        let lock = |at: usize| leases.get(at).map(|lease| lease.resource().to_string()).unwrap_or_default();
        match notice {
            Notice::Started { pid } => Line::debug(format!("{command} runs as process {pid}")),
            Notice::InDoubt { lease, left } => Line::warning(format!(
                "cannot renew {} ({}); {} left on the lease",
                lock(lease),
                self.place,
                Brief(left)
            ))
            .with("lock", lock(lease)),
            Notice::Stopping { cause: Cause::Lost(loss), signal, grace } => {
                let how = match grace {
                    Some(grace) => format!("{signal}, then KILL in {}", Brief(grace)),
                    None => signal.to_string(),
                };
                let which = leases.iter().position(|lease| lease.check().is_err()).unwrap_or(0);
                Line::lost(format!("{}: {}. Stopping {command} ({how})", lock(which), words_of(loss)))
                    .with("lock", lock(which))
                    .with("reason", loss.as_str())
            }
            Notice::Stopping { cause: Cause::MaxHold, grace, .. } => Line::new(
                "max_hold",
                format!(
                    "{} was held for {}, as long as it may be. Stopping {command} (TERM, then KILL in {})",
                    lock(0),
                    Brief(self.limits.max_hold.unwrap_or_default()),
                    Brief(grace.unwrap_or_default())
                ),
            ),
            Notice::Stopping { cause: Cause::Interrupt, signal, grace } => Line::new(
                "interrupted",
                format!("{signal} passed on to {command}; KILL follows in {}", Brief(grace.unwrap_or_default())),
            ),
            Notice::GoesOn { loss } => Line::lost(format!(
                "{}: {}. {command} goes on without the lock (--on-lost continue)",
                lock(0),
                words_of(loss)
            ))
            .with("lock", lock(0))
            .with("reason", loss.as_str()),
            Notice::Stragglers { left, choice } => {
                let names = listed(&left);
                let words = match choice {
                    Stragglers::Stop => format!(
                        "{command} ended and left {names} running: TERM, then KILL in {}",
                        Brief(self.limits.kill_after)
                    ),
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
                Line::new("stragglers", words)
                    .with("pids", left.iter().map(|straggler| straggler.pid).collect::<Vec<_>>())
            }
            Notice::Overdue => Line::warning(format!(
                "{command} or what it started does not die of KILL; the lock is kept until it does"
            )),
            other => supervisor::words(&other, &command).unwrap_or_else(|| Line::debug(format!("{other:?}"))),
        }
    }

    fn judge(&self, ended: Ended, acquired: Moment, output: &Output) -> Done {
        let command = self.launch.name();
        let how = match ended.status {
            Status::Exited(code) => format!("ended with code {code}"),
            Status::Killed(number) => format!("ended by {}", signal_name(number)),
        };
        let of_child = match ended.status {
            Status::Exited(code) => code,
            Status::Killed(number) => exit::of_signal(number),
        };
        let (exit_code, outcome, reason) = match (ended.cause, ended.interrupted) {
            (Some(Cause::Lost(loss)), _) => {
                output.print(Line::new("ended", format!("{command} {how}. The lock was not ours to release.")));
                (exit::LOST, report::Outcome::Lost, Some(loss.as_str().to_owned()))
            }
            (Some(Cause::MaxHold), _) => (exit::MAX_HOLD, report::Outcome::MaxHold, None),
            (_, Some(signal)) => (of_child, report::Outcome::Interrupted, Some(signal.to_string())),
            _ => (of_child, report::Outcome::Completed, None),
        };
        output.print(Line::debug(format!("{command} {how}")));
        let held = SystemClock.now().since(acquired);
        Done { exit_code, outcome, reason, ended: Some(ended), held, unreleased: None }
    }

    /// A lease was lost before the command was started.
    fn lost_before(&self, loss: Loss, leases: &[Lease], acquired: Moment, output: &Output) -> Done {
        let which = leases.iter().find(|lease| lease.check().is_err()).or(leases.first());
        let name = which.map(|lease| lease.resource().to_string()).unwrap_or_default();
        output.print(
            Line::lost(format!("{name}: {}. {} was not started", words_of(loss), self.launch.name()))
                .with("lock", name.as_str())
                .with("reason", loss.as_str()),
        );
        Done {
            exit_code: exit::LOST,
            outcome: report::Outcome::Lost,
            reason: Some(loss.as_str().to_owned()),
            ended: None,
            held: SystemClock.now().since(acquired),
            unreleased: None,
        }
    }

    /// The command could not be run.
    async fn not_started(self, error: &std::io::Error, guards: Vec<Guard>, acquired: Moment, output: &Output) -> Done {
        let words = format!("cannot run {}: {}", self.launch.name(), bare(error));
        output.print(Line::new("exec_failed", words).at(Level::Quiet));
        let mut done = Done {
            exit_code: exit::of_exec(error),
            outcome: report::Outcome::ExecFailed,
            reason: Some(bare(error)),
            ended: None,
            held: SystemClock.now().since(acquired),
            unreleased: None,
        };
        self.release(guards, Outcome::failed("exec_failed", bare(error)), &mut done, output).await;
        done
    }

    /// Waits out the shortest hold, unless the lock goes or somebody wants us to end.
    async fn keep_for_min_hold(&self, leases: &[Lease], acquired: Moment, signals: &mut Signals) {
        let until = acquired.after(self.min_hold);
        if SystemClock.now() >= until {
            return;
        }
        let Some(lease) = leases.first() else { return };
        tokio::select! {
            () = SystemClock.alarm_at(until) => {}
            _signal = signals.next_ending() => {}
            _loss = lease.lost() => {}
        }
    }

    /// Gives the leases back, the last taken first, and tells what was found.
    async fn release(&self, guards: Vec<Guard>, outcome: Outcome, done: &mut Done, output: &Output) {
        for guard in guards.into_iter().rev() {
            let lease = guard.lease().clone();
            let name = lease.resource().to_string();
            // Known before the end of a hold that went on for the sake of --min-hold only.
            let lost_after = lease.loss();
            let left = lease.remaining();
            let released = tokio::time::timeout(RELEASE_LIMIT, guard.release_as(outcome.clone())).await;
            match released {
                Ok(Ok(Released::Gone)) if lost_after.is_some() && !self.min_hold.is_zero() => {
                    output.print(Line::warning(format!("{name} was lost after {} ended", self.launch.name())));
                }
                Ok(Ok(Released::Gone)) => self.found_gone(&lease, done, output),
                Ok(Err(error)) if error.kind() == ErrorKind::Lost => self.found_gone(&lease, done, output),
                Ok(Ok(_)) => output.print(
                    Line::detail("released", format!("released {name} after {}", Measured(done.held)))
                        .with("lock", name.as_str()),
                ),
                Ok(Err(error)) => not_released(&name, left, &error.to_string(), done, output),
                Err(_elapsed) => not_released(&name, left, "no answer", done, output),
            }
        }
    }

    /// How history shall remember it.
    fn outcome_of(&self, done: &Done) -> Outcome {
        match (done.outcome, &done.ended) {
            (report::Outcome::MaxHold, _) => Outcome::MaxHold,
            (report::Outcome::ExecFailed, _) => Outcome::failed("exec_failed", done.reason.clone().unwrap_or_default()),
            (report::Outcome::Interrupted, _) if self.runs_until_asked => Outcome::Completed,
            (_, Some(Ended { status: Status::Exited(0), .. }) | None) => Outcome::Completed,
            (_, Some(Ended { status: Status::Exited(code), .. })) => {
                Outcome::failed("exit_code", format!("exit code {code}"))
            }
            (_, Some(Ended { status: Status::Killed(number), .. })) => {
                Outcome::failed("signal", format!("signal {}", signal_name(*number)))
            }
        }
    }

    fn found_gone(&self, lease: &Lease, done: &mut Done, output: &Output) {
        let loss = lease.loss().unwrap_or(Loss::Gone);
        let name = lease.resource();
        output.print(
            Line::lost(format!("{name}: {} before {} had ended", words_of(loss), self.launch.name()))
                .with("lock", name.as_str())
                .with("reason", loss.as_str()),
        );
        done.exit_code = exit::LOST;
        done.outcome = report::Outcome::Lost;
        done.reason = Some(loss.as_str().to_owned());
    }
}

fn not_released(name: &str, left: Option<Duration>, why: &str, done: &mut Done, output: &Output) {
    let lapse = match left {
        Some(left) => format!("the lease will lapse in {}", Brief(left)),
        None => String::from("it ends with this process"),
    };
    let words = format!("cannot release {name} ({why}); {lapse}");
    output.print(Line::warning(words.clone()));
    done.unreleased = Some(Failure::unavailable(words));
}

/// `sleep (4121), sh (4122)`, and how many more.
pub(crate) fn listed(processes: &[Straggler]) -> String {
    let named: Vec<String> =
        processes.iter().take(NAMED).map(|process| format!("{} ({})", process.name, process.pid)).collect();
    let rest = processes.len() - named.len();
    let more = if rest == 0 { String::new() } else { format!(" and {rest} more") };
    named.join(", ") + &more
}

fn words_of(loss: Loss) -> &'static str {
    match loss {
        Loss::RenewTimeout => "not renewed in time",
        Loss::Evicted => "evicted by an operator",
        Loss::Gone => "the backend no longer knows the lease",
        _ => "no longer held",
    }
}

/// The error without the number that only programmers read.
fn bare(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use leasehold_supervise::{KillMode, OnLost};

    use super::*;
    use crate::settings::Looks;

    #[tokio::test]
    async fn a_command_whose_lock_is_lost_before_its_start_counts_as_lost() {
        let locks = Leasehold::connect("memory:").await.unwrap();
        let guard = locks.mutex("lost-before-the-start").acquire().await.unwrap();
        locks.evict(guard.resource(), guard.fence(), "too late").await.unwrap();
        guard.lease().lost().await;
        let folder = tempfile::tempdir().unwrap();
        let ran = folder.path().join("ran");
        let work = Work {
            launch: Launch {
                command: vec!["true".into()],
                supervisor: vec!["sh".into(), "-c".into(), "touch \"$0\"".into(), ran.clone().into()],
                ..Launch::default()
            },
            limits: Limits {
                ttl: guard.ttl(),
                kill_after: Duration::from_secs(1),
                kill_mode: KillMode::Group,
                on_lost: OnLost::Terminate,
                max_hold: None,
                kill_on_term: false,
                stragglers: Stragglers::Stop,
            },
            min_hold: Duration::ZERO,
            inherit: false,
            place: String::from("memory:"),
            runs_until_asked: false,
        };
        let mut signals = Signals::catch().unwrap();
        let done = work.run(&locks, vec![guard], &mut signals, &Output::new(Looks::plain())).await;
        assert_eq!((done.exit_code, done.outcome), (exit::LOST, report::Outcome::Lost));
        assert!(done.ended.is_none() && done.reason.as_deref() == Some("evicted"), "{done:?}");
        assert!(!ran.exists(), "nothing was started");
    }
}
