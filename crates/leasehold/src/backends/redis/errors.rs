//! What an error of Redis means to the user.

use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::{
    keys,
    options::{Address, RedisOptions, Topology},
};
use crate::{Error, lease::rounded};

/// Error for a rejected request; nothing was changed.
pub(super) fn refused(options: &RedisOptions, error: &RedisError) -> Error {
    refused_by(&options.display_url(), options, error)
}

fn refused_by(server: &str, options: &RedisOptions, error: &RedisError) -> Error {
    let text = text(error);
    if is_readonly(error) {
        let advice = "it is a replica: name the master, or use redis+sentinel://";
        return Error::permission_denied(format!("{server} refused: {text}; {advice}"));
    }
    if is_unauthenticated(error) {
        let advice = match (&options.user, &options.password, &options.credentials) {
            (Some(_), None, None) => {
                "a password follows a colon (USER:PASSWORD@host, :PASSWORD@host); it can also come by password_file=, \
                 password_env= or REDISCLI_AUTH"
            }
            _ => {
                "give user and password in the URL (USER:PASSWORD@host, or :PASSWORD@host), or by password_file=, \
                 password_env= or REDISCLI_AUTH"
            }
        };
        return Error::permission_denied(format!("{server} {}; {advice}", not_authenticated(&text)));
    }
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoPerm) => {
            Error::permission_denied(format!("{server} refused: {text}; {}", rights(options)))
        }
        ErrorKind::RESP3NotSupported => {
            Error::unsupported(format!("{server} refused: {text}; leasehold needs Redis 6.2 or newer"))
        }
        ErrorKind::InvalidClientConfig => Error::invalid_config(format!("{server} refused: {text}; correct the URL")),
        _ => refused_text_by(server, options, &text),
    }
}

/// The same for an error that a script caught.
pub(super) fn refused_text(options: &RedisOptions, text: &str) -> Error {
    refused_text_by(&options.display_url(), options, text)
}

fn refused_text_by(server: &str, options: &RedisOptions, text: &str) -> Error {
    let message = |advice: &str| format!("{server} refused: {text}; {advice}");
    if ["NOPERM", "can't access", "no permissions"].iter().any(|word| text.contains(word)) {
        return Error::permission_denied(message(&rights(options)));
    }
    if text.contains("DB index is out of range") {
        let advice = "name a database that the server has, such as 0, or raise `databases` in its configuration";
        return Error::invalid_config(message(advice));
    }
    Error::unavailable(if text.contains("OOM") {
        message("it is out of memory: leases that are held go on, new ones need a higher maxmemory")
    } else if text.contains("MISCONF") {
        message("it cannot write to its disk: see its log")
    } else if text.contains("NOREPLICAS") {
        message("too few replicas are connected (min-replicas-to-write)")
    } else {
        message("look at the server")
    })
}

/// The rights that a user of the server needs.
fn rights(options: &RedisOptions) -> String {
    let names = keys::pattern(&options.prefix);
    format!("allow this user the keys ~{names} and channels &{names}, with +@all -@dangerous +info")
}

/// The error of a server that could not be reached: nothing was sent.
pub(super) fn unreachable(server: &str, options: &RedisOptions, error: &RedisError) -> Error {
    if is_refusal(error) || is_unauthenticated(error) {
        return refused_by(server, options, error);
    }
    if error.kind() == ErrorKind::Parse {
        return Error::invalid_config(format!("{server} answers, but not as a Redis server does; check host and port"));
    }
    let text = text(error);
    let was_cut = error.is_connection_dropped() && !error.is_connection_refusal();
    // What a server without TLS answers to a handshake.
    let is_no_tls = text.contains("corrupt message");
    let advice = if text.contains("failed to lookup address") {
        "check the host name"
    } else if was_cut || is_no_tls {
        other_protocol(options)
    } else {
        "does it run there?"
    };
    Error::unavailable(format!("cannot reach {server}: {text}; {advice}"))
}

