//! `leasehold run`: a command while holding a lock.

use std::{cell::Cell, collections::BTreeSet, ffi::OsString, time::Duration};

use leasehold::{
    Guard, Leasehold, Resource, Ttl,
    clock::{Clock, SystemClock},
    lease::{ListFilter, Names},
};
use leasehold_supervise::{Launch, Limits, OnLost, Signals};

use super::CommandContext;
use crate::{
    args::{FlockArgs, RunArgs},
    duration::Brief,
    error::{CommandError, Result},
    exit, json,
    output::Line,
    run_command::{
        environment::variables,
        hooks,
        identity::Labels,
        lock_request::{self, LockRequest, WaitLimit},
        metrics_textfile::TextFile,
        nested::{self, AncestorLock},
        report::{self, Report, ReportFile, RunOutcome},
        run_under_lease::{Work, WorkResult},
        runs, supervisor_entry,
        wait::{self, Waited, Wanted},
    },
    settings::{Level, Settings},
    variables::environment,
};

/// Everything that was typed, checked before anything is touched.
struct JobPlan<'a> {
    args: &'a RunArgs,
    command: Vec<OsString>,
    request: LockRequest,
    limits: Limits,
    /// The ancestor beside which the lock is shared, if waiting for it could never end.
    beside: Option<AncestorLock>,
}

/// Runs the command under the lock; the exit code is its own unless something went wrong.
pub(crate) async fn run(context: &CommandContext<'_>, args: &RunArgs) -> Result<u8> {
    let plan = plan(context, args)?;
    if args.dry_run {
        return dry_run(context, &plan).await;
    }
    let file = args.report.as_deref().map(ReportFile::prepare).transpose()?;
    let metrics = args.metrics_textfile.as_deref().map(TextFile::prepare).transpose()?;
    let mut report = Report {
        lock: plan.request.resource.to_string(),
        mode: plan.request.claim.mode().as_str(),
        outcome: RunOutcome::BackendError,
        reason: None,
        backend: context.settings.url.split(':').next().unwrap_or_default().to_owned(),
        holder: plan.request.labels.holder.as_ref().map(ToString::to_string),
        holders: None,
        fence: None,
        waited: Duration::ZERO,
        held: None,
        ttl: plan.request.ttl.get(),
        child: None,
        released: None,
        exit_code: exit::OK,
        acquired_at: None,
        ended_at: SystemClock.wall(),
    };
    let mut signals =
        Signals::catch().map_err(|error| CommandError::unavailable(format!("cannot catch signals: {error}")))?;
    let result = attempt(context, plan, &mut signals, &mut report).await;
    report.ended_at = SystemClock.wall();
    report.exit_code = match &result {
        Ok(code) => *code,
        Err(failure) => {
            report.reason.get_or_insert_with(|| failure.kind.to_owned());
            failure.code
        }
    };
    if let Some(file) = file
        && let Err(failure) = file.write(&report)
    {
        context.output.print(Line::warning(failure.message));
    }
    if let Some(Err(failure)) = metrics.map(|metrics| metrics.add(&report, &context.settings.namespace)) {
        context.output.print(Line::warning(failure.message));
    }
    hooks::run(&args.hooks, &report, &mut signals, context.output).await;
    result
}

fn plan<'a>(context: &CommandContext<'_>, args: &'a RunArgs) -> Result<JobPlan<'a>> {
    if let Some(refusal) = refusal(args.flock, &context.settings) {
        return Err(refusal);
    }
    let is_descriptor = args.name.parse::<u16>().is_ok() && args.child.command.is_empty() && args.child.shell.is_none();
    if is_descriptor {
        let words = format!("run needs a command: {} is taken for a lock's name, not for a descriptor", args.name);
        return Err(CommandError::usage(words).hint(in_a_script(&context.settings)));
    }
    if args.max_hold == Some(Duration::ZERO) {
        return Err(CommandError::usage("--max-hold 0 would stop the command at once")
            .hint("write how long it may run: --max-hold 10m"));
    }
    if let (Some(least), Some(most)) = (args.min_hold, args.max_hold)
        && least > most
    {
        let words = format!("--min-hold {} is longer than --max-hold {}", Brief(least), Brief(most));
        return Err(CommandError::usage(words));
    }
    let resource = lock_request::resource(&args.name)?;
    let others = args.also.iter().map(|name| lock_request::resource(name)).collect::<Result<BTreeSet<Resource>>>()?;
    let command = context.command(&args.child, "run")?;
    let ttl = lock_request::ttl(args.ttl, context.settings.ttl, Ttl::DEFAULT)?;
    let limits = Limits { max_hold: args.max_hold, ..args.child.limits(ttl, context.settings.kill_after)? };
    let holder = ("--holder", args.shown.holder.as_deref());
    let request = LockRequest {
        all: others.into_iter().chain([resource.clone()]).collect(),
        resource,
        claim: lock_request::claim(&args.ask)?,
        ttl,
        wait: WaitLimit::of(&args.ask),
        began: SystemClock.now(),
        labels: Labels::new(holder, &args.shown.notes, &command, args.child.show_args)?,
    };
    Ok(JobPlan { args, command, request, limits, beside: None })
}

