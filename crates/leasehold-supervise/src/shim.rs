//! The moment between fork and exec, spent in this program: binds the child's life to ours, then becomes it.
//!
//! Only the process itself can ask to be killed when its parent dies, so the
//! command is not started directly but through this program once more.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Write,
    os::unix::process::{CommandExt, parent_id},
    process::{Command, ExitCode},
};

use rustix::process;

use crate::terminal::Terminal;

/// The exit code of a shim that cannot do its work (`EX_SOFTWARE`).
const SOFTWARE: u8 = 70;

/// The first argument that makes this program the shim.
pub const SHIM: &str = "__shim";

/// What the shim is told by its parent.
#[derive(Debug)]
pub struct Orders {
    /// The parent's process id: if it is another one by now, the parent died.
    pub parent: u32,
    /// The parent's number for the pipe that takes the error of exec.
    pub errors: i32,
    /// Whether to take the terminal.
    pub foreground: bool,
}

impl Orders {
    /// The orders as arguments.
    pub(crate) fn to_args(&self) -> [OsString; 4] {
        [
            SHIM.into(),
            self.parent.to_string().into(),
            self.errors.to_string().into(),
            if self.foreground { "fg" } else { "bg" }.into(),
        ]
    }

    /// The orders, and the command that follows them; `None` if these arguments are none of ours.
    pub fn from_args(args: &[OsString]) -> Option<(Self, &[OsString])> {
        let [_, shim, parent, errors, ground, command @ ..] = args else {
            return None;
        };
        let number = |text: &OsStr| text.to_str()?.parse::<u32>().ok();
        if shim != SHIM || command.is_empty() {
            return None;
        }
        let orders =
            Self { parent: number(parent)?, errors: i32::try_from(number(errors)?).ok()?, foreground: ground == "fg" };
        Some((orders, command))
    }
}

/// Follows the orders, then becomes the command; comes back only if that failed.
pub fn become_command(orders: &Orders, command: &[OsString]) -> ExitCode {
    // The order matters: first ask for the signal, then look whether the parent is still there.
    let bound = process::set_parent_process_death_signal(Some(process::Signal::KILL));
    if bound.is_err() || parent_id() != orders.parent {
        return ExitCode::from(SOFTWARE);
    }
    // Opened through /proc rather than inherited: this one closes by itself on exec.
    let errors = File::options().write(true).open(format!("/proc/{}/fd/{}", orders.parent, orders.errors));
    if orders.foreground
        && let Some(terminal) = Terminal::controlling()
    {
        terminal.give_to(process::getpgrp());
    }

    let failed = Command::new(&command[0]).args(&command[1..]).exec();

    let errno = failed.raw_os_error().unwrap_or(0);
    if let Ok(mut errors) = errors {
        let _parent_is_gone = errors.write_all(&errno.to_le_bytes());
    }
    ExitCode::from(exit_code(errno))
}

/// The shell's convention: 127 if there is no such command, 126 if it cannot be run.
fn exit_code(errno: i32) -> u8 {
    if errno == rustix::io::Errno::NOENT.raw_os_error() { 127 } else { 126 }
}