/// The error of a server that was not reached within the limit.
pub(super) fn too_slow(options: &RedisOptions, limit: Duration) -> Error {
    let (server, advice) = (options.display_url(), other_protocol(options));
    Error::unavailable(format!("{server} did not answer within {:?}; {advice}", rounded(limit)))
}

/// What to look at if a server hangs up or waits for more: it may speak another protocol.
fn other_protocol(options: &RedisOptions) -> &'static str {
    match options.tls {
        Some(_) => "does the server speak TLS? otherwise redis://",
        None => "does a Redis server listen on that port? if it speaks TLS: rediss://",
    }
}

/// The error of a sentinel.
pub(super) fn of_sentinel(sentinel: &Address, options: &RedisOptions, error: &RedisError) -> Error {
    let server = format!("the sentinel {sentinel}");
    if is_unauthenticated(error) {
        return Error::permission_denied(format!(
            "{server} {}; sentinels have users of their own: give sentinel_password_file= or \
             sentinel_password_env=, and sentinel_user= if it has a name",
            not_authenticated(&text(error))
        ));
    }
    unreachable(&server, options, error)
}

/// The error of a request that was sent and not answered.
pub(super) fn unanswered(server: &str, why: &str) -> Error {
    Error::unanswered(format!("{server} was asked and did not answer: {why}"))
}

/// The error of a store that another version of leasehold wrote.
pub(super) fn other_format(options: &RedisOptions, format: &str) -> Error {
    let server = options.display_url();
    Error::unsupported(match format {
        "1" | "2" => format!(
            "{server} has locks in format {format}, which this version cannot read: stop every program that uses them \
             and delete their keys ({}), or use another namespace",
            delete_namespace(options)
        ),
        newer => format!("{server} has locks of format {newer}, which a newer leasehold wrote: upgrade this program"),
    })
}

/// The commands that delete the keys of the namespace, and none of others.
fn delete_namespace(options: &RedisOptions) -> String {
    let pattern = keys::namespace_pattern(options).replace('\'', r"'\''");
    let (database, per_call, place) = match (&options.topology, options.database) {
        // Keys of different slots cannot be deleted in one call.
        (Topology::Cluster, _) => (String::new(), " -n 1", ", on each master"),
        (_, 0) => (String::new(), "", ""),
        (_, number) => (format!(" -n {number}"), "", ""),
    };
    format!("redis-cli{database} --scan --pattern '{pattern}' | xargs{per_call} redis-cli{database} unlink{place}")
}

/// The same error for another caller of the same batch.
pub(super) fn copy_of(error: &Error) -> Error {
    of_kind(error.kind(), error.to_string())
}

/// An error of the same kind with another message.
pub(super) fn of_kind(kind: crate::ErrorKind, message: String) -> Error {
    match kind {
        crate::ErrorKind::OutcomeUnknown => Error::unanswered(message),
        crate::ErrorKind::PermissionDenied => Error::permission_denied(message),
        crate::ErrorKind::Unsupported => Error::unsupported(message),
        crate::ErrorKind::InvalidConfig => Error::invalid_config(message),
        _ => Error::unavailable(message),
    }
}

/// Whether the server itself refused.
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

/// Whether the server wants other credentials; of a cluster, only the text of the error says so.
fn is_unauthenticated(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || ["NOAUTH", "WRONGPASS"].iter().any(|code| text(error).contains(code))
}

/// What the server thinks of the credentials. Its own text of NOAUTH speaks of the protocol.
fn not_authenticated(text: &str) -> &'static str {
    if text.contains("NOAUTH") { "asks for a password (NOAUTH)" } else { "refused this user or password (WRONGPASS)" }
}

/// Whether the server does not know the script.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether the server is a replica, by its own word or that of a script.
pub(super) fn is_readonly(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        || error.detail().is_some_and(|detail| detail.contains("READONLY"))
}

/// Returns whether a retry may succeed: the server is starting, or its cluster is being repaired.
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

fn text(error: &RedisError) -> String {
    // Without its full stop: our message continues after it.
    let detail = error.detail().map(|detail| detail.trim_end_matches('.'));
    match (error.code(), detail) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (_, Some(detail)) => detail.to_owned(),
        _ => error.to_string(),
    }
}
