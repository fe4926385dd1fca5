//! Ended leases: a bounded stream for each partition, read from its end.

use super::{RedisBackend, keys::Partition, reply};
use crate::{
    Result,
    lease::{EndedLease, HistoryFilter, Names},
};

/// Entries read at once.
const AT_ONCE: usize = 500;

impl RedisBackend {
    pub(super) async fn ended(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        let mut found = Vec::new();
        match &filter.names {
            Names::Exactly(resource) => self.ended_in(self.keys.of(resource), filter, &mut found).await?,
            Names::All | Names::Prefix(_) => {
                for partition in self.keys.all() {
                    self.ended_in(partition, filter, &mut found).await?;
                }
            }
        }
        Ok(filter.select(found))
    }

    /// Adds what one partition remembers, newest first, as far as the filter reaches.
    async fn ended_in(&self, partition: &Partition, filter: &HistoryFilter, found: &mut Vec<EndedLease>) -> Result<()> {
        let mut until = String::from("+");
        let mut wanted = filter.limit;
        while wanted > 0 {
            let mut command = redis::cmd("XREVRANGE");
            command.arg(partition.history()).arg(&until).arg("-").arg("COUNT").arg(AT_ONCE);
            let some = reply::remembered(&self.connection.ask(partition, &command, &self.options).await?)?;
            let Some(last) = some.last() else { return Ok(()) };
            // What was written down before that time ended before it, too.
            let past = filter.since.is_some_and(|since| last.written_ms < since.as_micros() / 1000);
            until = format!("({}", last.id);
            let count = some.len();
            for remembered in some {
                if filter.include(&remembered.ended) && wanted > 0 {
                    wanted -= 1;
                    found.push(remembered.ended);
                }
            }
            if past || count < AT_ONCE {
                return Ok(());
            }
        }
        Ok(())
    }
}
