//! The schema: numbered migrations, applied once each, and wrappers where other clients look.

use super::{
    connection::{Call, Connection, Connector},
    failure::{Failure, Kind},
    options::{self, Durability, PostgresOptions},
    row,
};
use crate::{Error, Result};

/// In the order they are applied; the number of each is its place, from 1.
const MIGRATIONS: &[&str] = &[
    include_str!("sql/0001_tables.sql"),
    include_str!("sql/0002_rule.sql"),
    include_str!("sql/0003_acquire_and_release.sql"),
    include_str!("sql/0004_renew_and_evict.sql"),
    include_str!("sql/0005_looks_and_upkeep.sql"),
    include_str!("sql/0006_any_client.sql"),
    include_str!("sql/0007_connection.sql"),
    include_str!("sql/0008_rights.sql"),
];

const BEGIN: &str = include_str!("sql/begin.sql");
const EXPOSE: &str = include_str!("sql/expose.sql");

/// The version this library works with.
fn newest() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

/// The text with this schema in the place of `leasehold`.
pub(super) fn named(text: &str, schema: &str) -> String {
    if schema == "leasehold" {
        return text.to_owned();
    }
    ["schema", "exists"].iter().fold(text.replace("leasehold.", &format!("\"{schema}\".")), |text, before| {
        text.replace(&format!("{before} leasehold"), &format!("{before} \"{schema}\""))
    })
}

/// What was done to a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Installed {
    /// The version before; 0 when there was no schema.
    pub before: i32,
    /// The version now.
    pub now: i32,
}

/// All statements that [`install`] would run on an empty database, for people who run them themselves.
///
/// # Errors
/// `InvalidConfig` when `expose` is no plain name.
pub fn sql(options: &PostgresOptions, expose: Option<&str>) -> Result<String> {
    let mut text = String::from("begin;\n");
    text.push_str(&named(BEGIN, &options.schema));
    for (version, migration) in (1..).zip(MIGRATIONS) {
        text.push_str(&body(options, version, migration));
    }
    if let Some(target) = expose {
        text.push_str(&exposed(options, target)?);
    }
    text.push_str("commit;\n");
    Ok(text)
}

/// Brings the schema to the newest version; safe to repeat and for two at once.
///
/// `expose` installs wrappers and views into another schema, such as `public`,
/// where unqualified and rpc callers look.
///
/// # Errors
/// `PermissionDenied` when the role may not create, `InvalidConfig` when the schema is newer than this library.
pub async fn install(options: PostgresOptions, expose: Option<&str>) -> Result<Installed> {
    let wrappers = expose.map(|target| exposed(&options, target)).transpose()?;
    let connector = Connector::new(options)?;
    let [connection, _] = connector.connect_pair().await.map_err(Failure::error)?;
    install_on(&connection, &connector.options, wrappers.as_deref()).await.map_err(Failure::error)
}

pub(super) async fn install_on(
    connection: &Connection,
    options: &PostgresOptions,
    wrappers: Option<&str>,
) -> Result<Installed, Failure> {
    connection.execute(&format!("begin;\n{}", named(BEGIN, &options.schema))).await?;
    let outcome = async {
        let before = version(connection).await?.map_or(0, |found| found.version);
        if before > newest() {
            return Err(newer(before));
        }
        for (version, migration) in (1..).zip(MIGRATIONS) {
            if version > before {
                connection.execute(&body(options, version, migration)).await?;
            }
        }
        if let Some(wrappers) = wrappers {
            connection.execute(wrappers).await?;
        }
        Ok(Installed { before, now: newest() })
    }
    .await;
    connection.execute(if outcome.is_ok() { "commit" } else { "rollback" }).await?;
    outcome
}

fn body(options: &PostgresOptions, version: i32, migration: &str) -> String {
    let kind = if options.durability == Durability::Unlogged { "unlogged" } else { "" };
    let text = migration.replace("/*durability*/", kind);
    let recorded = format!("{text}\ninsert into leasehold.migration (version) values ({version});\n");
    named(&recorded, &options.schema)
}

fn exposed(options: &PostgresOptions, target: &str) -> Result<String> {
    let target = options::schema(target)?;
    if target == options.schema {
        return Err(Error::invalid_config(format!(
            "{target} is the schema itself; expose it in another, such as public"
        )));
    }
    Ok(named(EXPOSE, &options.schema).replace("/*target*/", &format!("\"{target}\".")))
}

/// What is installed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) version: i32,
    pub(super) unlogged: bool,
}

async fn version(connection: &Connection) -> Result<Option<Found>, Failure> {
    let greeting = row::greeting(&connection.ask(Call::Greet, &[]).await?)?;
    if !greeting.installed {
        return Ok(None);
    }
    row::found(&connection.ask(Call::Version, &[]).await?)
}

/// Refuses a schema that this library cannot work with; installs a missing one when that is wanted.
pub(super) async fn check(connection: &Connection, options: &PostgresOptions) -> Result<(), Failure> {
    let schema = &options.schema;
    let found = match version(connection).await? {
        Some(found) => found,
        None if options.init => {
            install_on(connection, options, None).await?;
            return Ok(());
        }
        None => {
            return Err(Failure::new(
                Kind::Config,
                format!(
                    "this database has no schema {schema}; run `leasehold init` with this URL, or connect with ?init=1"
                ),
            ));
        }
    };
    if found.version > newest() {
        return Err(newer(found.version));
    }
    if found.version < newest() {
        if options.init {
            install_on(connection, options, None).await?;
            return Ok(());
        }
        return Err(Failure::new(
            Kind::Config,
            format!(
                "schema {schema} has version {}, this library needs {}; run `leasehold init` with this URL",
                found.version,
                newest()
            ),
        ));
    }
    if found.unlogged != (options.durability == Durability::Unlogged) {
        let (is, word) =
            if found.unlogged { ("unlogged", "?durability=unlogged") } else { ("durable", "no such parameter") };
        return Err(Failure::new(
            Kind::Config,
            format!("the tables of schema {schema} are {is}: connect with {word}, or init another with ?schema="),
        ));
    }
    Ok(())
}

fn newer(version: i32) -> Failure {
    Failure::new(
        Kind::Config,
        format!("the schema has version {version}, newer than the {} of this library; update the library", newest()),
    )
}
