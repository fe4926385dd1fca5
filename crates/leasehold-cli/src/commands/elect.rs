//! `leasehold elect`: a command only while leader, and who leads.

use std::{cell::Cell, collections::BTreeSet, ffi::OsString, time::Duration};

use leasehold::{
    Election, Guard, Leader, Leasehold, Resource, Ttl,
    clock::{Clock, SystemClock},
};
use leasehold_supervise::{Launch, Limits, Signal, Signals};
use serde_json::{Value, json};

use super::{CommandContext, time_format};
use crate::{
    args::ElectArgs,
    duration::{Brief, millis},
    error::{CommandError, Result},
    exit, json,
    output::{Line, Output},
    run_command::{
        environment::variables,
        identity::{self, Labels, short},
        lock_request::{self, WaitLimit},
        nested::{self, AncestorLock},
        report::RunOutcome,
        run_under_lease::{Work, WorkResult},
        supervisor_entry,
        wait::{self, Waited, Wanted},
    },
    shell,
    variables::environment,
};

/// Takes part, or looks at who leads.
pub(crate) async fn run(context: &CommandContext<'_>, args: &ElectArgs) -> Result<u8> {
    let resource = lock_request::resource(&args.name)?;
    if args.observe || args.leader || args.resign {
        let locks = context.connect_patiently().await?;
        let election = locks.election(resource.as_str());
        return match (args.observe, args.leader) {
            (true, _) => observe(context, &resource, &election).await,
            (_, true) => show_leader(context, &resource, &election).await,
            _ => resign(context, &resource, &election, &identity::operator(&locks, &environment)).await,
        };
    }
    let command = context.command(&args.child, "elect")?;
    campaign(context, args, resource, command).await
}

/// Campaigns and leads in turn, until the command ends well or somebody wants us to end.
async fn campaign(
    context: &CommandContext<'_>,
    args: &ElectArgs,
    resource: Resource,
    command: Vec<OsString>,
) -> Result<u8> {
    let ttl = lock_request::ttl(args.ttl, context.settings.ttl, Ttl::ELECTION)?;
    let limits = args.child.limits(ttl, context.settings.kill_after)?;
    let labels = Labels::new(("--id", args.id.as_deref()), &args.notes, &command, args.child.show_args)?;
    let output = context.output;
    let mut signals =
        Signals::catch().map_err(|error| CommandError::unavailable(format!("cannot catch signals: {error}")))?;
    let connect_retry = context.connect_retry(WaitLimit::Forever);
    let locks = tokio::select! {
        biased;
        locks = context.open(labels.holder, &connect_retry) => locks?,
        signal = signals.next_ending() => {
            let who = args.id.as_deref().unwrap_or("this candidate");
            return Ok(ended_by(signal, &format!("{who} no longer campaigns for {resource}"), &resource, output));
        }
    };
    let limits = args.child.within(limits, locks.guarantees().silence_limit)?;
    let outers = AncestorLock::all(&environment);
    if nested::held_outside(&locks, &resource, &outers).await?.is_some() {
        return Err(CommandError::usage(format!("{resource} is led by the command that started this one"))
            .hint("use another name"));
    }
    let mut election = locks.election(resource.as_str()).ttl(ttl.get()).metadata(labels.metadata);
    if args.id.is_some() {
        election = election.holder(locks.holder().clone());
    }
    if let Some(value) = &args.value {
        election = election.value(value);
    }
    if let Some(note) = labels.note {
        election = election.note(note);
    }
    let (all, asked) = (BTreeSet::from([resource.clone()]), Cell::new(&resource));
    let wanted =
        Wanted { locks: &locks, all: &all, asked: &asked, wait: WaitLimit::Forever, connect_retry: &connect_retry };
    let no_longer = |does: &str| format!("{} no longer {does} {resource}", short(locks.holder().as_str()));
    let mut pause = args.backoff.first;
    loop {
        let line = match wait::wait(wanted, async || election.campaign().await, &mut signals, output).await {
            Ok(Waited::Acquired { held: guard, explained }) => {
                output.print(wait::acquired(guard.resource(), guard.fence(), guard.waited(), explained));
                let work = work(context, args, &guard, &outers, limits, command.clone(), &locks);
                let done = work.run(&locks, vec![guard], &mut signals, output).await;
                if let Some(code) = final_code(args, &done) {
                    if done.outcome == RunOutcome::Interrupted
                        && let Some(signal) = done.ended.and_then(|ended| ended.interrupted)
                    {
                        ended_by(signal, &no_longer("leads"), &resource, output);
                    }
                    return Ok(code);
                }
                if done.held > args.backoff.most {
                    pause = args.backoff.first;
                }
                let details = done.details.unwrap_or_default();
                Line::new("backoff", format!("{}: {details}; {}", no_longer("leads"), again(pause)))
                    .with("details", details)
                    .with("reason", done.reason)
            }
            Ok(Waited::Interrupted(signal)) => {
                return Ok(ended_by(signal, &no_longer("campaigns for"), &resource, output));
            }
            Ok(Waited::NotAcquired(error)) => return Err(CommandError::from(error)),
            Err(failure) if failure.code == exit::UNAVAILABLE && !args.once => {
                Line::new("backoff", format!("{}; {}", failure.message, again(pause)))
                    .with("details", failure.message)
                    .with("reason", failure.kind)
            }
            Err(failure) => return Err(failure),
        };
        output.print(line.with("lock", resource.as_str()));
        tokio::select! {
            biased;
            signal = signals.next_ending() => {
                wait::leave(&locks).await;
                return Ok(ended_by(signal, &no_longer("campaigns for"), &resource, output));
            }
            () = SystemClock.sleep_until(SystemClock.now().after(pause)) => {}
        }
        pause = (pause * 2).min(args.backoff.most);
    }
}

