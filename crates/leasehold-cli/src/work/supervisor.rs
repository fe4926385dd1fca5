//! This program as the supervisor of a command, and what it says then.

use std::{ffi::OsString, process::ExitCode};

use leasehold_supervise::{Notice, Supervisor};

use super::under::listed;
use crate::{
    exit,
    say::{Line, Say},
    settings::{Level, Looks},
};

/// The first argument that makes this program the supervisor.
const SUPERVISE: &str = "__supervise";

/// This program and the arguments that make it a supervisor that looks like us.
pub(crate) fn program(looks: Looks) -> Vec<OsString> {
    let style = match looks.level {
        Level::Quiet => "quiet",
        _ if looks.json => "json",
        _ => "text",
    };
    ["/proc/self/exe", SUPERVISE, style].map(OsString::from).to_vec()
}

/// Does a supervisor's work, if these arguments ask for it.
pub(crate) fn run(args: &[OsString]) -> Option<ExitCode> {
    let [_, word, style, rest @ ..] = args else { return None };
    if word != SUPERVISE {
        return None;
    }
    let Some(supervisor) = Supervisor::from_args(rest) else { return Some(ExitCode::from(exit::USAGE)) };
    let level = if style == "quiet" { Level::Quiet } else { Level::Normal };
    let say = Say::new(Looks { json: style == "json", level, ..Looks::plain() });
    let command = supervisor.name();
    let code = supervisor.run(&mut |notice| {
        if let Some(line) = words(&notice, &command) {
            say.say(line);
        }
    });
    say.finish();
    Some(code)
}

/// What the processes that watch over each other have to say; `None` for what only a holder tells.
pub(crate) fn words(notice: &Notice, command: &str) -> Option<Line> {
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
