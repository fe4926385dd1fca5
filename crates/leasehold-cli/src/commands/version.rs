//! `leasehold version`

use leasehold::backends;
use serde_json::json;

use crate::{error::Result, exit, json, output::Output};

/// Prints the version and the backends that were built in.
pub(crate) fn run(output: &Output) -> Result<u8> {
    let version = env!("CARGO_PKG_VERSION");
    if output.style().json {
        // A command is a process of its own, which shares no memory with others.
        let backends: Vec<&str> = backends::built_in().filter(|name| *name != "memory").collect();
        json::print(json!({"v": 1, "version": version, "backends": backends}).to_string())?;
    } else {
        json::print(format!("leasehold {version}"))?;
    }
    Ok(exit::OK)
}
