//! `leasehold schema`: prints the JSON Schemas of `schemas/`, one for each machine output.

use crate::{
    args::SchemaArgs,
    error::{CommandError, Result},
    exit, json,
};

macro_rules! schemas {
    ($($name:literal),+) => {
        [$(($name, include_str!(concat!("../../schemas/", $name, ".schema.json")))),+]
    };
}

/// The schemas by name: those of the outputs of commands, `report` for `run --report`, and `event` for each line on
/// standard error with `--json`.
const SCHEMAS: [(&str, &str); 16] = schemas![
    "acquire", "check", "doctor", "event", "evict", "history", "init", "inspect", "leader", "list", "release", "renew",
    "report", "runs", "version", "watch"
];

/// Prints the schema, or the names of all.
pub(crate) fn run(args: &SchemaArgs) -> Result<u8> {
    let names: Vec<&str> = SCHEMAS.iter().map(|(name, _)| *name).collect();
    match &args.name {
        None => {
            json::print(names.join("\n"))?;
        }
        Some(wanted) => {
            let found = SCHEMAS.iter().find(|(name, _)| name == wanted);
            let (_, schema) = found.ok_or_else(|| {
                let hint = match wanted.as_str() {
                    "run" | "elect" => String::from(
                        "`leasehold schema report` is that of run --report, `leasehold schema event` that of each line \
                         on standard error with --json",
                    ),
                    _ => format!("there are: {}", names.join(", ")),
                };
                CommandError::usage(format!("there is no schema {wanted}")).hint(hint)
            })?;
            json::write(schema)?;
        }
    }
    Ok(exit::OK)
}
