//! `leasehold acquire`: takes a lease and prints its handle. With `--while-pid` or `--while-fd`, a background process
//! renews it until the named process ends.

use std::{cell::Cell, ffi::OsString, fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path, time::Duration};

use leasehold::{
    DetachedLease, Error, Fence, LeaseHandle, Leasehold, Outcome, Resource, Ttl,
    clock::{Clock, SystemClock},
    lease::Timestamp,
};
use leasehold_supervise::{Signals, kill_after};
use serde_json::json;

use super::{
    CommandContext,
    keep::{self, BackgroundHolder},
};
use crate::{
    args::AcquireArgs,
    duration::millis,
    error::{CommandError, Result},
    exit, json,
    run_command::{
        connect_retry::ConnectRetry,
        identity::Labels,
        lock_request::{self, LockRequest, WaitLimit},
        nested::{self, AncestorLock},
        wait::{self, Waited, Wanted},
    },
    variables::environment,
};

/// Takes the lease and prints its handle, and nothing else.
pub(crate) async fn run(context: &CommandContext<'_>, args: &AcquireArgs) -> Result<u8> {
    let mut request = plan(args)?;
    let mut signals =
        Signals::catch().map_err(|error| CommandError::unavailable(format!("cannot catch signals: {error}")))?;
    let keeper = BackgroundHolder::of_this_process()?;
    match &keeper {
        Some(keeper) => request.began = keeper.began,
        None if is_tied(args) => return keep::launch(context, args, request.began, &mut signals).await,
        None => {}
    }
    let connect_retry = context.connect_retry(request.wait);
    let locks = tokio::select! {
        biased;
        locks = context.open(request.labels.holder.clone(), &connect_retry) => locks?,
        signal = signals.next_ending() => return Ok(exit::of_signal(signal.number())),
    };
    if request.wait != WaitLimit::Try {
        nested::refuse(&locks, &request, &AncestorLock::all(&environment)).await?;
    }
    let asked = Cell::new(&request.resource);
    let command = AcquireCommand {
        context,
        args,
        request: &request,
        asked: &asked,
        locks: &locks,
        connect_retry: &connect_retry,
    };
    match keeper {
        Some(keeper) => command.keep(keeper, &mut signals).await,
        None => command.detached(&mut signals).await,
    }
}

/// Returns whether the lease ends with another process (`--while-pid`, `--while-fd`).
fn is_tied(args: &AcquireArgs) -> bool {
    args.while_pid.is_some() || args.while_fd.is_some()
}

/// A lease that was granted.
struct Taken {
    handle: LeaseHandle,
    fence: Fence,
    waited: Duration,
    acquired_at: Timestamp,
}

/// The arguments of the command, and the backend that it asks.
struct AcquireCommand<'a> {
    context: &'a CommandContext<'a>,
    args: &'a AcquireArgs,
    request: &'a LockRequest,
    asked: &'a Cell<&'a Resource>,
    locks: &'a Leasehold,
    connect_retry: &'a ConnectRetry<'a>,
}

