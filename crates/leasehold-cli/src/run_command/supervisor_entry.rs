//! The entry point of the supervisor, a second process of this program.

use std::{ffi::OsString, process::ExitCode};

use leasehold_supervise::Supervisor;

use super::messages;
use crate::{
    args::LogFormat,
    exit,
    output::Output,
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
        if let Some(line) = messages::of_supervision(&notice, &command) {
            output.print(line);
        }
    });
    output.finish();
    Some(code)
}
