//! `leasehold init`: makes a database ready, or prints how.

use std::{sync::Arc, time::Duration};

use leasehold::{
    backends::postgres::{self, PostgresOptions},
    clock::SystemClock,
};
use serde_json::json;

use super::Context;
use crate::{
    args::InitArgs,
    exit::{self, Failure, Result},
    json,
    work::ask::Patience,
};

/// Installs or updates the schema; a database that is ready stays as it is.
pub(crate) async fn run(context: &Context<'_>, args: &InitArgs) -> Result<u8> {
    let settings = &context.settings;
    if !["postgres:", "postgresql:"].iter().any(|scheme| settings.url.starts_with(scheme)) {
        return Err(Failure::usage(format!("{} needs no preparation", settings.shown_url()))
            .hint("init is for databases: leasehold init --backend postgres://user@host/db"));
    }
    let options = |limit| PostgresOptions::from_url(&settings.url, &settings.namespace, Arc::new(SystemClock), limit);
    if args.print_sql {
        let expose = args.expose.as_deref();
        let sql = if args.uninstall {
            postgres::uninstall_sql(&options(Duration::ZERO)?, expose)
        } else {
            postgres::sql_since(&options(Duration::ZERO)?, expose, args.from)
        };
        json::print(sql.map_err(Failure::from)?)?;
        return Ok(exit::OK);
    }
    let start = context.start(Patience::Forever);
    let installed = start.retry(async |limit| postgres::install(options(limit)?, args.expose.as_deref()).await);
    let installed = installed.await.map_err(|error| start.failure(error))?;
    if context.say.looks().json {
        json::print(json!({"v": 1, "before": installed.before, "now": installed.now}).to_string())?;
    } else {
        let exposed = args.expose.as_ref().map(|schema| format!(", exposed in {schema}")).unwrap_or_default();
        json::print(match installed.before {
            0 => format!("installed, version {}{exposed}", installed.now),
            before if before == installed.now => format!("ready already, version {before}{exposed}"),
            before => format!("updated from version {before} to {}{exposed}", installed.now),
        })?;
    }
    Ok(exit::OK)
}
