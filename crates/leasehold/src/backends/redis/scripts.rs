//! The scripts, one for each operation, named by the hash of their text.

use std::sync::LazyLock;

use redis::Cmd;

use super::keys::Partition;
use crate::lease::{Resource, Timestamp};

/// What every script shares, put in where it says so.
const RULE: &str = include_str!("scripts/rule.lua");
const HERE: &str = "--@ rule.lua\n";
/// Where every script reads the server's clock.
const CLOCK: &str = "local time = redis.call('TIME')\nlocal nows = time[1] .. string.sub('00000' .. time[2], -6)\n";
/// What takes its place where time is given.
const GIVEN: &str = "local nows = table.remove(ARGV)\n";

/// A script that a server may or may not know yet.
#[derive(Debug)]
pub(super) struct Script {
    source: String,
    sha: String,
}

/// One call of a script, by its hash; kept so that it can be made again by its text.
pub(super) struct Call {
    script: &'static Script,
    by_hash: Cmd,
}

impl Script {
    fn new(text: &str) -> Self {
        let source = text.replacen(HERE, RULE, 1);
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }

    /// A call about these resources of a partition.
    pub(super) fn call<'a>(
        &'static self,
        partition: &Partition,
        resources: impl ExactSizeIterator<Item = &'a Resource>,
    ) -> Call {
        let mut by_hash = redis::cmd("EVALSHA");
        by_hash.arg(&self.sha).arg(Partition::count_keys(resources.len()));
        partition.add_keys(resources, |key| {
            by_hash.arg(key);
        });
        Call { script: self, by_hash }
    }
}

impl Call {
    /// The same call with one more argument.
    pub(super) fn arg(mut self, argument: impl AsRef<[u8]>) -> Self {
        self.by_hash.arg(argument.as_ref());
        self
    }

    /// By its hash: short, but the server may have forgotten.
    pub(super) fn by_hash(&self) -> &Cmd {
        &self.by_hash
    }

    /// By its text: the server knows it afterwards.
    pub(super) fn by_text(&self) -> Cmd {
        self.by(&self.script.source)
    }

    /// By its text, with this time instead of the server's.
    pub(super) fn at(&self, now: Timestamp) -> Cmd {
        let mut command = self.by(&self.script.source.replacen(CLOCK, GIVEN, 1));
        command.arg(format!("{:016}", now.as_micros()));
        command
    }

    fn by(&self, text: &str) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(text);
        for argument in self.by_hash.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
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
    ACQUIRE = "acquire.lua";
    RENEW = "renew.lua";
    RELEASE = "release.lua";
    EVICT = "evict.lua";
    LIST = "list.lua";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_has_the_rule_in_it() {
        for script in [&ACQUIRE, &RENEW, &RELEASE, &EVICT, &LIST] {
            assert!(script.source.contains("local function settle(asker)"));
            assert!(script.source.contains(CLOCK));
            assert_eq!(script.sha.len(), 40);
        }
    }
}
