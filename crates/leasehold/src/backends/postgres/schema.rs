//! The schema: versions, and optional wrappers in another schema.

use std::time::Duration;

use super::{
    connection::{Connection, Connector},
    decode,
    errors::{Failure, FailureKind},
    options::{Durability, PostgresOptions, checked_schema_name},
    statements::Statement,
};
use crate::{Error, Result};

/// Timeout of an installation, which waits only for other installations.
const INSTALL_LIMIT: Duration = Duration::from_secs(300);

/// One version of the schema.
struct Version {
    /// Its statements, all of them in one transaction.
    statements: &'static [&'static str],
    /// Libraries that were written for this version of the schema, or for a later one, can use this version.
    usable_since: i32,
}

/// In the order they are applied; the number of each is its place, from 1.
const VERSIONS: &[Version] = &[Version {
    statements: &[
        include_str!("schema/1_tables.sql"),
        include_str!("schema/2_rule.sql"),
        include_str!("schema/3_library.sql"),
        include_str!("schema/4_inspect.sql"),
        include_str!("schema/5_upkeep.sql"),
        include_str!("schema/6_any_client.sql"),
        include_str!("schema/7_connection.sql"),
        include_str!("schema/8_rights.sql"),
    ],
    usable_since: 1,
}];

const BEGIN: &str = include_str!("schema/begin.sql");
const VERSION_FUNCTION: &str = include_str!("schema/version_function.sql");
const EXPOSE: &str = include_str!("schema/expose.sql");
const UNINSTALL: &str = include_str!("schema/uninstall.sql");

/// The version this library works with.
fn newest() -> i32 {
    i32::try_from(VERSIONS.len()).unwrap_or(i32::MAX)
}

/// The text with the name of this schema instead of `leasehold`.
pub(super) fn with_schema_name(text: &str, schema: &str) -> String {
    if schema == "leasehold" {
        return text.to_owned();
    }
    let text = text.replace("leasehold.", &format!("\"{schema}\".")).replace("'leasehold'", &format!("'{schema}'"));
    text.replace("schema leasehold", &format!("schema \"{schema}\""))
}

/// The versions of the schema before and after an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Installed {
    /// The version before the installation; 0 if there was no schema.
    pub before: i32,
    /// The version after the installation.
    pub now: i32,
}

/// Returns one SQL statement that does what [`install`] does to an empty database.
///
/// Use it to install the schema by hand or with a migration tool. The statement neither begins nor commits a
/// transaction, so it can run inside one.
///
/// # Errors
/// `InvalidConfig` if `expose` is not a plain name.
pub fn sql(options: &PostgresOptions, expose: Option<&str>) -> Result<String> {
    sql_since(options, expose, 0)
}

/// Like [`sql`], for a database that already has version `installed` of the schema.
///
/// # Errors
/// `InvalidConfig` for a version that this library does not know.
pub fn sql_since(options: &PostgresOptions, expose: Option<&str>, installed: i32) -> Result<String> {
    if !(0..=newest()).contains(&installed) {
        return Err(Error::invalid_config(format!("there is no version {installed}, the newest is {}", newest())));
    }
    statement(options, expose, installed)
}

/// Returns one SQL statement that removes the schema, all leases and their history.
///
/// It also removes the functions and views that [`install`] exposed in other schemas. An object in another schema is
/// removed only if its comment marks it as exposed and it belongs to the role that runs the statement or to the owner
/// of the schema.
pub fn uninstall_sql(options: &PostgresOptions) -> String {
    with_schema_name(UNINSTALL, &options.schema)
}

/// Creates the schema or updates it to the newest version.
///
/// Calls are safe to repeat and to run concurrently.
///
/// If `expose` names another schema, such as `public`, this also creates wrapper functions and views there, for
/// callers that do not name a schema, such as `PostgREST`.
///
/// # Errors
/// `PermissionDenied` if the role may not create the schema; `InvalidConfig` if the schema is too new for this library
/// or other roles can change it.
pub async fn install(options: PostgresOptions, expose: Option<&str>) -> Result<Installed> {
    // What cannot be exposed is refused before anything is sent.
    statement(&options, expose, newest())?;
    let connector = Connector::new(options)?;
    let connection = connector.connect().await.map_err(Failure::error)?;
    install_on(&connection, &connector.options, expose).await.map_err(Failure::error)
}

async fn install_on(
    connection: &Connection,
    options: &PostgresOptions,
    expose: Option<&str>,
) -> Result<Installed, Failure> {
    let mut tries = 0;
    loop {
        let installed = installed_version(connection).await?;
        let before = installed.map_or(0, |installed| installed.version);
        if let Some(too_new) = installed.filter(|installed| installed.usable_since > newest()) {
            return Err(too_new.too_new_error(options));
        }
        if before >= newest() && expose.is_none() {
            return Ok(Installed { before, now: before });
        }
        let statement = statement(options, expose, before).map_err(|error| Failure::from_error(&error))?;
        // Nobody waits for an installation, which may take longer than the role's statements usually may.
        let settings = "set local statement_timeout = 0; set local lock_timeout = 0";
        let text = format!("begin isolation level read committed read write; {settings};\n{statement}commit");
        match connection.execute_within(&text, INSTALL_LIMIT).await {
            Ok(()) => return Ok(Installed { before, now: before.max(newest()) }),
            // Another has installed meanwhile.
            Err(failure) if failure.kind == FailureKind::Conflict && tries < 3 => tries += 1,
            Err(failure) => {
                let _closed = connection.execute_within("rollback", INSTALL_LIMIT).await;
                return Err(failure);
            }
        }
        connection.execute_within("rollback", INSTALL_LIMIT).await?;
    }
}

