//! Runs a command under guards that the caller has acquired, reports what happens, and releases them.

use std::{mem, os::fd::OwnedFd, time::Duration};

use leasehold::{
    ErrorKind, Guard, Lease, Leasehold, Loss, Outcome, Resource, Ttl,
    backend::{Liveness, Renewal},
    clock::{Clock, SystemClock},
    lease::{Ending, Moment, Released, Standing},
};
use leasehold_supervise::{
    Cause, ChildEnd, Launch, Limits, NotStarted, Notice, Signal, Signals, Status, signal_name, supervise,
};

use super::{
    lease_ending::{HISTORY_LIMIT, recorded_ending, who_evicted},
    messages,
    report::RunOutcome,
    runs,
};
use crate::{
    command_ended,
    duration::{Brief, Measured},
    error::CommandError,
    exit,
    output::{Line, Output},
    settings::Level,
};

/// How long the last answer of the backend may take.
pub(crate) const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// A longer wait after the command has ended explains itself on a terminal.
const EXPLAIN_AFTER: Duration = Duration::from_secs(2);

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
    /// The name under which a success is recorded, if it is.
    pub(crate) job: Option<Resource>,
    /// What to type instead if there is no such program, where that is known.
    pub(crate) if_not_found: Option<String>,
    /// Whether a command that ends because we were asked to end has done its work: a leader has, a job has not.
    pub(crate) runs_until_asked: bool,
}

/// How the work under the leases ended.
#[derive(Debug)]
pub(crate) struct WorkResult {
    /// Our exit code.
    pub(crate) exit_code: u8,
    /// What came of it, in the report's words.
    pub(crate) outcome: RunOutcome,
    /// Why, in one word.
    pub(crate) reason: Option<String>,
    /// What went wrong, as a phrase such as "not renewed in time".
    pub(crate) details: Option<String>,
    /// The child, unless it could not be started at all.
    pub(crate) ended: Option<ChildEnd>,
    /// How long the leases were held.
    pub(crate) held: Duration,
    /// A release that could not be made.
    pub(crate) unreleased: Option<CommandError>,
    /// Whether the leases were left behind for the rest of the shortest hold.
    pub(crate) is_left: bool,
}

