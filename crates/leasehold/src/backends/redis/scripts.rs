//! The scripts, one for each operation, named by the hash of their text.

use std::sync::LazyLock;

use redis::Cmd;

use crate::lease::Timestamp;

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

/// One call of a script: its arguments, whether by hash or by text.
#[derive(Debug)]
pub(super) struct Call {
    script: &'static Script,
    /// How many of the arguments are keys.
    keys: usize,
    arguments: Vec<Vec<u8>>,
}

impl Script {
    fn new(text: &str) -> Self {
        let source = text.replacen(HERE, RULE, 1);
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }

    /// A call with these keys and arguments.
    pub(super) fn call(&'static self, keys: Vec<Vec<u8>>, arguments: impl IntoIterator<Item = Vec<u8>>) -> Call {
        let count = keys.len();
        let mut all = keys;
        all.extend(arguments);
        Call { script: self, keys: count, arguments: all }
    }
}

impl Call {
    /// By its hash: short, but the server may have forgotten.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.sha)
    }

    /// By its text: the server knows it afterwards.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", &self.script.source)
    }

    /// By its text, with this time instead of the server's.
    pub(super) fn at(&self, now: Timestamp) -> Cmd {
        let mut command = self.command("EVAL", &self.script.source.replacen(CLOCK, GIVEN, 1));
        command.arg(format!("{:016}", now.as_micros()));
        command
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys);
        for argument in &self.arguments {
            command.arg(argument.as_slice());
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
