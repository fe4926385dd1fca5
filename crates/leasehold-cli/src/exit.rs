//! The exit codes.

use std::io;

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
