//! `leasehold acquire`: a lease without a process to hold it.

use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use leasehold::{
    Detached, Leasehold, Outcome, Ttl,
    clock::{Clock, SystemClock},
};
use serde_json::json;

use super::Context;
use crate::{
    args::AcquireArgs,
    child::Signals,
    duration::{Measured, millis},
    exit::{self, Failure, Result},
    json,
    say::Line,
    settings::{Level, environment},
    work::{
        ask::{self, Ask, Patience},
        nested::{self, Outer},
        note,
        wait::{self, Waited, Wanted},
    },
};

/// Takes the lease and prints its handle, and nothing else.
pub(crate) async fn run(context: &Context<'_>, args: &AcquireArgs) -> Result<u8> {
    let ask = plan(args)?;
    let say = context.say;
    let mut signals =
        Signals::catch().map_err(|error| Failure::unavailable(format!("cannot catch signals: {error}")))?;
    let start = context.start(ask.patience);
    let locks = tokio::select! {
        biased;
        locks = context.open(ask.holder.clone(), &start) => locks?,
        signal = signals.next_ending() => return Ok(exit::of_signal(signal.number())),
    };
    if ask.patience != Patience::Try {
        nested::refuse(&locks, &ask, &Outer::all(&environment)).await?;
    }
    let wanted = Wanted { locks: &locks, resource: &ask.resource, patience: ask.patience, start: &start };
    match wait::wait(wanted, async || ask.acquire_detached(&locks).await, &mut signals, say).await? {
        Waited::Acquired { held, explained } => {
            let words =
                format!("acquired {} after {} (fence {})", ask.resource, Measured(held.waited), held.grant.fence);
            say.say(if explained { Line::new("acquired", words) } else { Line::detail("acquired", words) });
            hand_over(context, args, &ask, &locks, &held).await
        }
        Waited::NotAcquired(error) => {
            wait::leave(&locks).await;
            let line = wait::not_acquired(&ask.resource, &error, ask.patience, &context.settings);
            let is_fine = args.conflict_exit_code == exit::OK && !say.looks().is_terminal;
            say.say(if is_fine { line.at(Level::Verbose) } else { line });
            Ok(args.conflict_exit_code)
        }
        Waited::Interrupted(signal) => Ok(exit::of_signal(signal.number())),
    }
}

fn plan(args: &AcquireArgs) -> Result<Ask> {
    let resource = ask::resource(&args.name)?;
    let Some(ttl) = args.ttl else {
        return Err(Failure::usage("acquire needs --ttl: nobody renews such a lease, so it must end by itself")
            .hint("--ttl 15m, with `leasehold renew` for more; or `leasehold run`, which renews by itself"));
    };
    Ok(Ask {
        all: [resource.clone()].into(),
        resource,
        claim: ask::claim(args.shared, &args.ask)?,
        ttl: ask::ttl(Some(ttl), None, Ttl::DEFAULT)?,
        patience: Patience::of(&args.ask),
        began: SystemClock.now(),
        holder: note::holder("--holder", args.holder.as_deref())?,
        note: note::note(args.note.as_deref(), &[], false)?,
        metadata: note::metadata(&args.meta)?,
    })
}

/// Gives the handle to whoever asked; a lease that nobody could name would only be in the way.
async fn hand_over(
    context: &Context<'_>,
    args: &AcquireArgs,
    ask: &Ask,
    locks: &Leasehold,
    held: &Detached,
) -> Result<u8> {
    let handle = held.handle.to_string();
    let written = match &args.lease_file {
        Some(path) => write_file(path, &handle),
        None => Ok(()),
    };
    let written = written.and_then(|()| {
        if context.say.looks().json {
            json::print(
                json!({
                    "v": 1,
                    "lock": ask.resource.as_str(),
                    "mode": ask.claim.mode().as_str(),
                    "units": json::permits(ask.claim.mode(), ask.claim.units()),
                    "lease": args.lease_file.is_none().then_some(&handle),
                    "holder": locks.holder().as_str(),
                    "fence": held.grant.fence.get(),
                    "waited_ms": millis(held.waited),
                    "ttl_ms": millis(ask.ttl.get()),
                    "acquired_at": json::time(held.grant.acquired_at),
                    "backend": locks.guarantees().kind,
                })
                .to_string(),
            )
        } else if args.lease_file.is_none() {
            json::print(&handle)
        } else {
            Ok(())
        }
    });
    let Err(failure) = written else { return Ok(exit::OK) };
    let released = locks.release(&held.handle, Outcome::Cancelled).await;
    let what = if released.is_ok() { "so it was released" } else { "and it lapses by itself" };
    let why = if failure.message.is_empty() { "nobody reads standard output" } else { &failure.message };
    Err(Failure::unavailable(format!("the lease on {} could not be handed over, {what}: {why}", ask.resource)))
}

/// Writes the handle to a file that only its owner can read, all of it or nothing.
fn write_file(path: &Path, handle: &str) -> Result<()> {
    let mut aside = path.to_path_buf().into_os_string();
    aside.push(format!(".{}.tmp", std::process::id()));
    let write = || {
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
        writeln!(file, "{handle}")?;
        fs::rename(&aside, path)
    };
    write().map_err(|error| {
        let _nothing_to_remove = fs::remove_file(&aside);
        Failure::usage(format!("cannot write --lease-file {}: {error}", path.display()))
    })
}