/// All that brings a database from one version to the newest, as one statement.
fn statement(options: &PostgresOptions, expose: Option<&str>, installed: i32) -> Result<String> {
    let unlogged = if options.durability == Durability::Unlogged { "unlogged" } else { "" };
    let mut text = String::from("do $leasehold$\ndeclare\n  path text := current_setting('search_path');\n");
    text.push_str("  bodies text := current_setting('check_function_bodies');\n  there int := 0;\nbegin\n");
    text.push_str(&with_schema_name(BEGIN, &options.schema).replace("/*installed*/", &installed.to_string()));
    for (number, version) in (1..).zip(VERSIONS).filter(|(number, _)| *number > installed) {
        for statements in version.statements {
            text.push_str(&with_schema_name(&statements.replace("/*durability*/", unlogged), &options.schema));
        }
        let since = version.usable_since;
        let record = format!("insert into leasehold.migration (version, usable_since) values ({number}, {since});\n");
        text.push_str(&with_schema_name(&record, &options.schema));
    }
    text.push_str(&with_schema_name(VERSION_FUNCTION, &options.schema));
    if let Some(target) = expose {
        let target = checked_schema_name(target)?;
        if target == options.schema {
            return Err(Error::invalid_config(format!(
                "{target} is the schema itself; expose it in another, such as public"
            )));
        }
        text.push_str(&with_schema_name(EXPOSE, &options.schema).replace("/*target*/", &format!("\"{target}\".")));
    }
    // Restores the caller's settings.
    text.push_str(
        "perform set_config('search_path', path, true), set_config('check_function_bodies', bodies, true);\n",
    );
    text.push_str("end $leasehold$;\n");
    Ok(text)
}

/// What is installed.
#[derive(Clone, Copy, Debug)]
pub(super) struct InstalledVersion {
    pub(super) version: i32,
    pub(super) usable_since: i32,
    pub(super) unlogged: bool,
}

impl InstalledVersion {
    fn too_new_error(&self, options: &PostgresOptions) -> Failure {
        let message = format!(
            "schema {} has version {}, which works with libraries from version {} on, newer than the {} of this one; \
             update the library",
            options.schema,
            self.version,
            self.usable_since,
            newest()
        );
        Failure::new(FailureKind::Config, message)
    }
}

async fn installed_version(connection: &Connection) -> Result<Option<InstalledVersion>, Failure> {
    let server_info = decode::server_info(&connection.call(Statement::ServerInfo, &[]).await?)?;
    // Never call functions of a schema that another role owns; the installation refuses such a schema.
    if !server_info.installed || !connection.call(Statement::OtherOwner, &[]).await?.is_empty() {
        return Ok(None);
    }
    decode::installed_version(&connection.call(Statement::Version, &[]).await?).map(Some)
}

/// The error for a database without the schema: says who can make it, and how.
async fn missing(connection: &Connection, options: &PostgresOptions) -> Result<Failure, Failure> {
    let schema = &options.schema;
    let (is_this_role, owner) = decode::who_may_install(&connection.call(Statement::WhoMayInstall, &[]).await?)?;
    let message = if is_this_role {
        format!("this database has no schema {schema}; run `leasehold init` with this URL, or connect with ?init=1")
    } else {
        // This role's own URL would only lead to the next refusal.
        format!(
            "this database has no schema {schema}, and this role may not make it; its owner, {owner}, runs once: \
             `leasehold init -b {}`, and then: {}",
            options.url_of(&owner),
            options.allow_statement()
        )
    };
    Ok(Failure::new(FailureKind::Config, message))
}

/// Refuses a schema that this library cannot work with; installs a missing or older one if the options say so.
pub(super) async fn check_or_install(connection: &Connection, options: &PostgresOptions) -> Result<(), Failure> {
    let schema = &options.schema;
    let installed = match connection.installed_version {
        _ if !connection.server_info.installed => None,
        Some(known) => Some(known),
        // Says why the version could not be read.
        None => Some(decode::installed_version(&connection.call(Statement::Version, &[]).await?)?),
    };
    let Some(installed) = installed.filter(|installed| installed.version >= newest() || !options.init) else {
        if options.init {
            return install_on(connection, options, None).await.map(drop);
        }
        return Err(missing(connection, options).await?);
    };
    if installed.version < newest() {
        return Err(Failure::new(
            FailureKind::Config,
            format!(
                "schema {schema} has version {}, this library needs {}; run `leasehold init` with this URL",
                installed.version,
                newest()
            ),
        ));
    }
    if installed.usable_since > newest() {
        return Err(installed.too_new_error(options));
    }
    if installed.unlogged != (options.durability == Durability::Unlogged) {
        let (is, word) =
            if installed.unlogged { ("unlogged", "?durability=unlogged") } else { ("durable", "no such parameter") };
        return Err(Failure::new(
            FailureKind::Config,
            format!("the tables of schema {schema} are {is}: connect with {word}, or init another with ?schema="),
        ));
    }
    Ok(())
}