/// Waits, runs and gives back; what came of it goes into the report.
async fn attempt(
    context: &CommandContext<'_>,
    mut plan: JobPlan<'_>,
    signals: &mut Signals,
    report: &mut Report,
) -> Result<u8> {
    let output = context.output;
    let connect_retry = context.connect_retry(plan.request.wait);
    let locks = tokio::select! {
        biased;
        locks = context.open(plan.request.labels.holder.clone(), &connect_retry) => locks?,
        signal = signals.next_ending() => return Ok(interrupted(report, signal.number(), &signal.to_string())),
    };
    plan.limits = plan.args.child.within(plan.limits, locks.guarantees().silence_limit)?;
    locks.guarantees().kind.clone_into(&mut report.backend);
    report.holder = Some(locks.holder().to_string());

    let outers = AncestorLock::all(&environment);
    leave_out_outer_locks(&locks, &mut plan, &outers, report).await?;

    let asked = Cell::new(&plan.request.resource);
    let wanted = Wanted {
        locks: &locks,
        all: &plan.request.all,
        asked: &asked,
        wait: plan.request.wait,
        connect_retry: &connect_retry,
    };
    let started = SystemClock.now();
    let result = wait::wait(wanted, async || plan.request.acquire(&locks, &asked).await, signals, output).await;
    report.waited = SystemClock.now().since(started);
    let guards = match result? {
        Waited::Acquired { held, explained } => {
            for guard in &held {
                output.print(wait::acquired(guard.resource(), guard.fence(), guard.waited(), explained));
            }
            named_first(held, &plan.request.resource)
        }
        Waited::NotAcquired(error) => {
            if let Some(outer) = &plan.beside {
                wait::leave(&locks).await;
                return Err(nested::would_never_end(&plan.request.resource, outer));
            }
            runs::skipped(&locks, &plan.request.resource, &error).await;
            let code = plan.args.ask.conflict_exit_code;
            wait::say_not_acquired(wanted, &error, code, &context.settings, output).await;
            wait::leave(&locks).await;
            report.outcome = RunOutcome::NotAcquired;
            report.holders = Some(error.holders().to_vec());
            report.reason =
                Some(String::from(if plan.request.wait == WaitLimit::Try { "busy" } else { "wait_elapsed" }));
            return Ok(code);
        }
        Waited::Interrupted(signal) => return Ok(interrupted(report, signal.number(), &signal.to_string())),
    };
    if let Some(guard) = guards.first() {
        report.fence = Some(guard.fence().get());
        report.acquired_at = Some(guard.acquired_at());
    }
    if plan.limits.on_lost == OnLost::Continue {
        output.print(Line::warning(format!(
            "--on-lost continue: if {} is lost, the command goes on without it",
            plan.request.resource
        )));
    }
    let done = work(context, &plan, &guards, &outers, &locks).run(&locks, guards, signals, output).await;
    finish(&plan, done, report)
}

fn work(
    context: &CommandContext<'_>,
    plan: &JobPlan<'_>,
    guards: &[Guard],
    outers: &[AncestorLock],
    locks: &Leasehold,
) -> Work {
    let leases: Vec<_> = guards.iter().map(|guard| guard.lease().clone()).collect();
    Work {
        launch: Launch {
            command: plan.command.clone(),
            env: variables(&leases, locks.guarantees().kind, outers, &context.settings.for_child),
            supervisor: supervisor_entry::program(context.output.style()),
            ..Launch::default()
        },
        limits: plan.limits,
        min_hold: plan.args.min_hold.unwrap_or_default(),
        inherit: !plan.args.child.no_inherit,
        place: context.settings.shown_url(),
        job: Some(plan.request.resource.clone()),
        if_not_found: context.not_found_hint("run", &plan.args.name, &plan.command),
        runs_until_asked: false,
    }
}

fn finish(plan: &JobPlan<'_>, done: WorkResult, report: &mut Report) -> Result<u8> {
    report.outcome = done.outcome;
    report.reason = done.reason;
    report.held = Some(done.held);
    report.child = done.ended.as_ref().map(report::child);
    let is_released_or_failed = done.outcome != RunOutcome::Lost && !done.is_left;
    report.released = is_released_or_failed.then_some(done.unreleased.is_none());
    match done.unreleased {
        Some(failure) if plan.args.strict_release => {
            report.outcome = RunOutcome::BackendError;
            report.reason = Some(String::from("not_released"));
            Err(CommandError { message: String::new(), ..failure })
        }
        _ => Ok(done.exit_code),
    }
}

fn interrupted(report: &mut Report, number: i32, name: &str) -> u8 {
    report.outcome = RunOutcome::Interrupted;
    report.reason = Some(name.to_owned());
    exit::of_signal(number)
}

