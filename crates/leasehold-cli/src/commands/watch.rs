//! `leasehold watch`: what happens to locks, as it happens.

use std::future::poll_fn;

use leasehold::lease::{Event, EventKind, Names};

use super::{CommandContext, list, time_format};
use crate::{
    args::{EventArg, WatchArgs},
    error::{CommandError, Result},
    exit, json,
    output::Line,
    run_command::identity::short,
};

/// Prints events until it is interrupted.
pub(crate) async fn run(context: &CommandContext<'_>, args: &WatchArgs) -> Result<u8> {
    let locks = context.connect().await?;
    let names = args.prefix.as_deref().map_or(Names::All, list::with_prefix);
    let mut events = locks.watch(names).await?;
    context.output.print(Line::detail("watching", "watching; Ctrl-C ends it"));
    while let Some(next) = poll_fn(|context| events.as_mut().poll_next(context)).await {
        let Ok(event) = next else {
            context.output.print(Line::warning("events were missed; list again"));
            continue;
        };
        if !is_wanted(&args.event, &event) {
            continue;
        }
        let line = if context.output.style().json { json::event(&event).to_string() } else { message(&event) };
        if json::print(line)? == json::OutputReader::Left {
            return Ok(exit::OK);
        }
    }
    Err(CommandError::unavailable("the event stream ended"))
}

fn name_of(event: &Event) -> &'static str {
    match &event.kind {
        EventKind::Waiting => "waiting",
        EventKind::Acquired { .. } => "acquired",
        EventKind::Ended { ending, .. } => ending.as_str(),
        _ => "other",
    }
}

fn is_wanted(wanted: &[EventArg], event: &Event) -> bool {
    let is_end = matches!(event.kind, EventKind::Ended { .. });
    wanted.is_empty()
        || wanted.iter().any(|wanted| wanted.as_str() == name_of(event) || (*wanted == EventArg::Ended && is_end))
}

fn message(event: &Event) -> String {
    let fence = match &event.kind {
        EventKind::Acquired { fence } | EventKind::Ended { fence: Some(fence), .. } => format!("  fence {fence}"),
        _ => String::new(),
    };
    format!(
        "{}  {:<12}  {}  {}  {}{fence}",
        time_format::exact(event.at),
        name_of(event),
        event.resource,
        event.claim.mode(),
        short(event.holder.as_str())
    )
}
