//! What an error of the server or of the connection to it means to the user.

use std::{collections::HashSet, error::Error as _, fmt, time::Duration};

use tokio_postgres::error::{DbError, Severity, SqlState};

use super::options::PostgresOptions;
use crate::{
    Error,
    backend::{Hint, HintSender},
    lease::{Resource, rounded},
};

/// The code of an error that the schema raises in a transaction that is not READ COMMITTED. `schema/2_rule.sql` lists
/// all such codes.
pub(super) const WRONG_ISOLATION: &str = "LH001";
/// A concurrent operation came first.
const OVERTAKEN: &str = "LH002";
/// The schema, or a name that was to be exposed, belongs to others.
const INSTALLATION_REFUSED: &str = "LH007";

/// Why a call failed; many callers may share one failure.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    message: String,
}

/// What a failure means to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// Certainly not done; may work later.
    Unavailable,
    /// The startup parameters of a connection were rejected.
    StartupRejected,
    /// Sent and not answered.
    Unanswered,
    /// A row is locked by a transaction that stays open; nothing was done. Reported as an unknown outcome, because the
    /// engine retries that but not `Unavailable`.
    Locked,
    /// Lost a conflict with another transaction; nothing was done. Worth an immediate retry; reported like `Locked`.
    Conflict,
    Denied,
    Config,
    Unsupported,
}

/// The statements that give a role the rights it lacks, as far as they are known.
struct Grants {
    /// For the schema's owner.
    on_schema: Option<String>,
    /// For the database's owner.
    on_database: Option<String>,
}

impl Grants {
    /// For the role of these options, which needs `privilege` on the database.
    fn new(options: &PostgresOptions, privilege: &str) -> Self {
        Self {
            on_schema: Some(options.allow_statement()),
            on_database: Some(options.grant_on_database_statement(privilege)),
        }
    }
}

impl Failure {
    pub(super) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A connection that could not be made: nothing was sent.
    pub(super) fn connecting(address: &str, options: &PostgresOptions, error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(error) => {
                let grants = Grants::new(options, "connect");
                let failure = Self::reported(&at(address), grants, &ServerError::from(error));
                let kind = match (failure.kind, error.code().code().get(..2)) {
                    // Broken protocol, unknown or unfit parameters, and whatever a pooler has no code for.
                    (_, Some("08" | "0A" | "22" | "42" | "XX")) if failure.kind != FailureKind::Denied => {
                        FailureKind::StartupRejected
                    }
                    (FailureKind::Unanswered, _) => FailureKind::Unavailable,
                    (kind, _) => kind,
                };
                Self { kind, ..failure }
            }
            None if error.to_string().contains("invalid configuration") => Self::new(
                FailureKind::Denied,
                format!(
                    "postgres at {address} wants a password; give one by password_file=, password_env=, PGPASSWORD or PGPASSFILE"
                ),
            ),
            None if chain(error).contains("server does not support TLS") => Self::new(
                FailureKind::Config,
                format!(
                    "postgres at {address} speaks no TLS and sslmode asks for it; turn `ssl` on there, or write sslmode=prefer \
                     where the network can be trusted"
                ),
            ),
            None => {
                let why = chain(error);
                let message = format!("cannot connect to postgres at {address}: {why}; {}", to_check(&why));
                Self::new(FailureKind::Unavailable, message)
            }
        }
    }

    /// A connection that was not established in time: nothing was sent.
    pub(super) fn too_slow(address: &str, limit: Duration) -> Self {
        // A server of another kind may wait for more bytes of its own protocol.
        let message = format!(
            "postgres at {address} did not answer within {:?}; does a Postgres server listen on that port?",
            rounded(limit)
        );
        Self::new(FailureKind::Unavailable, message)
    }

    /// A call that was sent.
    pub(super) fn calling(address: &str, options: &PostgresOptions, error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(error) => Self::reported(&at(address), Grants::new(options, "create"), &ServerError::from(error)),
            None => Self::new(
                FailureKind::Unanswered,
                format!("postgres at {address} was asked and the connection broke: {}", chain(error)),
            ),
        }
    }

    /// A call in the user's own transaction that failed, by whichever driver. `allow` is the statement that gives the
    /// rights, if the call needs those of the schema.
    pub(super) fn in_transaction(
        allow: Option<String>,
        reported: Option<ServerError<'_>>,
        error: &impl fmt::Display,
    ) -> Self {
        match reported {
            Some(reported) => {
                let grants = Grants { on_schema: allow, on_database: None };
                let failure = Self::reported("postgres, in this transaction,", grants, &reported);
                match failure.kind {
                    // Nothing was done, and no engine retries the call.
                    FailureKind::Locked | FailureKind::Conflict => Self { kind: FailureKind::Unavailable, ..failure },
                    _ => failure,
                }
            }
            None => Self::new(
                FailureKind::Unanswered,
                format!("postgres was asked in this transaction and did not answer: {error}"),
            ),
        }
    }

    fn reported(subject: &str, grants: Grants, error: &ServerError<'_>) -> Self {
        let by_owner = |of: &str, statement: Option<String>| {
            statement
                .map(|statement| format!("; the owner of the {of} lets this role in: {statement}"))
                .unwrap_or_default()
        };
        let on_schema = by_owner("schema", grants.on_schema);
        let on_database = by_owner("database", grants.on_database);
        let ServerError { code, message, hint, is_fatal } = error;
        let is_without_database = *code == SqlState::INVALID_CATALOG_NAME;
        let hint = hint.or(is_without_database.then_some("create it, or correct its name in the URL"));
        let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
        let (kind, advice) = if *code == SqlState::INSUFFICIENT_PRIVILEGE && message.contains("for database") {
            (FailureKind::Denied, on_database.as_str())
        } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            (FailureKind::Denied, on_schema.as_str())
        } else if *code == SqlState::INVALID_PASSWORD || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
            (
                FailureKind::Denied,
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
            (FailureKind::Config, "; run `leasehold init` on this database, or make the schema that is named")
        } else if *code == SqlState::INVALID_CATALOG_NAME
            || [WRONG_ISOLATION, INSTALLATION_REFUSED].contains(&code.code())
        {
            (FailureKind::Config, "")
        } else if *code == SqlState::LOCK_NOT_AVAILABLE {
            (FailureKind::Locked, "; a transaction that used this lock stays open")
        } else if *code == SqlState::T_R_SERIALIZATION_FAILURE
            || *code == SqlState::T_R_DEADLOCK_DETECTED
            || code.code() == OVERTAKEN
        {
            (FailureKind::Conflict, "")
        } else if *code == SqlState::TOO_MANY_CONNECTIONS {
            (
                FailureKind::Unavailable,
                "; raise max_connections, or connect through a pooler: each instance has one, and more while it is busy",
            )
        } else if *code == SqlState::QUERY_CANCELED {
            (FailureKind::Unavailable, "; a statement_timeout of this role or database is too short for lock calls")
        } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
            (FailureKind::Unavailable, "; this server only reads: connect to the primary")
        } else if *is_fatal {
            // The server goes down or ends the connection: whether it was done is not known.
            (FailureKind::Unanswered, "")
        } else {
            (FailureKind::Unavailable, "")
        };
        Self::new(kind, format!("{subject} says: {message} [{}]{hint}{advice}", code.code()))
    }
}