/// What happened in the shortest hold.
#[derive(Debug, Default)]
struct Kept {
    /// Whether a success was recorded meanwhile: whoever kills us in the hold does not undo what the command has done.
    is_recorded: bool,
    /// The signal that asked us to end before it was over.
    interrupted_by: Option<Signal>,
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
    ) -> WorkResult {
        let acquired = SystemClock.now();
        let leases: Vec<Lease> = guards.iter().map(|guard| guard.lease().clone()).collect();
        let inherit = self.inherit.then(|| locks.backend().inheritable()).flatten();
        let ended = match self.supervise(&leases, inherit, signals, output).await {
            Ok(ended) => ended,
            Err(NotStarted::Lost(loss)) => {
                let mut done = self.lost_before(loss, &leases, acquired, output);
                say_who_ended(locks, &leases, &mut done, output).await;
                return done;
            }
            Err(NotStarted::Failed(error)) => return self.not_started(&error, guards, acquired, output).await,
        };
        let mut done = self.judge(ended, acquired, output);
        if done.outcome == RunOutcome::Lost {
            // A lease that is gone has nothing to give back. One that was only close to its end is let go in the
            // background: the command is dead, and nobody shall wait for us.
            drop(guards);
            say_who_ended(locks, &leases, &mut done, output).await;
            return done;
        }
        let kept = self.keep_for_min_hold(locks, &done, &leases, acquired, signals, output).await;
        if let Some(signal) = kept.interrupted_by {
            self.leave(locks, &guards, acquired, signal, output).await;
            done.is_left = true;
            // Dropped, they would be released.
            mem::forget(guards);
        } else {
            let outcome = self.outcome_of(&done);
            self.release(guards, outcome, &mut done, output).await;
        }
        done.held = SystemClock.now().since(acquired);
        match &self.job {
            _ if done.outcome == RunOutcome::Lost => say_who_ended(locks, &leases, &mut done, output).await,
            Some(job) if done.outcome == RunOutcome::Completed && !kept.is_recorded => {
                runs::succeeded(locks, job, output).await;
            }
            _ => {}
        }
        done
    }

    async fn supervise(
        &self,
        leases: &[Lease],
        inherit: Option<OwnedFd>,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<ChildEnd, NotStarted> {
        let command = self.launch.name();
        let mut notify = |notice| {
            // A lease that is gone is no longer in doubt, though its command may go on.
            let is_known = matches!(notice, Notice::InDoubt { lease, .. } if leases[lease].loss().is_some());
            if !is_known {
                output.print(messages::of_notice(notice, &command, leases, &self.place, self.limits));
            }
        };
        supervise(&self.launch, leases, self.limits, inherit, signals, &mut notify).await
    }

    fn judge(&self, ended: ChildEnd, acquired: Moment, output: &Output) -> WorkResult {
        let command = self.launch.name();
        let how = messages::how(ended.status);
        let of_child = match ended.status {
            Status::Exited(code) => code,
            Status::Killed(number) => exit::of_signal(number),
        };
        let failed = |reason: &str| (of_child, RunOutcome::Failed, Some(reason.to_owned()));
        let (exit_code, outcome, reason) = match (ended.cause, ended.interrupted) {
            (Some(Cause::Lost(loss)), _) => {
                output.print(Line::new("ended", format!("{command} {how}. The lock was not ours to release.")));
                (exit::LOST, RunOutcome::Lost, Some(loss.as_str().to_owned()))
            }
            (Some(Cause::MaxHold), _) => (exit::MAX_HOLD, RunOutcome::MaxHold, None),
            (_, Some(signal)) => (of_child, RunOutcome::Interrupted, Some(signal.to_string())),
            _ => match ended.status {
                Status::Exited(0) => (of_child, RunOutcome::Completed, None),
                Status::Exited(_) => failed("exit_code"),
                Status::Killed(_) => failed("signal"),
            },
        };
        output.print(Line::debug(format!("{command} {how}")));
        let held = SystemClock.now().since(acquired);
        let details = match ended.cause {
            Some(Cause::Lost(loss)) => Some(messages::loss_message(loss).to_owned()),
            _ => match ended.status {
                _ if outcome != RunOutcome::Failed => None,
                Status::Exited(code) => Some(format!("its command ended with code {code}")),
                Status::Killed(number) => Some(format!("its command was killed by {}", signal_name(number))),
            },
        };
        WorkResult { exit_code, outcome, reason, details, ended: Some(ended), held, unreleased: None, is_left: false }
    }

    /// A lease was lost before the command was started.
    fn lost_before(&self, loss: Loss, leases: &[Lease], acquired: Moment, output: &Output) -> WorkResult {
        if let Some(lease) = leases.iter().find(|lease| lease.check().is_err()).or(leases.first()) {
            output.print(messages::lost(lease, loss, &format!("{} was not started", self.launch.name())));
        }
        WorkResult {
            exit_code: exit::LOST,
            outcome: RunOutcome::Lost,
            reason: Some(loss.as_str().to_owned()),
            details: Some(messages::loss_message(loss).to_owned()),
            ended: None,
            held: SystemClock.now().since(acquired),
            unreleased: None,
            is_left: false,
        }
    }

    /// The command could not be run.
    async fn not_started(
        self,
        error: &std::io::Error,
        guards: Vec<Guard>,
        acquired: Moment,
        output: &Output,
    ) -> WorkResult {
        let words = format!("cannot run {}: {}", self.launch.name(), messages::bare(error));
        let line = Line::new("exec_failed", words).at(Level::Quiet);
        output.print(match &self.if_not_found {
            Some(hint) if error.kind() == std::io::ErrorKind::NotFound => line.hint(hint),
            _ => line,
        });
        let mut done = WorkResult {
            exit_code: exit::of_exec(error),
            outcome: RunOutcome::ExecFailed,
            reason: Some(messages::bare(error)),
            details: None,
            ended: None,
            held: SystemClock.now().since(acquired),
            unreleased: None,
            is_left: false,
        };
        self.release(guards, Outcome::failed("exec_failed", messages::bare(error)), &mut done, output).await;
        done
    }

    /// Waits out the shortest hold, unless the lock goes or somebody wants us to end.
    async fn keep_for_min_hold(
        &self,
        locks: &Leasehold,
        done: &WorkResult,
        leases: &[Lease],
        acquired: Moment,
        signals: &mut Signals,
        output: &Output,
    ) -> Kept {
        let mut kept = Kept::default();
        let (now, until) = (SystemClock.now(), acquired.after(self.min_hold));
        if now >= until {
            return kept;
        }
        let (Some(lease), Some(ended)) = (leases.first(), &done.ended) else { return kept };
        if ended.interrupted.is_some() {
            return kept;
        }
        let status = ended.status;
        let left = until.since(now);
        let line = Line::detail(
            "min_hold",
            format!(
                "{} {}; {} is kept for {} more (--min-hold)",
                self.launch.name(),
                messages::how(status),
                lease.resource(),
                Brief(left)
            ),
        )
        .with("lock", lease.resource().as_str());
        let is_worth_a_word = output.style().is_terminal && left > EXPLAIN_AFTER;
        output.print(if is_worth_a_word { line.at(Level::Normal) } else { line });
        let keep = async {
            let mut are_held = true;
            for lease in leases {
                let metadata = command_ended::mark(lease.metadata(), status, self.min_hold);
                // Without the mark it looks as if the command ran.
                are_held &= lease.set_metadata(metadata).await.is_ok();
            }
            if let Some(job) = &self.job
                && done.outcome == RunOutcome::Completed
                && are_held
            {
                kept.is_recorded = runs::record_success(locks, job).await.is_ok();
            }
            SystemClock.alarm_at(until).await;
        };
        let interrupted_by = tokio::select! {
            () = SystemClock.alarm_at(until) => None,
            () = keep => None,
            signal = signals.next_ending() => Some(signal),
            _loss = lease.lost() => None,
        };
        Kept { interrupted_by, ..kept }
    }

    /// Lets the leases live on without us until the shortest hold is over: on a host that is shut down, too, whoever
    /// comes next must not run the command again.
    async fn leave(&self, locks: &Leasehold, guards: &[Guard], acquired: Moment, signal: Signal, output: &Output) {
        let left = acquired.after(self.min_hold).since(SystemClock.now());
        let ttl = Ttl::new(left).unwrap_or(Ttl::MIN);
        for guard in guards {
            let (name, remaining) = (guard.resource(), guard.remaining());
            let renewal = [Renewal::new(guard.handle().key().clone(), ttl).detach(true)];
            let renewed = tokio::time::timeout(RELEASE_LIMIT, locks.backend().renew(&renewal)).await;
            let why = match renewed {
                Ok(Ok(answer)) => match answer.value.first() {
                    Some(Standing::Holding(_)) => {
                        // A renewal never shortens a lease that ends by the clock.
                        let by_clock = locks.guarantees().liveness == Liveness::Ttl;
                        let words = match remaining.filter(|remaining| by_clock && *remaining > left) {
                            Some(ttl) => format!("{} more (to the end of its ttl)", Brief(ttl)),
                            None => format!("{} more (--min-hold)", Brief(left)),
                        };
                        let words = format!("{signal}: {name} stays locked for {words}");
                        output.print(Line::new("left", words).with("lock", name.as_str()));
                        continue;
                    }
                    Some(Standing::Gone | Standing::Waiting(_)) => String::from("it is lost"),
                    Some(Standing::Unknown) | None => String::from("no answer"),
                },
                Ok(Err(error)) => format!("{error:#}"),
                Err(_elapsed) => String::from("no answer"),
            };
            let lapse = lapse(remaining);
            output.print(Line::warning(format!("cannot keep {name} for the rest of --min-hold ({why}); {lapse}")));
        }
    }

    /// Gives the leases back, the last taken first, and tells what was found.
    async fn release(&self, guards: Vec<Guard>, outcome: Outcome, done: &mut WorkResult, output: &Output) {
        for guard in guards.into_iter().rev() {
            let lease = guard.lease().clone();
            let name = lease.resource().to_string();
            // A loss during --min-hold: the command had already ended.
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
                Ok(Err(error)) => not_released(&name, left, &format!("{error:#}"), done, output),
                Err(_elapsed) => not_released(&name, left, "no answer", done, output),
            }
        }
    }

    /// How history shall remember it.
    fn outcome_of(&self, done: &WorkResult) -> Outcome {
        match (done.outcome, &done.ended) {
            (RunOutcome::MaxHold, _) => Outcome::MaxHold,
            (RunOutcome::ExecFailed, _) => Outcome::failed("exec_failed", done.reason.clone().unwrap_or_default()),
            (RunOutcome::Interrupted, _) if self.runs_until_asked => Outcome::Completed,
            (_, Some(ChildEnd { status: Status::Exited(0), .. }) | None) => Outcome::Completed,
            (_, Some(ChildEnd { status: Status::Exited(code), .. })) => {
                Outcome::failed("exit_code", format!("exit code {code}"))
            }
            (_, Some(ChildEnd { status: Status::Killed(number), .. })) => {
                Outcome::failed("signal", format!("signal {}", signal_name(*number)))
            }
        }
    }

    fn found_gone(&self, lease: &Lease, done: &mut WorkResult, output: &Output) {
        let loss = lease.loss().unwrap_or(Loss::Gone);
        output.print(messages::lost_before_the_end(lease, loss, &self.launch.name()));
        done.exit_code = exit::LOST;
        done.outcome = RunOutcome::Lost;
        done.reason = Some(loss.as_str().to_owned());
        done.details = Some(messages::loss_message(loss).to_owned());
    }
}

