//! Whom to signal, and what to do with a child whose lease is lost and with what a child leaves behind.

use std::str::FromStr;

use crate::signal::Signal;

/// Whom to signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillMode {
    /// The command and everything in its process group.
    Group,
    /// The command's process alone.
    Process,
}

/// What to do with processes that outlive the command and have not left its session, as daemons do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stragglers {
    /// TERM, then KILL.
    Stop,
    /// Keep the lock until they end.
    Wait,
    /// Let them run without the lock.
    Leave,
}

/// What to do with the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// TERM, then KILL.
    Terminate,
    /// KILL.
    Kill,
    /// This signal, then KILL.
    Signal(Signal),
    /// Nothing but a warning.
    Continue,
}

impl FromStr for KillMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "group" => Ok(Self::Group),
            "process" => Ok(Self::Process),
            _ => Err(String::from("write group or process")),
        }
    }
}

impl FromStr for Stragglers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stop" => Ok(Self::Stop),
            "wait" => Ok(Self::Wait),
            "leave" => Ok(Self::Leave),
            _ => Err(String::from("write stop, wait or leave")),
        }
    }
}

impl FromStr for OnLost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "terminate" => Ok(Self::Terminate),
            "kill" => Ok(Self::Kill),
            "continue" => Ok(Self::Continue),
            _ => match text.strip_prefix("signal:") {
                Some(name) => name.parse().map(Self::Signal),
                None => Err(String::from("write terminate, kill, signal:NAME or continue")),
            },
        }
    }
}