/// An error that the server reported, as every driver shows it.
pub(super) struct ServerError<'a> {
    pub(super) code: SqlState,
    pub(super) message: &'a str,
    pub(super) hint: Option<&'a str>,
    /// It ends the connection.
    pub(super) is_fatal: bool,
}

impl<'a> From<&'a DbError> for ServerError<'a> {
    fn from(error: &'a DbError) -> Self {
        let is_fatal = matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
        Self { code: error.code().clone(), message: error.message(), hint: error.hint(), is_fatal }
    }
}

/// What to look at first if no connection could be made.
pub(super) fn to_check(why: &str) -> &'static str {
    if why.contains("failed to lookup address") { "check the host name" } else { "does it run there?" }
}

fn at(address: &str) -> String {
    format!("postgres at {address}")
}

impl Failure {
    /// A lost answer may have carried grants for waiters of this instance: makes them ask again.
    pub(super) fn wake_waiters<'a>(&self, resources: impl Iterator<Item = &'a Resource>, hints: &HintSender) {
        if self.kind == FailureKind::Unanswered {
            for resource in resources.collect::<HashSet<_>>() {
                hints.send(Hint::Changed { resource: resource.clone() });
            }
        }
    }

    /// A configuration error: nothing was sent.
    pub(super) fn from_error(error: &Error) -> Self {
        Self::new(FailureKind::Config, format!("{error:#}"))
    }

    /// What the caller gets. Not a `From`: another `From<…> for Error` would break the type inference of `?` in users'
    /// closures.
    pub(super) fn error(self) -> Error {
        match self.kind {
            FailureKind::Unavailable | FailureKind::StartupRejected => Error::unavailable(self.message),
            FailureKind::Unanswered | FailureKind::Locked | FailureKind::Conflict => Error::unanswered(self.message),
            FailureKind::Denied => Error::permission_denied(self.message),
            FailureKind::Config => Error::invalid_config(self.message),
            FailureKind::Unsupported => Error::unsupported(self.message),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The error and what caused it; the client's errors hold no password.
fn chain(error: &tokio_postgres::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_message = cause.to_string();
        if !message.contains(&cause_message) {
            message = format!("{message}: {cause_message}");
        }
        source = cause.source();
    }
    message
}
