//! The entry point of the supervisor, a second process of this program, and the messages that it prints.

use std::{ffi::OsString, process::ExitCode};

use leasehold_supervise::{Notice, Supervisor};

use super::run_under_lease::listed;
use crate::{
    args::LogFormat,
    exit,
    output::{Line, Output},
    settings::{Level, OutputStyle},
};

/// The first argument that makes this program the supervisor.
const SUPERVISE: &str = "__supervise";

/// This program and the arguments that make it a supervisor with our output style.
pub(crate) fn program(style: OutputStyle) -> Vec<OsString> {
    ["/proc/self/exe", SUPERVISE, &encode_style(style)].map(OsString::from).to_vec()
}

/// How lines on standard error look, in words for the supervisor: `logfmt`, `text,quiet`, `text,color`.
fn encode_style(style: OutputStyle) -> String {
    let log = match style.log {
        LogFormat::Text => "text",
        LogFormat::Logfmt => "logfmt",
        LogFormat::Json => "json",
    };
    let quiet = if style.level == Level::Quiet { ",quiet" } else { "" };
    let color = if style.color_err { ",color" } else { "" };
    format!("{log}{quiet}{color}")
}

fn decode_style(text: &str) -> OutputStyle {
    let has = |word: &str| text.split(',').any(|found| found == word);
    OutputStyle {
        log: match text {
            _ if has("json") => LogFormat::Json,
            _ if has("logfmt") => LogFormat::Logfmt,
            _ => LogFormat::Text,
        },
        level: if has("quiet") { Level::Quiet } else { Level::Normal },
        color_err: has("color"),
        ..OutputStyle::plain()
    }
}

/// Does a supervisor's work, if these arguments ask for it.
pub(crate) fn run(args: &[OsString]) -> Option<ExitCode> {
    let [_, word, style, rest @ ..] = args else { return None };
    if word != SUPERVISE {
        return None;
    }
    let Some(supervisor) = Supervisor::from_args(rest) else { return Some(ExitCode::from(exit::USAGE)) };
    let output = Output::new(decode_style(&style.to_string_lossy()));
    let command = supervisor.name();
    let code = supervisor.run(&mut |notice| {
        if let Some(line) = message(&notice, &command) {
            output.print(line);
        }
    });
    output.finish();
    Some(code)
}

/// The message for what the holder and the supervisor report about each other, or about processes that they may not
/// stop; `None` for notices that `run_under_lease.rs` words.
pub(crate) fn message(notice: &Notice, command: &str) -> Option<Line> {
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
