//! The epoch of a partition: a period in which its server lost no data.
//!
//! A restart that may have lost leases, a promotion or a flush begins another one.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redis::Cmd;

use super::super::{
    keys::Partition,
    options::{HistoryLevel, RedisOptions, Topology},
    scripts::{self, Invocation, ScriptCall},
};
use crate::{
    clock::{Clock, SystemClock},
    lease::{Incarnation, Moment, Timestamp},
};

/// How many history entries one server keeps; an entry holds 1 to 16 ended leases.
const HISTORY: usize = 10_000;
/// The same in each partition of a cluster.
const HISTORY_OF_PARTITION: usize = 1_000;
/// Placeholder run id where INFO is not permitted.
const UNKNOWN_RUN_ID: &str = "----------------------------------------";

/// The second argument of every script, in the columns that `prelude.lua` lists.
pub(super) fn settings(options: &RedisOptions, push: char) -> String {
    let history = match options.history {
        HistoryLevel::All => 'a',
        HistoryLevel::Problems => 'p',
        HistoryLevel::Off => 'o',
    };
    let kept = if options.topology == Topology::Cluster { HISTORY_OF_PARTITION } else { HISTORY };
    match &options.clock {
        None => format!("{push}{history}{kept:06}"),
        Some(clock) => format!("{push}{history}{kept:06}{:016}", clock.wall().as_micros()),
    }
}

/// The command that reads the epoch of a partition, or begins one.
pub(super) fn begin(partition: &Partition, run_id: Option<&str>, settings: &str) -> Cmd {
    let [fence, index] = partition.of_format_1();
    let keys = [partition.names.leases.as_str(), &fence, &index];
    let call = ScriptCall::new(&scripts::EPOCH, &keys, |command| {
        command.arg(run_id.unwrap_or(UNKNOWN_RUN_ID));
    });
    call.command(Invocation::Text, "", settings)
}

/// The epoch of a partition, as the server last described it.
///
/// A server that lost what it knew, or may have, begins another; scripts that
/// are called under an older one do nothing.
#[derive(Debug)]
pub(in super::super) struct Epoch {
    /// What the scripts compare: the format of the data, the server's run id and when the epoch began.
    pub(in super::super) text: String,
    /// Its age when it was read; unknown where the server's run id is.
    age: Option<Duration>,
    read_at: Moment,
}

impl Epoch {
    /// The epoch that the server described at this time of its own clock.
    pub(in super::super) fn new(text: String, server_time: Timestamp) -> Self {
        let mut words = text.split(' ').skip(1);
        let knows_run_id = words.next().is_some_and(|run_id| !run_id.starts_with('-'));
        let began = words.next().and_then(|began| began.parse().ok()).map(Timestamp::from_micros);
        let age = began.filter(|_| knows_run_id).map(|began| server_time.since(began));
        Self { text, age, read_at: SystemClock.now() }
    }

    /// How long ago it began; unknown where the server's run id is.
    pub(in super::super) fn age(&self) -> Option<Duration> {
        Some(self.age? + SystemClock.now().since(self.read_at))
    }

    /// A number that differs from that of every other epoch.
    pub(in super::super) fn incarnation(&self) -> Incarnation {
        Incarnation(BuildHasherDefault::<DefaultHasher>::default().hash_one(&self.text))
    }
}

/// The epoch of one partition that was read last.
#[derive(Debug, Default)]
pub(in super::super) struct EpochCell(Mutex<Option<Arc<Epoch>>>);

impl EpochCell {
    /// The epoch that was read last.
    pub(in super::super) fn get(&self) -> Option<Arc<Epoch>> {
        self.0.lock().clone()
    }

    /// Stores the epoch that was read last; returns whether it replaced a different one.
    pub(in super::super) fn set(&self, epoch: &Arc<Epoch>) -> bool {
        let before = self.0.lock().replace(Arc::clone(epoch));
        before.is_some_and(|before| before.text != epoch.text)
    }
}
