//! Conducts a run: starts the workers, injects faults, lets everything settle, and has it checked.

use std::{io, process::Command, thread, time::Duration};

use leasehold::{backend::Liveness, blocking::Leasehold};
use leasehold_testkit::Dice;

use crate::{
    args::{BackendChoice, Fault, RunPlan},
    check::{self, Promises},
    faults::Faults,
    fleet::Fleet,
    history::Span,
    instant::{Micros, millis, now},
    leftovers,
    report::RunSummary,
};

/// How long workers may take to drop what they do. A blocked callback delays it.
const SETTLE_LIMIT: Micros = millis(30_000);
/// How long `list` may take, including the time in which a released lease may still be listed.
const LIST_LIMIT: Micros = millis(20_000);

/// Runs the plan and reports.
pub(crate) fn run(plan: &RunPlan) -> io::Result<RunSummary> {
    if plan.cuts.is_some() && matches!(plan.backend, BackendChoice::Memory | BackendChoice::File) {
        return Err(io::Error::other("there are no connections to cut on memory and file"));
    }
    let folder = tempfile::Builder::new().prefix("leasehold-torture-").tempdir()?;
    let mut dice = Dice::new(plan.seed);
    let mut notes = Vec::new();
    let slow_disk =
        plan.backend == BackendChoice::File && plan.faults.contains(&Fault::SlowDisk) && has_strace(&mut notes);
    let began = now();
    let mut fleet = Fleet::start(plan, folder.path().to_owned(), slow_disk, dice.split())?;
    let observer = match plan.backend {
        BackendChoice::File => Some(Leasehold::connect(&fleet.url).map_err(io::Error::other)?),
        _ => None,
    };
    let mut faults = Faults::new(plan, observer, dice.split());

    while plan.cuts.map_or_else(|| now() < began + millis(plan.seconds * 1000), |cuts| faults.cuts() < cuts) {
        fleet.look()?;
        faults.step(&mut fleet)?;
        thread::sleep(Duration::from_millis(10));
    }
    faults.finish(&mut fleet)?;
    let ended = now();
    settle(&mut fleet)?;
    if plan.backend == BackendChoice::File {
        let left = leftovers::find(&fleet.url, &folder.path().join("locks"))?;
        fleet.history.leftovers.extend(left);
    }

    if slow_disk {
        fleet.history.delays = fleet.delays();
        faults.injected.insert("slow-disk, delayed calls", fleet.history.delays.len() as u64);
    }

    fleet.history.run = Span { from: began, to: ended };
    let liveness = match plan.backend {
        BackendChoice::File => Liveness::Process,
        _ => Liveness::Ttl,
    };
    let reconnect = match plan.backend {
        BackendChoice::Memory | BackendChoice::File => 0,
        // A silent connection is given up after two seconds; in a cluster subscriptions are made anew after that.
        BackendChoice::Cluster => millis(5000),
        _ => millis(2500),
    };
    let rules = Promises { liveness, fifo: plan.backend != BackendChoice::Redlock, reconnect };
    let violations = check::all(&fleet.history, rules);
    Ok(RunSummary::new(plan, (ended - began) / 1_000_000, &fleet.history, faults.injected, notes, violations))
}

/// Lets all workers drop what they do, has one list what is left, and ends them.
fn settle(fleet: &mut Fleet) -> io::Result<()> {
    for index in 0..fleet.slots.len() {
        fleet.command(index, "settle");
    }
    if fleet.wait(SETTLE_LIMIT, |life| life.idle)? {
        fleet.command(0, "list");
        let first = fleet.history.lives[fleet.slots[0].life].label.clone();
        if !fleet.wait(LIST_LIMIT, |life| life.label != first || life.listed.is_some())? {
            fleet.history.failures.push(String::from("`list` did not answer after all workers became idle"));
        }
    } else {
        let lives = fleet.slots.iter().map(|slot| &fleet.history.lives[slot.life]);
        let busy: Vec<_> = lives.filter(|life| !life.idle).map(|life| life.label.as_str()).collect();
        let failure = format!("did not become idle in time: {}", busy.join(", "));
        fleet.history.failures.push(failure);
    }
    let listed: Vec<_> = fleet.history.lives.iter().filter_map(|life| life.listed.clone()).flatten().collect();
    fleet.history.leftovers.extend(listed);
    fleet.finish()
}

fn has_strace(notes: &mut Vec<String>) -> bool {
    let found = Command::new("strace").arg("-V").output().is_ok();
    if !found {
        notes.push(String::from("slow-disk was not injected: strace is not installed"));
    }
    found
}
