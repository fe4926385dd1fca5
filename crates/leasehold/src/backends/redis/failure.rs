//! What an error of Redis means to the user.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::options::Address;
use crate::Error;

/// The error of a server that answered, but not what was asked for: nothing was changed.
pub(super) fn refused(place: &str, error: &RedisError) -> Error {
    let said = said(error);
    let message = |advice: &str| format!("{place} refused: {said}; {advice}");
    if is_readonly(error) {
        return Error::permission_denied(message("it is a replica: name the master, or use redis+sentinel://"));
    }
    if is_unknown(error) {
        return Error::permission_denied(message(
            "give user and password in the URL, or by password_file=, password_env= or REDISCLI_AUTH",
        ));
    }
    match (error.kind(), error.code().unwrap_or_default()) {
        (ErrorKind::Server(ServerErrorKind::NoPerm), _) | (_, "NOPERM") => Error::permission_denied(message(
            "allow this user the keys ~leasehold:* and channels &leasehold:*, with +@all -@dangerous +info",
        )),
        _ if said.contains("NOPERM") || said.contains("can't access") || said.contains("no permissions") => {
            Error::permission_denied(message(
                "allow this user the keys ~leasehold:* and channels &leasehold:*, with +@all -@dangerous +info",
            ))
        }
        (_, "OOM") => Error::unavailable(message("it is out of memory: raise maxmemory")),
        (_, "MISCONF") => Error::unavailable(message("it cannot write to its disk: see its log")),
        (ErrorKind::RESP3NotSupported, _) => Error::unsupported(message("leasehold needs Redis 6.2 or newer")),
        (ErrorKind::InvalidClientConfig, _) => Error::invalid_config(message("correct the URL")),
        _ => Error::unavailable(message("look at the server")),
    }
}

/// The error of a server that could not be reached: nothing was sent.
pub(super) fn unreachable(place: &str, error: &RedisError) -> Error {
    if is_refusal(error) {
        return refused(place, error);
    }
    Error::unavailable(format!("cannot reach {place}: {}", said(error)))
}

/// The error of a sentinel.
pub(super) fn of_sentinel(sentinel: &Address, error: &RedisError) -> Error {
    let place = format!("the sentinel {sentinel}");
    if is_unknown(error) {
        return Error::permission_denied(format!(
            "{place} refused: {}; sentinels have users of their own: give sentinel_password_file= or \
             sentinel_password_env=, and sentinel_user= if it has a name",
            said(error)
        ));
    }
    unreachable(&place, error)
}

/// The error of a request that was sent and not answered.
pub(super) fn unanswered(place: &str, why: &str) -> Error {
    Error::unanswered(format!("{place} was asked and did not answer: {why}"))
}

/// Whether the server itself said no.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(_)
            | ErrorKind::Extension
            | ErrorKind::AuthenticationFailed
            | ErrorKind::RESP3NotSupported
            | ErrorKind::InvalidClientConfig
    )
}

/// Whether the server does not know us.
fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

/// Whether the server does not know the script.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether another server has the slot.
pub(super) fn is_moved(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::Moved)
}

/// Whether the server is a replica, told by itself or by a script.
pub(super) fn is_readonly(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        || error.detail().is_some_and(|detail| detail.contains("READONLY"))
}

/// Whether it will answer later: it is starting, or its cluster is being repaired.
pub(super) fn is_not_ready(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
        )
    )
}

fn said(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (_, Some(detail)) => detail.to_owned(),
        _ => error.to_string(),
    }
}
