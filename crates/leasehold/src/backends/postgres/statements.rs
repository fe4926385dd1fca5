//! The statements of this backend: calls of the schema's functions, and a few queries about the server.

use super::schema;

/// Where the text of a statement comes from.
enum Text {
    /// A function of the schema, and how many parameters it takes.
    Function(&'static str, usize),
    /// A function of the server, and how many parameters it takes.
    Builtin(&'static str, usize),
    /// The text of an .sql file.
    Query(&'static str),
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
    ServerInfo => Text::Query(include_str!("schema/server_info.sql")),
    OtherOwner => Text::Query(include_str!("schema/other_owner.sql")),
    Version => Text::Query(include_str!("schema/version.sql")),
    WhoMayInstall => Text::Query(include_str!("schema/who_may_install.sql")),
    AcquireOne => Text::Function("acquire_one", 16),
    AcquireMany => Text::Function("acquire_many", 16),
    ReleaseOne => Text::Function("release_one", 8),
    ReleaseMany => Text::Function("release_many", 8),
    RenewMany => Text::Function("renew_many", 6),
    RenewEach => Text::Function("renew_each", 15),
    SettleDead => Text::Function("settle_dead", 5),
    Evict => Text::Function("evict_fence", 6),
    List => Text::Function("list_leases", 5),
    History => Text::Function("list_ended", 7),
    RecordRuns => Text::Function("record_runs", 7),
    Runs => Text::Function("list_runs", 4),
    Watch => Text::Function("watch", 2),
    OpenSession => Text::Function("open_session", 1),
    MaintainDue => Text::Function("maintain_due", 0),
    Maintain => Text::Function("maintain", 0),
    NeedsVacuum => Text::Query(include_str!("schema/needs_vacuum.sql")),
    Vacuum => Text::Query(include_str!("schema/vacuum.sql")),
    Examine => Text::Query(include_str!("schema/examine.sql")),
    Clock => Text::Query(include_str!("schema/clock.sql")),
    AdvisoryTry => Text::Builtin("pg_try_advisory_lock", 1),
    AdvisoryTryShared => Text::Builtin("pg_try_advisory_lock_shared", 1),
    AdvisoryTryPair => Text::Builtin("pg_try_advisory_lock", 2),
    AdvisoryTryPairShared => Text::Builtin("pg_try_advisory_lock_shared", 2),
    AdvisoryUnlock => Text::Builtin("pg_advisory_unlock", 1),
    AdvisoryUnlockShared => Text::Builtin("pg_advisory_unlock_shared", 1),
    AdvisoryUnlockPair => Text::Builtin("pg_advisory_unlock", 2),
    AdvisoryUnlockPairShared => Text::Builtin("pg_advisory_unlock_shared", 2),
}

/// The texts of all statements, in their order, for functions in this schema.
pub(super) fn texts(in_schema: &str) -> Vec<String> {
    TEXTS
        .iter()
        .map(|text| match text {
            Text::Function(name, parameters) => schema::with_schema_name(
                &format!("select * from leasehold.{name}({})", placeholders(*parameters)),
                in_schema,
            ),
            Text::Builtin(name, parameters) => format!("select {name}({})", placeholders(*parameters)),
            Text::Query(text) => schema::with_schema_name(text, in_schema),
        })
        .collect()
}

/// `$1, $2, …`
fn placeholders(parameters: usize) -> String {
    (1..=parameters).map(|index| format!("${index}")).collect::<Vec<_>>().join(", ")
}