impl<'a> AcquireCommand<'a> {
    fn wanted(&self) -> Wanted<'a> {
        Wanted {
            locks: self.locks,
            all: &self.request.all,
            asked: self.asked,
            wait: self.request.wait,
            connect_retry: self.connect_retry,
        }
    }

    /// A lease that ends by itself.
    async fn detached(&self, signals: &mut Signals) -> Result<u8> {
        let waited = wait::wait(
            self.wanted(),
            async || self.request.acquire_detached(self.locks).await,
            signals,
            self.context.output,
        )
        .await?;
        match waited {
            Waited::Acquired { held, explained } => {
                let DetachedLease { handle, grant, waited, .. } = held;
                let taken = Taken { handle, fence: grant.fence, waited, acquired_at: grant.acquired_at };
                self.hand_over(&taken, explained).await
            }
            Waited::NotAcquired(error) => Ok(self.not_acquired(&error).await),
            Waited::Interrupted(signal) => Ok(exit::of_signal(signal.number())),
        }
    }

    /// A lease that this process keeps for another.
    async fn keep(&self, keeper: BackgroundHolder, signals: &mut Signals) -> Result<u8> {
        let grace = kill_after(None, self.request.ttl.get())?;
        let waited = tokio::select! {
            biased;
            waited = wait::wait(self.wanted(), async || self.request.acquire(self.locks, self.asked).await, signals, self.context.output) => waited?,
            () = keeper.nobody_wants_it() => {
                wait::leave(self.locks).await;
                return Ok(self.args.ask.conflict_exit_code);
            }
        };
        let (guard, explained) = match waited {
            Waited::Acquired { mut held, explained } => match held.pop() {
                Some(guard) => (guard, explained),
                None => return Ok(exit::SOFTWARE),
            },
            Waited::NotAcquired(error) => return Ok(self.not_acquired(&error).await),
            Waited::Interrupted(signal) => return Ok(exit::of_signal(signal.number())),
        };
        let taken = Taken {
            handle: guard.lease().handle(),
            fence: guard.fence(),
            waited: guard.waited(),
            acquired_at: guard.acquired_at(),
        };
        self.hand_over(&taken, explained).await?;
        // If our launcher is gone, the watched process alone decides.
        match keeper.handed_over() {
            Ok(kept) => Ok(kept.keep(self.locks, guard, self.args.on_lost, grace, signals, self.context.output).await),
            Err(error) => {
                let _lapses_by_itself = guard.release_as(Outcome::Cancelled).await;
                Err(CommandError::unavailable(format!("cannot go to the background: {error}")))
            }
        }
    }

    async fn not_acquired(&self, error: &Error) -> u8 {
        let (code, context) = (self.args.ask.conflict_exit_code, self.context);
        wait::say_not_acquired(self.wanted(), error, code, &context.settings, context.output).await;
        wait::leave(self.locks).await;
        code
    }

    /// Prints the handle or writes it to `--lease-file`. If that fails, releases the lease, because nobody has its
    /// handle.
    async fn hand_over(&self, taken: &Taken, explained: bool) -> Result<u8> {
        let Self { context, args, request, locks, .. } = self;
        context.output.print(wait::acquired(&request.resource, taken.fence, taken.waited, explained));
        let handle = taken.handle.to_string();
        let written = match &args.lease_file {
            Some(path) => write_file(path, &handle),
            None => Ok(()),
        };
        let written = written.and_then(|()| {
            if context.output.style().json {
                json::print(
                    json!({
                        "v": 1,
                        "lock": request.resource.as_str(),
                        "mode": request.claim.mode().as_str(),
                        "units": json::permits(request.claim.mode(), request.claim.units()),
                        "lease": args.lease_file.is_none().then_some(&handle),
                        "holder": locks.holder().as_str(),
                        "fence": taken.fence.get(),
                        "waited_ms": millis(taken.waited),
                        "ttl_ms": millis(request.ttl.get()),
                        "acquired_at": json::time(taken.acquired_at),
                        "backend": locks.guarantees().kind,
                    })
                    .to_string(),
                )?
                .required()
            } else if args.lease_file.is_none() {
                json::print(&handle)?.required()
            } else {
                Ok(())
            }
        });
        let Err(failure) = written else { return Ok(exit::OK) };
        let released = locks.release(&taken.handle, Outcome::Cancelled).await;
        let what = if released.is_ok() { "so it was released" } else { "and it lapses by itself" };
        let (name, why) = (&request.resource, failure.message);
        Err(CommandError::unavailable(format!("the lease on {name} could not be handed over, {what}: {why}")))
    }
}

fn plan(args: &AcquireArgs) -> Result<LockRequest> {
    let resource = lock_request::resource(&args.name)?;
    if args.ttl.is_none() && !is_tied(args) {
        return Err(CommandError::usage("acquire needs --ttl: nobody renews such a lease, so it must end by itself")
            .hint(
                "--while-pid $$ ties it to a script and renews it; `leasehold run` does so for a command; or --ttl 15m",
            ));
    }
    if args.ask.conflict_exit_code == exit::OK {
        return Err(CommandError::usage("-E 0 would let the script go on without the lock")
            .hint("leave -E out, which means 75, or give another code"));
    }
    let named = args.while_pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    let process: Vec<OsString> = named.map(|name| name.trim_end().into()).into_iter().collect();
    Ok(LockRequest {
        all: [resource.clone()].into(),
        resource,
        claim: lock_request::claim(&args.ask)?,
        ttl: lock_request::ttl(args.ttl, None, Ttl::DEFAULT)?,
        wait: WaitLimit::of(&args.ask),
        began: SystemClock.now(),
        labels: Labels::new(("--holder", args.shown.holder.as_deref()), &args.shown.notes, &process, false)?,
    })
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
        CommandError::usage(format!("cannot write --lease-file {}: {error}", path.display()))
    })
}
