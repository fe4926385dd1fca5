//! `leasehold evict`: evicts the holder of a lock, but only if the lease has the fence that the operator names.

use std::io::{self, BufRead, IsTerminal, Write};

use leasehold::{
    Fence, Resource,
    lease::{Evicted, LeaseState, ListFilter, Names},
};
use serde_json::json;

use super::{CommandContext, lock_summary::LockSummary};
use crate::{
    args::EvictArgs,
    duration::Brief,
    error::{CommandError, Result},
    exit, json,
    output::Line,
    run_command::{
        identity::{self, short},
        lock_request,
    },
    settings::Level,
    shell,
    variables::environment,
};

/// Evicts the lease with the given fence; exit 1 and nothing changed if there is none.
pub(crate) async fn run(context: &CommandContext<'_>, args: &EvictArgs) -> Result<u8> {
    let name = lock_request::resource(&args.name)?;
    // "…" stands for the reason in commands that we print.
    if !args.reason.contains(char::is_alphanumeric) || args.reason.chars().any(char::is_control) {
        return Err(CommandError::usage("--reason: say why in place of …, in one line; it is kept in the history"));
    }
    let locks = context.connect_patiently().await?;
    let page = locks.list(&ListFilter::new(Names::Exactly(name.clone()))).await?;
    let lock = LockSummary::group(page.leases).pop();
    let fence = Fence::new(args.fence);
    let holder = lock.as_ref().and_then(|lock| {
        lock.holders
            .iter()
            .find(|lease| matches!(lease.state, LeaseState::Holding { fence: held, .. } if held == fence))
    });
    let Some(holder) = holder else {
        let current: Vec<Fence> = lock.iter().flat_map(fences).collect();
        return no_such_fence(context, &name, args, &current);
    };
    if !args.yes {
        let held = match holder.state {
            LeaseState::Holding { held_for, .. } => Brief(held_for).to_string(),
            LeaseState::Waiting { .. } => String::new(),
        };
        let note = holder.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        let waiting = lock.as_ref().map_or(0, |lock| lock.waiters.len());
        let who = short(holder.holder.as_str());
        confirm(context, &name, &format!("{name} is held by {who}{note} for {held}, {waiting} waiting"))?;
    }
    let by = identity::operator(&locks, &environment);
    match locks.evict(&name, fence, &format!("{} (by {by})", args.reason.trim())).await? {
        Evicted::Evicted { holder } => {
            if context.output.style().json {
                json::print(
                    json!({
                        "v": 1, "lock": name.as_str(), "evicted": true, "fence": args.fence,
                        "holder": holder.as_str(), "reason": args.reason.trim(), "by": by, "current_fences": [],
                    })
                    .to_string(),
                )?;
            }
            let who = short(holder.as_str());
            let words = format!("evicted {name} from {who}; it was notified and may still be working");
            context.output.print(Line::new("evicted", words));
            Ok(exit::OK)
        }
        Evicted::NoSuchFence { current } => no_such_fence(context, &name, args, &current),
    }
}

fn fences(lock: &LockSummary) -> Vec<Fence> {
    let fence = |state| match state {
        LeaseState::Holding { fence, .. } => Some(fence),
        LeaseState::Waiting { .. } => None,
    };
    lock.holders.iter().filter_map(|lease| fence(lease.state)).collect()
}

fn no_such_fence(context: &CommandContext<'_>, name: &Resource, args: &EvictArgs, current: &[Fence]) -> Result<u8> {
    if context.output.style().json {
        json::print(
            json!({
                "v": 1, "lock": name.as_str(), "evicted": false, "fence": args.fence,
                "holder": null, "reason": args.reason.trim(), "by": null,
                "current_fences": current.iter().map(|fence| fence.get()).collect::<Vec<_>>(),
            })
            .to_string(),
        )?;
    }
    let held: Vec<String> = current.iter().map(ToString::to_string).collect();
    let now = match held.as_slice() {
        [] => String::from("nobody holds it now"),
        [fence] => format!("it is held under fence {fence} now"),
        fences => format!("it is held under fences {} now", fences.join(", ")),
    };
    let words = format!("nobody holds {name} under fence {}: {now}; nothing was changed", args.fence);
    let (what, verb) =
        if current.is_empty() { ("see how it ended", "history") } else { ("see who holds it", "inspect") };
    let look = context.settings.command(&format!("{verb} {}", shell::operand(name.as_str())));
    context.output.print(Line::new("no_such_fence", words).hint(format!("{what}: {look}")));
    Ok(exit::NO)
}

/// Asks the user to type the lock's name; any other input cancels the eviction.
fn confirm(context: &CommandContext<'_>, name: &Resource, situation: &str) -> Result<()> {
    if !io::stdin().is_terminal() {
        return Err(CommandError::usage("evict asks for confirmation, and there is no terminal to ask on")
            .hint("add --yes if you are sure"));
    }
    context.output.print(Line::new("confirm", situation).at(Level::Quiet));
    let mut stderr = io::stderr();
    let _asked =
        write!(stderr, "leasehold: type the name of the lock to evict its holder: ").and_then(|()| stderr.flush());
    let mut typed = String::new();
    let read = io::stdin().lock().read_line(&mut typed);
    if read.is_ok() && typed.trim() == name.as_str() {
        return Ok(());
    }
    Err(CommandError {
        code: exit::NO,
        kind: "not_confirmed",
        message: String::from("not confirmed; nothing was changed"),
        hint: None,
    })
}
