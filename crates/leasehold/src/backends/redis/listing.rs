//! Live leases: names from the index, then what stands behind them.

use std::collections::BTreeMap;

use super::{RedisBackend, keys::Partition, reply, scripts};
use crate::{
    Result,
    lease::{LeaseRecord, ListFilter, Names, Page, Resource},
};

/// Resources asked about in one call, so that none keeps the server busy for long.
const AT_ONCE: usize = 100;

impl RedisBackend {
    pub(super) async fn page(&self, filter: &ListFilter) -> Result<Page> {
        let mut names: Vec<Resource> = match &filter.names {
            Names::Exactly(resource) => {
                let wanted = filter.after.as_ref().is_none_or(|after| resource > after);
                if wanted { vec![resource.clone()] } else { Vec::new() }
            }
            Names::All | Names::Prefix(_) => self.names(filter).await?,
        };
        let more = names.len() > filter.limit;
        names.truncate(filter.limit);
        let leases = self.records(&names).await?;
        Ok(Page { leases, next: if more { names.pop() } else { None } })
    }

    /// The first names of the filter, and one more if there is one.
    async fn names(&self, filter: &ListFilter) -> Result<Vec<Resource>> {
        let prefix = match &filter.names {
            Names::Prefix(prefix) => prefix.as_bytes(),
            _ => b"",
        };
        let after = filter.after.as_ref().map(|after| after.as_str().as_bytes()).filter(|after| *after >= prefix);
        let from = match after {
            Some(after) => [b"(", after].concat(),
            None if prefix.is_empty() => b"-".to_vec(),
            None => [b"[", prefix].concat(),
        };
        // No UTF-8 text has this byte.
        let to = if prefix.is_empty() { b"+".to_vec() } else { [b"(", prefix, b"\xff"].concat() };
        let mut names = Vec::new();
        for partition in self.keys.all() {
            let mut command = redis::cmd("ZRANGEBYLEX");
            command.arg(partition.index()).arg(&from[..]).arg(&to[..]).arg("LIMIT").arg(0).arg(filter.limit + 1);
            names.extend(reply::names(&self.connection.ask(partition, &command, &self.options).await?)?);
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The leases of these resources, in their order.
    async fn records(&self, names: &[Resource]) -> Result<Vec<LeaseRecord>> {
        let mut by_partition: BTreeMap<u16, (&Partition, Vec<Resource>)> = BTreeMap::new();
        for name in names {
            let partition = self.keys.of(name);
            by_partition.entry(partition.number).or_insert_with(|| (partition, Vec::new())).1.push(name.clone());
        }
        let mut leases = Vec::new();
        for (partition, resources) in by_partition.values() {
            for some in resources.chunks(AT_ONCE) {
                let call = scripts::LIST.call(partition, some.iter()).arg(&self.settings);
                let call = some.iter().fold(call, |call, resource| call.arg(resource.as_str()));
                let answer = self.connection.run(partition, &call, &self.options).await?;
                leases.extend(reply::listed(&answer.value, some)?);
            }
        }
        // Within a name they stand in their order already.
        leases.sort_by(|one, other| one.resource.cmp(&other.resource));
        Ok(leases)
    }

    /// Ends what has expired among some names picked at random: what nobody touches is recorded all the same.
    pub(super) async fn tidy(&self, partition: &Partition) -> Result<()> {
        let mut command = redis::cmd("ZRANDMEMBER");
        command.arg(partition.index()).arg(AT_ONCE);
        let names = reply::names(&self.connection.ask(partition, &command, &self.options).await?)?;
        self.records(&names).await.map(drop)
    }
}
