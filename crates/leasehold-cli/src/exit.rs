//! Exit codes, and the failure that carries one together with words for people.

use std::{fmt, io};

use leasehold::{Error, ErrorKind};
use leasehold_supervise::TtlTooShort;

use crate::duration::Brief;

/// All went well.
pub(crate) const OK: u8 = 0;
/// The answer is no: not held, no such lock, a name that nothing is known of, a failure found.
pub(crate) const NO: u8 = 1;
/// Bad flags, self-deadlock, impossible ttl (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// The backend cannot be reached or used (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: u8 = 69;
/// A bug of ours (`EX_SOFTWARE`).
pub(crate) const SOFTWARE: u8 = 70;
/// Busy with `-n`, or `-w` ran out (`EX_TEMPFAIL`).
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The backend refused the credentials or the rights (`EX_NOPERM`).
pub(crate) const NO_PERMISSION: u8 = 77;
/// Bad config or URL (`EX_CONFIG`).
pub(crate) const CONFIG: u8 = 78;
/// The lock was lost before the command ended.
pub(crate) const LOST: u8 = 121;
/// `--max-hold` ran out, as with timeout(1).
pub(crate) const MAX_HOLD: u8 = 124;
/// The command exists and cannot be run.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code of a death by signal, as shells tell it.
pub(crate) fn of_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}

/// The code of a command that could not be run, as shells tell it.
pub(crate) fn of_exec(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}

/// `Result` with a [`CommandError`].
pub(crate) type Result<T, E = CommandError> = std::result::Result<T, E>;

/// Why the command ends without having done its work: one line, perhaps a hint, and the exit code.
#[derive(Debug)]
pub(crate) struct CommandError {
    /// The exit code.
    pub(crate) code: u8,
    /// The kind in one word, for JSON.
    pub(crate) kind: &'static str,
    /// What was tried and what came back.
    pub(crate) message: String,
    /// What to type next.
    pub(crate) hint: Option<String>,
}

impl CommandError {
    /// A request that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, kind: "usage", message: message.into(), hint: None }
    }

    /// A setting that cannot be used.
    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self { code: CONFIG, kind: "config", message: message.into(), hint: None }
    }

    /// Something on this machine that could not be read or written.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: UNAVAILABLE, kind: "unavailable", message: message.into(), hint: None }
    }

    /// The same, with what to type next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A bad value given by flag is a usage error, whoever found it.
    pub(crate) fn by_flag(flag: &str, error: impl fmt::Display) -> Self {
        Self::usage(format!("{flag}: {error}"))
    }
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        let (code, kind) = match error.kind() {
            ErrorKind::InvalidName => (USAGE, "invalid_name"),
            ErrorKind::ShapeMismatch => (USAGE, "shape_mismatch"),
            ErrorKind::InvalidConfig => (CONFIG, "config"),
            ErrorKind::Unsupported => (CONFIG, "unsupported"),
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown => (UNAVAILABLE, "unavailable"),
            ErrorKind::PermissionDenied => (NO_PERMISSION, "permission_denied"),
            ErrorKind::Busy | ErrorKind::WaitElapsed => (NOT_ACQUIRED, "not_acquired"),
            ErrorKind::Lost => (LOST, "lost"),
            _ => (SOFTWARE, "bug"),
        };
        Self { code, kind, message: format!("{error:#}"), hint: None }
    }
}

impl From<TtlTooShort> for CommandError {
    fn from(error: TtlTooShort) -> Self {
        let TtlTooShort { grace, ttl, smallest_ttl } = error;
        let message = match grace {
            Some(grace) => format!(
                "--kill-after {} does not fit into a ttl of {}: it must end well before the lease does",
                Brief(grace),
                Brief(ttl)
            ),
            None => format!("--ttl {} is too short to stop a command before it ends", Brief(ttl)),
        };
        Self::usage(message).hint(format!("use --ttl {} or more", Brief(smallest_ttl)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_error_have_their_codes() {
        for (error, code) in [
            (Error::invalid_name("n"), 64),
            (Error::invalid_config("c"), 78),
            (Error::unsupported("u"), 78),
            (Error::unavailable("a"), 69),
            (Error::unanswered("o"), 69),
            (Error::permission_denied("p"), 77),
        ] {
            assert_eq!(CommandError::from(error).code, code);
        }
    }
}