/// The lock that was named first, first; the others in their order.
fn named_first(mut guards: Vec<Guard>, name: &Resource) -> Vec<Guard> {
    if let Some(at) = guards.iter().position(|guard| guard.resource() == name) {
        guards[..=at].rotate_right(1);
    }
    guards
}

/// A lock that our ancestors hold is refused, or left out where that was asked for.
async fn leave_out_outer_locks(
    locks: &Leasehold,
    plan: &mut JobPlan<'_>,
    outers: &[AncestorLock],
    report: &mut Report,
) -> Result<()> {
    for resource in plan.request.all.clone() {
        let Some(outer) = nested::held_outside(locks, &resource, outers).await? else { continue };
        if !plan.args.reentrant && nested::can_share(plan.request.claim, &outer) {
            if plan.request.wait == WaitLimit::Forever {
                plan.request.wait = WaitLimit::Try;
                plan.beside = Some(outer);
            }
            continue;
        }
        if !plan.args.reentrant {
            return Err(nested::would_never_end(&resource, &outer));
        }
        if !is_outer_lease_held(locks, &resource).await? {
            (report.outcome, report.reason) = (RunOutcome::Lost, Some(String::from("gone")));
            return Err(CommandError {
                code: exit::LOST,
                kind: "lost",
                message: format!("{resource} is no longer held by the run that started this one"),
                hint: None,
            });
        }
        plan.request.all.remove(&resource);
        if resource == plan.request.resource {
            report.fence = Some(outer.fence.get());
            report.holder = environment("LEASEHOLD_HOLDER").and_then(|holder| holder.into_string().ok());
        }
    }
    Ok(())
}

/// The innermost lease came along as a handle, so the backend can be asked about it.
async fn is_outer_lease_held(locks: &Leasehold, resource: &Resource) -> Result<bool> {
    let handle = environment("LEASEHOLD_LEASE").and_then(|handle| handle.into_string().ok());
    let Some(handle) = handle.and_then(|handle| handle.parse::<leasehold::LeaseHandle>().ok()) else {
        return Ok(true);
    };
    Ok(handle.key().resource != *resource || locks.find(&handle).await?.is_some())
}

/// Tells what would happen; asks who holds the lock and changes nothing.
async fn dry_run(context: &CommandContext<'_>, plan: &JobPlan<'_>) -> Result<u8> {
    let locks = context.open(plan.request.labels.holder.clone(), &context.connect_retry(plan.request.wait)).await?;
    let page = locks.list(&ListFilter::new(Names::Exactly(plan.request.resource.clone()))).await?;
    let names: Vec<&str> = plan.request.all.iter().map(Resource::as_str).collect();
    let command: Vec<_> = plan.command.iter().map(|word| word.to_string_lossy()).collect();
    let waiting = match plan.request.wait {
        WaitLimit::Try => String::from("without waiting"),
        WaitLimit::For(wait) => format!("waiting at most {}", Brief(wait)),
        WaitLimit::Forever => String::from("waiting for as long as it takes"),
    };
    context.output.print(
        Line::new(
            "dry_run",
            format!(
                "would take {} ({}) on {} in namespace {}, {waiting}, then run: {}",
                names.join(", "),
                plan.request.claim.mode(),
                context.settings.shown_url(),
                context.settings.namespace,
                command.join(" ")
            ),
        )
        .hint(format!(
            "ttl {}, kill after {}; now {} leases and waiters on {}",
            Brief(plan.request.ttl.get()),
            Brief(plan.limits.kill_after),
            page.leases.len(),
            plan.request.resource
        ))
        .with("locks", names)
        .with("mode", plan.request.claim.mode().as_str())
        .with("backend", context.settings.shown_url())
        .with("namespace", context.settings.namespace.as_str())
        .with("leases", page.leases.iter().map(json::lease).collect::<Vec<_>>())
        .at(Level::Quiet),
    );
    Ok(exit::OK)
}

/// Why a flag of flock(1) cannot be used, and what to write instead.
fn refusal(flock: FlockArgs, settings: &Settings) -> Option<CommandError> {
    if flock.unlock {
        let words = "run has no -u: a lock is not tied to a file descriptor";
        return Some(CommandError::usage(words).hint(in_a_script(settings)));
    }
    if flock.close {
        return Some(CommandError::usage("run has no -o: nothing that the command leaves behind keeps the lock").hint(
            "leave -o out: such processes are stopped when the command ends; \
                 with --stragglers leave they run on without the lock",
        ));
    }
    flock.no_fork.then(|| {
        CommandError::usage("run has no -F: it stays beside the command to renew the lock and to stop it in time")
            .hint("leave -F out: signals, the terminal and the exit code are passed on")
    })
}

/// What replaces `exec 9>file; flock 9` in a script.
fn in_a_script(settings: &Settings) -> String {
    let acquire = settings.command("acquire NAME --while-pid $$");
    format!("in a script: lease=$({acquire}); …; {}", settings.command("release --lease \"$lease\""))
}
