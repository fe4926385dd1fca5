//! The Lua scripts, and the commands that call them by hash or by text.

use std::sync::LazyLock;

use redis::Cmd;

use super::keys::Partition;
use crate::lease::Resource;

/// Parts that several scripts share, included where `--@ name` stands.
const PARTS: [(&str, &str); 3] = [
    ("--@ prelude.lua\n", include_str!("scripts/prelude.lua")),
    ("--@ history.lua\n", include_str!("scripts/history.lua")),
    ("--@ model.lua\n", include_str!("scripts/model.lua")),
];

/// A script that a server may or may not know yet.
#[derive(Debug)]
pub(super) struct Script {
    source: String,
    sha: String,
}

impl Script {
    fn new(text: &str) -> Self {
        let source = PARTS.iter().fold(text.to_owned(), |text, (mark, part)| text.replacen(mark, part, 1));
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }
}

/// Whether a script is called by its hash, or by its text where the server does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invocation {
    Hash,
    Text,
}

/// A call of a script, to be made in the epoch that the client last read.
pub(super) struct ScriptCall<'a> {
    script: &'static Script,
    keys: Vec<&'a str>,
    entries: Vec<String>,
    arguments: Arguments<'a>,
}

/// Adds arguments to a command.
pub(super) type Arguments<'a> = Box<dyn Fn(&mut Cmd) + Send + Sync + 'a>;

impl<'a> ScriptCall<'a> {
    /// A call with these keys and arguments.
    pub(super) fn new(
        script: &'static Script,
        keys: &[&'a str],
        arguments: impl Fn(&mut Cmd) + Send + Sync + 'a,
    ) -> Self {
        Self { script, keys: keys.to_vec(), entries: Vec::new(), arguments: Box::new(arguments) }
    }

    /// A call that applies the model to these resources; `arguments` adds those that follow their names.
    pub(super) fn for_resources(
        script: &'static Script,
        partition: &'a Partition,
        resources: &'a [Resource],
        arguments: impl Fn(&mut Cmd) + Send + Sync + 'a,
    ) -> Self {
        let with_names = move |command: &mut Cmd| {
            command.arg(&partition.names.events).arg(resources.len());
            for resource in resources {
                command.arg(resource.as_str());
            }
            arguments(command);
        };
        let entries = resources.iter().map(|resource| partition.entries(resource)).collect();
        let keys = vec![partition.names.leases.as_str(), partition.names.history.as_str()];
        Self { script, keys, entries, arguments: Box::new(with_names) }
    }

    /// The command that makes this call.
    pub(super) fn command(&self, invocation: Invocation, epoch: &str, settings: &str) -> Cmd {
        let mut command = match invocation {
            Invocation::Hash => redis::cmd("EVALSHA"),
            Invocation::Text => redis::cmd("EVAL"),
        };
        command.arg(if invocation == Invocation::Hash { &self.script.sha } else { &self.script.source });
        command.arg(self.keys.len() + self.entries.len());
        for key in &self.keys {
            command.arg(*key);
        }
        for key in &self.entries {
            command.arg(key);
        }
        command.arg(epoch).arg(settings);
        (self.arguments)(&mut command);
        command
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file))));)*
    };
}

scripts! {
    EPOCH = "epoch.lua";
    FAST = "fast.lua";
    FAST_RENEW = "fast_renew.lua";
    DECIDE = "decide.lua";
    RENEW = "renew.lua";
    EVICT = "evict.lua";
    LIST = "list.lua";
    NAMES = "names.lua";
    SWEEP = "sweep.lua";
    WATCH = "watch.lua";
    RECORD_RUNS = "record_runs.lua";
    LIST_RUNS = "list_runs.lua";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_whole() {
        for script in [&EPOCH, &FAST, &FAST_RENEW, &NAMES, &SWEEP, &WATCH, &RECORD_RUNS, &LIST_RUNS] {
            assert!(script.source.contains("local now_text") && !script.source.contains("--@"), "{}", script.source);
        }
        for script in [&DECIDE, &RENEW, &EVICT, &LIST] {
            assert!(script.source.contains("local function settle(") && !script.source.contains("--@"));
        }
    }
}