/// Says what ends with us; our exit code.
fn ended_by(signal: Signal, no_longer: &str, resource: &Resource, output: &Output) -> u8 {
    let line = Line::new("interrupted", format!("{no_longer}: ended by {signal}"));
    output.print(line.with("lock", resource.as_str()).with("reason", signal.to_string()));
    exit::of_signal(signal.number())
}

fn again(pause: Duration) -> String {
    format!("campaigning again in {}", Brief(pause))
}

/// Whether this was the end of it: done, interrupted, impossible, or once only.
fn final_code(args: &ElectArgs, done: &WorkResult) -> Option<u8> {
    let is_final = matches!(done.outcome, RunOutcome::Completed | RunOutcome::Interrupted | RunOutcome::ExecFailed);
    (is_final || args.once).then_some(done.exit_code)
}

fn work(
    context: &CommandContext<'_>,
    args: &ElectArgs,
    guard: &Guard,
    outers: &[AncestorLock],
    limits: Limits,
    command: Vec<OsString>,
    locks: &Leasehold,
) -> Work {
    let leases = [guard.lease().clone()];
    let if_not_found = context.not_found_hint("elect", &args.name, &command);
    Work {
        launch: Launch {
            command,
            env: variables(&leases, locks.guarantees().kind, outers, &context.settings.for_child),
            supervisor: supervisor_entry::program(context.output.style()),
            ..Launch::default()
        },
        limits,
        min_hold: Duration::ZERO,
        inherit: !args.child.no_inherit,
        place: context.settings.shown_url(),
        job: None,
        if_not_found,
        runs_until_asked: true,
    }
}

async fn observe(context: &CommandContext<'_>, resource: &Resource, election: &Election) -> Result<u8> {
    let mut observer = election.observe().await?;
    while let Some(change) = observer.next().await {
        let leader = change?;
        let line = if context.output.style().json {
            as_json(resource, leader.as_ref()).to_string()
        } else {
            let at = time_format::exact(SystemClock.wall());
            match &leader {
                Some(leader) => format!("{at}  {}", message(leader)),
                None => format!("{at}  no leader"),
            }
        };
        if json::print(line)? == json::OutputReader::Left {
            return Ok(exit::OK);
        }
    }
    Err(CommandError::unavailable("the event stream ended"))
}

async fn show_leader(context: &CommandContext<'_>, resource: &Resource, election: &Election) -> Result<u8> {
    let leader = election.leader().await?;
    if context.output.style().json {
        json::print(as_json(resource, leader.as_ref()).to_string())?;
    } else if let Some(leader) = &leader {
        json::print(message(leader))?;
    }
    if leader.is_none() {
        context.output.print(nobody_leads(context, resource));
    }
    Ok(if leader.is_some() { exit::OK } else { exit::NO })
}

async fn resign(context: &CommandContext<'_>, resource: &Resource, election: &Election, by: &str) -> Result<u8> {
    let deposed = election.depose(&format!("asked to step down by `leasehold elect --resign` (by {by})")).await?;
    if context.output.style().json {
        json::print(as_json(resource, deposed.as_ref()).to_string())?;
    }
    let Some(leader) = deposed else {
        context.output.print(nobody_leads(context, resource));
        return Ok(exit::NO);
    };
    let who = short(leader.holder.as_str());
    context.output.print(Line::new("resigned", format!("{who} was told to step down from {resource}")));
    Ok(exit::OK)
}

fn nobody_leads(context: &CommandContext<'_>, resource: &Resource) -> Line {
    let list = context.settings.command(&format!("list --waiting {}", shell::operand(resource.as_str())));
    Line::new("no_leader", format!("nobody leads {resource}")).hint(format!("see who campaigns: {list}"))
}

fn message(leader: &Leader) -> String {
    let value = leader.value.as_ref().map(|value| format!("  {value}")).unwrap_or_default();
    format!("{}{value}  leads for {}  fence {}", short(leader.holder.as_str()), Brief(leader.led_for), leader.fence)
}

fn as_json(resource: &Resource, leader: Option<&Leader>) -> Value {
    json!({
        "v": 1,
        "election": resource.as_str(),
        "leader": leader.map(|leader| leader.holder.as_str()),
        "value": leader.and_then(|leader| leader.value.as_deref()),
        "fence": leader.map(|leader| leader.fence.get()),
        "since": leader.map(|leader| json::time(leader.since)),
        "led_ms": leader.map(|leader| millis(leader.led_for)),
    })
}