/// Says who took a lock away and why, or that somebody gave it back, if the history has it.
async fn say_who_ended(locks: &Leasehold, leases: &[Lease], done: &mut WorkResult, output: &Output) {
    for lease in leases {
        if let Some(details) = who_evicted(locks, lease).await {
            done.reason = Some(Loss::Evicted.as_str().to_owned());
            done.details = Some(format!("{}: {details}", messages::loss_message(Loss::Evicted)));
            output.print(messages::evicted(lease, &details));
        } else if lease.loss() == Some(Loss::Gone)
            && let Ok(Some(Ending::Released | Ending::Failed)) = recorded_ending(locks, lease, HISTORY_LIMIT).await
        {
            output.print(messages::released_by_handle(lease));
        }
    }
}

/// What becomes of a lease that is neither renewed nor released.
fn lapse(left: Option<Duration>) -> String {
    match left {
        Some(left) => format!("the lease will lapse in {}", Brief(left)),
        None => String::from("it ends with this process"),
    }
}

fn not_released(name: &str, left: Option<Duration>, why: &str, done: &mut WorkResult, output: &Output) {
    let words = format!("cannot release {name} ({why}); {}", lapse(left));
    output.print(Line::warning(words.clone()));
    done.unreleased = Some(CommandError::unavailable(words));
}

#[cfg(test)]
mod tests {
    use leasehold_supervise::{KillMode, OnLost, Stragglers};

    use super::*;
    use crate::settings::OutputStyle;

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
            job: None,
            if_not_found: None,
            runs_until_asked: false,
        };
        let mut signals = Signals::catch().unwrap();
        let done = work.run(&locks, vec![guard], &mut signals, &Output::new(OutputStyle::plain())).await;
        assert_eq!((done.exit_code, done.outcome), (exit::LOST, RunOutcome::Lost));
        assert!(done.ended.is_none() && done.reason.as_deref() == Some("evicted"), "{done:?}");
        assert!(!ran.exists(), "nothing was started");
    }
}
