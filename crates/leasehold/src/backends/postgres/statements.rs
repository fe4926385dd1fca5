//! The statements of this backend: calls of the schema's functions, and a few queries about the server.

use self::Text::{Builtin, Function, Query};
use super::schema;

/// Where the text of a statement comes from.
enum Text {
    /// The text of an .sql file.
    Query(&'static str),
    /// A function of the schema, and how many parameters it takes.
    Function(&'static str, usize),
    /// A function of the server, and how many parameters it takes.
    Builtin(&'static str, usize),
}

macro_rules! statements {
    ($($statement:ident => $text:expr),+ $(,)?) => {
        /// A statement that a connection prepares once.
        #[derive(Clone, Copy, Debug)]
        pub(super) enum Statement { $($statement),+ }

        const TEXTS: &[Text] = &[$($text),+];
    };
}

statements! {
    ServerInfo => Query(include_str!("schema/server_info.sql")),
    OtherOwner => Query(include_str!("schema/other_owner.sql")),
    Version => Query(include_str!("schema/version.sql")),
    WhoMayInstall => Query(include_str!("schema/who_may_install.sql")),
    NeedsVacuum => Query(include_str!("schema/needs_vacuum.sql")),
    Vacuum => Query(include_str!("schema/vacuum.sql")),
    Examine => Query(include_str!("schema/examine.sql")),
    Clock => Query(include_str!("schema/clock.sql")),
    AcquireOne => Function("acquire_one", 16),
    AcquireMany => Function("acquire_many", 16),
    ReleaseOne => Function("release_one", 8),
    ReleaseMany => Function("release_many", 8),
    RenewMany => Function("renew_many", 6),
    RenewEach => Function("renew_each", 15),
    SettleDead => Function("settle_dead", 5),
    Evict => Function("evict_fence", 6),
    List => Function("list_leases", 5),
    History => Function("list_ended", 7),
    RecordRuns => Function("record_runs", 7),
    Runs => Function("list_runs", 4),
    Watch => Function("watch", 2),
    OpenSession => Function("open_session", 1),
    MaintainDue => Function("maintain_due", 0),
    Maintain => Function("maintain", 0),
    AdvisoryTry => Builtin("pg_try_advisory_lock", 1),
    AdvisoryTryShared => Builtin("pg_try_advisory_lock_shared", 1),
    AdvisoryTryPair => Builtin("pg_try_advisory_lock", 2),
    AdvisoryTryPairShared => Builtin("pg_try_advisory_lock_shared", 2),
    AdvisoryUnlock => Builtin("pg_advisory_unlock", 1),
    AdvisoryUnlockShared => Builtin("pg_advisory_unlock_shared", 1),
    AdvisoryUnlockPair => Builtin("pg_advisory_unlock", 2),
    AdvisoryUnlockPairShared => Builtin("pg_advisory_unlock_shared", 2),
}

/// The texts of all statements, in their order, for functions in this schema.
pub(super) fn texts(in_schema: &str) -> Vec<String> {
    TEXTS
        .iter()
        .map(|text| match text {
            Function(name, parameters) => schema::with_schema_name(
                &format!("select * from leasehold.{name}({})", placeholders(*parameters)),
                in_schema,
            ),
            Builtin(name, parameters) => format!("select {name}({})", placeholders(*parameters)),
            Query(text) => schema::with_schema_name(text, in_schema),
        })
        .collect()
}

/// `$1, $2, …`
fn placeholders(parameters: usize) -> String {
    (1..=parameters).map(|index| format!("${index}")).collect::<Vec<_>>().join(", ")
}
