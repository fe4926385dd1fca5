//! Starts the child: its own process group, bound to our life, in the foreground if we were.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::Pid,
};

use crate::{shim::Orders, terminal::Terminal};

/// A command to start.
#[derive(Debug, Default)]
pub struct Launch {
    /// The program and its arguments; not empty.
    pub command: Vec<OsString>,
    /// Variables that override what is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Variables that the child must not inherit.
    pub without: Vec<&'static str>,
    /// Which program is started in the command's place and becomes it; this one unless tests say otherwise.
    pub shim: Option<OsString>,
}

impl Launch {
    /// The program as people call it.
    pub fn name(&self) -> String {
        self.command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// A child that was started.
#[derive(Debug)]
pub(crate) struct Spawned {
    /// Its process id, and that of its process group.
    pub(crate) pid: Pid,
    /// Where the shim tells that the command could not be run.
    errors: OwnedFd,
    /// Kept open so that the shim finds it.
    _errors_in: OwnedFd,
}

/// Starts the command. What is in `inherit` stays open in the child and all it starts, and is closed here.
pub(crate) fn spawn(launch: &Launch, foreground: bool, inherit: Option<OwnedFd>) -> io::Result<Spawned> {
    let (errors, errors_in) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let orders = Orders { parent: std::process::id(), errors: errors_in.as_raw_fd(), foreground };
    let program = launch.shim.clone().unwrap_or_else(|| OsString::from("/proc/self/exe"));
    let mut command = Command::new(program);
    command.arg0("leasehold").args(orders.to_args()).args(&launch.command).process_group(0);
    for name in &launch.without {
        command.env_remove(name);
    }
    command.envs(launch.env.iter().map(|(name, value)| (name, value)));
    let child = command.spawn()?;
    drop(inherit);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Spawned { pid, errors, _errors_in: errors_in })
}

impl Spawned {
    /// Why the command could not be run, if so; to be asked once the child has ended.
    pub(crate) fn exec_error(&self) -> Option<io::Error> {
        let mut errno = [0; 4];
        match rustix::io::read(&self.errors, &mut errno) {
            Ok(4) => Some(io::Error::from_raw_os_error(i32::from_le_bytes(errno))),
            _ => None,
        }
    }
}

/// Whether the child should have the terminal from the start: somebody types to it and reads from it.
///
/// In a pipeline the terminal stays with the pipeline until the child asks for it, or a pager at its end would be stopped.
pub(crate) fn wants_terminal(terminal: Option<&Terminal>) -> bool {
    use std::io::IsTerminal;
    io::stdin().is_terminal() && io::stdout().is_terminal() && terminal.is_some_and(Terminal::is_ours)
}
