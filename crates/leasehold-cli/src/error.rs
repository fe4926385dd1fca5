//! Why the command fails: words for people, and the exit code.

use std::fmt;

use leasehold::{Error, ErrorKind};
use leasehold_supervise::TtlTooShort;

use crate::{duration::Brief, exit};

/// `Result` with a [`CommandError`].
pub(crate) type Result<T, E = CommandError> = std::result::Result<T, E>;

/// Why the command ends without having done its work: one line, perhaps a hint, and the exit code.
#[derive(Debug)]
pub(crate) struct CommandError {
    /// The exit code.
    pub(crate) code: u8,
    /// The kind in one word, for JSON.
    pub(crate) kind: &'static str,
    /// The call that failed, and its error.
    pub(crate) message: String,
    /// What to type next.
    pub(crate) hint: Option<String>,
}

impl CommandError {
    /// A request that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: exit::USAGE, kind: "usage", message: message.into(), hint: None }
    }

    /// A setting that cannot be used.
    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self { code: exit::CONFIG, kind: "config", message: message.into(), hint: None }
    }

    /// Something on this machine that could not be read or written.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: exit::UNAVAILABLE, kind: "unavailable", message: message.into(), hint: None }
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
            ErrorKind::InvalidName => (exit::USAGE, "invalid_name"),
            ErrorKind::ShapeMismatch => (exit::USAGE, "shape_mismatch"),
            ErrorKind::InvalidConfig => (exit::CONFIG, "config"),
            ErrorKind::Unsupported => (exit::CONFIG, "unsupported"),
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown => (exit::UNAVAILABLE, "unavailable"),
            ErrorKind::PermissionDenied => (exit::NO_PERMISSION, "permission_denied"),
            ErrorKind::Busy | ErrorKind::WaitElapsed => (exit::NOT_ACQUIRED, "not_acquired"),
            ErrorKind::Lost => (exit::LOST, "lost"),
            _ => (exit::SOFTWARE, "bug"),
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
