//! `leasehold version`

use serde_json::json;

use crate::{
    exit::{self, Result},
    json,
    say::Say,
};

/// What the features of this crate's dependency on the library build in, and the command can use.
const BACKENDS: [&str; 4] = ["file", "postgres", "redis", "redlock"];

/// Prints the version and the backends that were built in.
pub(crate) fn run(say: &Say) -> Result<u8> {
    let version = env!("CARGO_PKG_VERSION");
    if say.looks().json {
        json::print(json!({"v": 1, "version": version, "backends": BACKENDS}).to_string())?;
    } else {
        json::print(format!("leasehold {version}"))?;
    }
    Ok(exit::OK)
}
