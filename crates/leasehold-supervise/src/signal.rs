//! Signals by name and number.

use std::{fmt, str::FromStr};

use rustix::process;

/// A signal that can be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signal(process::Signal);

const NAMES: [(&str, process::Signal); 31] = [
    ("HUP", process::Signal::HUP),
    ("INT", process::Signal::INT),
    ("QUIT", process::Signal::QUIT),
    ("ILL", process::Signal::ILL),
    ("TRAP", process::Signal::TRAP),
    ("ABRT", process::Signal::ABORT),
    ("BUS", process::Signal::BUS),
    ("FPE", process::Signal::FPE),
    ("KILL", process::Signal::KILL),
    ("USR1", process::Signal::USR1),
    ("SEGV", process::Signal::SEGV),
    ("USR2", process::Signal::USR2),
    ("PIPE", process::Signal::PIPE),
    ("ALRM", process::Signal::ALARM),
    ("TERM", process::Signal::TERM),
    ("STKFLT", process::Signal::STKFLT),
    ("CHLD", process::Signal::CHILD),
    ("CONT", process::Signal::CONT),
    ("STOP", process::Signal::STOP),
    ("TSTP", process::Signal::TSTP),
    ("TTIN", process::Signal::TTIN),
    ("TTOU", process::Signal::TTOU),
    ("URG", process::Signal::URG),
    ("XCPU", process::Signal::XCPU),
    ("XFSZ", process::Signal::XFSZ),
    ("VTALRM", process::Signal::VTALARM),
    ("PROF", process::Signal::PROF),
    ("WINCH", process::Signal::WINCH),
    ("IO", process::Signal::IO),
    ("PWR", process::Signal::POWER),
    ("SYS", process::Signal::SYS),
];

impl Signal {
    /// Asks a process to end.
    pub const TERM: Self = Self(process::Signal::TERM);
    /// Ends a process.
    pub const KILL: Self = Self(process::Signal::KILL);
    /// Stops a process.
    pub const STOP: Self = Self(process::Signal::STOP);
    /// Lets a stopped process go on.
    pub const CONT: Self = Self(process::Signal::CONT);
    /// Asks a process to stop, as Ctrl-Z does.
    pub const TSTP: Self = Self(process::Signal::TSTP);
    /// Interrupts a process, as Ctrl-C does.
    pub const INT: Self = Self(process::Signal::INT);

    /// The signal of this number, if it has a name.
    pub fn from_number(number: i32) -> Option<Self> {
        process::Signal::from_named_raw(number).map(Self)
    }

    /// Its number.
    pub fn number(self) -> i32 {
        self.0.as_raw()
    }

    /// Whether it asks a process to end: INT, TERM, HUP, QUIT.
    pub fn is_ending(self) -> bool {
        [process::Signal::INT, process::Signal::TERM, process::Signal::HUP, process::Signal::QUIT].contains(&self.0)
    }

    pub(crate) fn raw(self) -> process::Signal {
        self.0
    }
}

impl From<Signal> for process::Signal {
    fn from(signal: Signal) -> Self {
        signal.0
    }
}

impl From<process::Signal> for Signal {
    fn from(signal: process::Signal) -> Self {
        Self(signal)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&signal_name(self.number()))
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Signal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.to_ascii_uppercase();
        let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
        let by_name = NAMES.iter().find(|(name, _)| *name == bare).map(|(_, signal)| Self(*signal));
        by_name
            .or_else(|| bare.parse().ok().and_then(Self::from_number))
            .ok_or_else(|| format!("there is no signal {text}; write one such as TERM, INT, USR1"))
    }
}

/// The name of a signal that may have none: `TERM`, `64`.
pub fn signal_name(number: i32) -> String {
    NAMES
        .iter()
        .find(|(_, signal)| signal.as_raw() == number)
        .map_or_else(|| number.to_string(), |(name, _)| String::from(*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_known_by_name_and_number() {
        for text in ["TERM", "term", "SIGTERM", "15"] {
            assert_eq!(text.parse(), Ok(Signal::TERM), "{text}");
        }
        assert!("NOPE".parse::<Signal>().is_err() && "0".parse::<Signal>().is_err());
        assert_eq!((signal_name(9), signal_name(34)), (String::from("KILL"), String::from("34")));
    }
}
