//! The handle that a command is given for a lease, and what became of a lease that is gone.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use leasehold::{
    LeaseHandle, Leasehold, Resource,
    clock::{Clock, SystemClock},
    lease::{EndedLease, Ending, HeldBy, HistoryFilter, LeaseState, ListFilter, Names},
};
use serde_json::{Value, json};

use super::CommandContext;
use crate::{
    args::LeaseArgs,
    duration::Brief,
    error::{CommandError, Result},
    exit, json,
    output::Line,
    run_command::wait::held_by,
    variables::environment,
};

/// At most this many records are scanned for the end of one lease.
const MAX_SCANNED: usize = 1000;

/// Reads the handle from a flag, a file, standard input or the environment.
pub(crate) fn read(args: &LeaseArgs) -> Result<LeaseHandle> {
    let (text, source) = match (&args.lease, &args.lease_file) {
        (Some(text), _) if text == "-" => (from_stdin()?, "standard input"),
        (Some(text), _) => (text.clone(), "--lease"),
        (None, Some(path)) if path.as_os_str() == "-" => (from_stdin()?, "standard input"),
        (None, Some(path)) => (from_file(path)?, "--lease-file"),
        (None, None) => {
            let variable = environment("LEASEHOLD_LEASE").and_then(|text| text.into_string().ok());
            let missing = || {
                CommandError::usage("which lease? give --lease, --lease-file or LEASEHOLD_LEASE")
                    .hint("`leasehold acquire` prints it; a command under `leasehold run` has it in LEASEHOLD_LEASE")
            };
            (variable.ok_or_else(missing)?, "LEASEHOLD_LEASE")
        }
    };
    if text.trim().is_empty() {
        return Err(CommandError::usage(format!("{source}: the handle is empty"))
            .hint("did `acquire` fail? add `|| exit` after it"));
    }
    text.trim().parse().map_err(|error| CommandError::by_flag(source, error))
}

fn from_stdin() -> Result<String> {
    let mut text = String::new();
    let read = io::stdin().take(16 << 10).read_to_string(&mut text);
    read.map_err(|error| CommandError::usage(format!("cannot read the lease from standard input: {error}")))?;
    Ok(text)
}

/// Whoever reads the file can release the lease, so it must be ours alone.
fn from_file(path: &Path) -> Result<String> {
    let failed =
        |error: io::Error| CommandError::usage(format!("cannot read --lease-file {}: {error}", path.display()));
    let metadata = fs::metadata(path).map_err(failed)?;
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        return Err(CommandError::usage(format!(
            "--lease-file {} can be read by others, who could release the lease",
            path.display()
        ))
        .hint(format!("chmod 600 {}", path.display())));
    }
    fs::read_to_string(path).map_err(failed)
}

/// What became of a lease that is gone: how it ended, and who holds the lock now.
#[derive(Debug)]
pub(crate) struct Gone {
    ended: Option<EndedLease>,
    holders: Vec<HeldBy>,
}

impl Gone {
    /// Asks history and list; a backend that cannot tell leaves the answer empty.
    pub(crate) async fn find_out(locks: &Leasehold, handle: &LeaseHandle) -> Self {
        let names = Names::Exactly(handle.key().resource.clone());
        let filter = HistoryFilter::new(names.clone()).limit(MAX_SCANNED);
        let history = locks.history(&filter).await.unwrap_or_default();
        let page = locks.list(&ListFilter::new(names)).await.unwrap_or_default();
        let holders: Vec<HeldBy> = page
            .leases
            .into_iter()
            .filter_map(|lease| match lease.state {
                LeaseState::Holding { fence, held_for, .. } => {
                    let mut holder = HeldBy::new(lease.holder, lease.claim.mode(), fence, held_for);
                    holder.note = lease.note;
                    Some(holder)
                }
                LeaseState::Waiting { .. } => None,
            })
            .collect();
        // Others may have held the lock since, and ended in another way.
        Self { ended: history.into_iter().find(|ended| ended.fence == Some(handle.fence())), holders }
    }

    /// `lapsed 40s ago; now held by …`
    pub(crate) fn message(&self) -> String {
        let how = match &self.ended {
            Some(ended) => {
                let verb = match ended.ending {
                    Ending::Expired => "lapsed",
                    Ending::Evicted => "evicted",
                    Ending::Disconnected => "ended with its process",
                    Ending::MaxHold => "reached its max_hold",
                    _ => "released",
                };
                let why = ended.problem.as_ref().filter(|_| ended.ending == Ending::Evicted);
                let why = why.map(|problem| format!(": {}", problem.details)).unwrap_or_default();
                format!("{verb} {} ago{why}", Brief(SystemClock.wall().since(ended.ended_at)))
            }
            None => String::from("no longer known"),
        };
        match held_by(&self.holders) {
            Some(holders) => format!("{how}; now held by {holders}"),
            None => format!("{how}; nobody holds it now"),
        }
    }

    /// The same for programs.
    fn fields(&self) -> Value {
        json!({
            "ended_at": self.ended.as_ref().map(|ended| json::time(ended.ended_at)),
            "ending": self.ended.as_ref().map(|ended| ended.ending.as_str()),
            "holders": self.holders.iter().map(json::held_by).collect::<Vec<Value>>(),
        })
    }
}

/// Prints `held`, or the failed action and how the lease ended. Exit 1 if it is gone.
pub(crate) fn report(
    context: &CommandContext<'_>,
    resource: &Resource,
    fields: Value,
    held: Line,
    gone: Option<(String, Gone)>,
) -> Result<u8> {
    if context.output.style().json {
        let ended = gone
            .as_ref()
            .map_or_else(|| json!({"ended_at": null, "ending": null, "holders": null}), |(_, gone)| gone.fields());
        let mut object = json!({"v": 1, "lock": resource.as_str()});
        for fields in [fields, ended] {
            if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
                object.extend(fields);
            }
        }
        json::print(object.to_string())?;
    }
    match gone {
        None => {
            context.output.print(held);
            Ok(exit::OK)
        }
        Some((failed, gone)) => {
            let line = Line::new("gone", format!("{failed}: {}", gone.message()));
            let is_unknown = gone.ended.is_none() && gone.holders.is_empty();
            context.output.print(if is_unknown {
                let (url, namespace) = (context.settings.shown_url(), &context.settings.namespace);
                line.hint(format!(
                    "this is {url}, namespace {namespace}: was the lease acquired with another -b or --namespace?"
                ))
            } else {
                line
            });
            Ok(exit::NO)
        }
    }
}
