//! What an error of the server or of the connection to it means to the user.

use std::{collections::HashSet, error::Error as _, fmt};

use tokio_postgres::error::{DbError, SqlState};

use crate::{
    Error,
    backend::{Hint, HintSender},
    lease::Resource,
};

/// Why a call failed; many callers may share one failure.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    words: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Certainly not done; may work later.
    Unavailable,
    /// The start of a connection was refused for what it asked for.
    Refused,
    /// Sent and not answered.
    Unanswered,
    /// A row is locked by a transaction that stays open; not done.
    Locked,
    /// Overtaken by others; not done, and worth an immediate repetition.
    Overtaken,
    Denied,
    Config,
    Unsupported,
}

impl Failure {
    pub(super) fn new(kind: Kind, words: impl Into<String>) -> Self {
        Self { kind, words: words.into() }
    }

    /// A connection that could not be made: nothing was sent.
    pub(super) fn connecting(place: &str, error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(error) => {
                let failure = Self::from_server(place, error);
                let kind = match (failure.kind, error.code().code().get(..2)) {
                    // Broken protocol, unknown or unfit parameters, and whatever a pooler has no code for.
                    (_, Some("08" | "0A" | "22" | "42" | "XX")) if failure.kind != Kind::Denied => Kind::Refused,
                    (Kind::Unanswered, _) => Kind::Unavailable,
                    (kind, _) => kind,
                };
                Self { kind, ..failure }
            }
            None if error.to_string().contains("invalid configuration") => Self::new(
                Kind::Denied,
                format!(
                    "postgres at {place} wants a password; give one by password_file=, password_env=, PGPASSWORD or PGPASSFILE"
                ),
            ),
            None if chain(error).contains("server does not support TLS") => Self::new(
                Kind::Config,
                format!(
                    "postgres at {place} speaks no TLS and sslmode asks for it; turn `ssl` on there, or write sslmode=prefer \
                     where the network can be trusted"
                ),
            ),
            None => Self::new(
                Kind::Unavailable,
                format!("cannot connect to postgres at {place}: {}; does it run there?", chain(error)),
            ),
        }
    }

    /// A call that was sent.
    pub(super) fn calling(place: &str, error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(error) => Self::from_server(place, error),
            None => Self::new(
                Kind::Unanswered,
                format!("postgres at {place} was asked and the connection broke: {}", chain(error)),
            ),
        }
    }

    fn from_server(place: &str, error: &DbError) -> Self {
        let words = error.message();
        let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        let code = error.code();
        let (kind, advice) = if *code == SqlState::INSUFFICIENT_PRIVILEGE && words.contains("for database") {
            (Kind::Denied, "; connect as the database's owner, or let it `grant create on database` to this role")
        } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            (Kind::Denied, "; let the owner of the schema call its function allow('this role')")
        } else if *code == SqlState::INVALID_PASSWORD || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
            (
                Kind::Denied,
                "; check the user, and give the password by password_file=, password_env=, PGPASSWORD or PGPASSFILE",
            )
        } else if [
            SqlState::UNDEFINED_FUNCTION,
            SqlState::UNDEFINED_TABLE,
            SqlState::INVALID_SCHEMA_NAME,
            SqlState::UNDEFINED_OBJECT,
        ]
        .contains(code)
        {
            (Kind::Config, "; run `leasehold init` with this URL, or make the schema that is named")
        } else if *code == SqlState::INVALID_CATALOG_NAME || code.code() == "LH001" {
            (Kind::Config, "")
        } else if *code == SqlState::LOCK_NOT_AVAILABLE {
            (Kind::Locked, "; a transaction that used this lock stays open")
        } else if *code == SqlState::T_R_SERIALIZATION_FAILURE
            || *code == SqlState::T_R_DEADLOCK_DETECTED
            || code.code() == "LH002"
        {
            (Kind::Overtaken, "")
        } else if *code == SqlState::TOO_MANY_CONNECTIONS {
            (
                Kind::Unavailable,
                "; raise max_connections, or connect through a pooler: each instance has one, and more while it is busy",
            )
        } else if *code == SqlState::QUERY_CANCELED {
            (Kind::Unavailable, "; a statement_timeout of this role or database is too short for lock calls")
        } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
            (Kind::Unavailable, "; this server only reads: connect to the primary")
        } else if matches!(
            error.parsed_severity(),
            Some(tokio_postgres::error::Severity::Fatal | tokio_postgres::error::Severity::Panic)
        ) {
            // The server goes down or ends the connection: whether it was done is not known.
            (Kind::Unanswered, "")
        } else {
            (Kind::Unavailable, "")
        };
        Self::new(kind, format!("postgres at {place} says: {words} [{}]{hint}{advice}", code.code()))
    }
}

impl Failure {
    /// The answer that was lost may have carried grants for waiters of this instance: makes them ask again.
    pub(super) fn hurry<'a>(&self, about: impl Iterator<Item = &'a Resource>, hints: &HintSender) {
        if self.kind == Kind::Unanswered {
            for resource in about.collect::<HashSet<_>>() {
                hints.send(Hint::Changed { resource: resource.clone() });
            }
        }
    }

    /// What could not even be tried.
    pub(super) fn from_error(error: &Error) -> Self {
        Self::new(Kind::Config, error.to_string())
    }

    /// What the caller gets. No `From`: it would be one more way for `?` to convert in every program
    /// that uses this crate, and stop their closures from being inferred.
    pub(super) fn error(self) -> Error {
        match self.kind {
            Kind::Unavailable | Kind::Refused => Error::unavailable(self.words),
            Kind::Unanswered | Kind::Locked | Kind::Overtaken => Error::unanswered(self.words),
            Kind::Denied => Error::permission_denied(self.words),
            Kind::Config => Error::invalid_config(self.words),
            Kind::Unsupported => Error::unsupported(self.words),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

/// The error and what caused it; the client's errors hold no password.
fn chain(error: &tokio_postgres::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) {
            words = format!("{words}: {cause_words}");
        }
        source = cause.source();
    }
    words
}
