//! What operators look at: live leases, ended ones, events; and eviction.

use std::sync::Arc;

use futures_util::future::try_join_all;
use tokio::sync::Mutex;

use super::{
    decode::{self, Listed},
    encode,
    keys::Partition,
    ops::Shared,
    record,
    scripts::{self, ScriptCall},
    upkeep::{self, WatchUpkeep},
};
use crate::{
    Result,
    backend::EventStream,
    lease::{EndedLease, Evicted, Fence, HistoryFilter, LeasePage, LeaseRecord, ListFilter, Names, Problem, Resource},
};

/// The most resources that one call asks about, so that no call keeps the server busy for long.
const RESOURCES_AT_ONCE: usize = 100;
/// Entries of one resource that `list.lua` returns at most.
const ENTRIES_AT_ONCE: usize = 1000;
/// Entries of a history stream read at once.
const HISTORY_AT_ONCE: usize = 100;

impl Shared {
    pub(super) async fn page(&self, filter: &ListFilter) -> Result<LeasePage> {
        let names = match &filter.names {
            Names::Exactly(resource) => vec![resource.clone()],
            Names::All | Names::Prefix(_) => self.names(filter).await?,
        };
        let selection = filter.select(names);
        Ok(LeasePage { leases: self.records(&selection.names).await?, next: selection.next })
    }

    /// The names that have live leases. Every name is read, a few hundred in a call: the hash has no order.
    async fn names(&self, filter: &ListFilter) -> Result<Vec<Resource>> {
        let prefix = match &filter.names {
            Names::Prefix(prefix) => prefix.as_str(),
            _ => "",
        };
        let read = |partition| self.names_in(partition, prefix, filter);
        let names = try_join_all(self.keys.all().iter().map(read)).await?;
        Ok(names.into_iter().flatten().collect())
    }

    async fn names_in(&self, partition: &Partition, prefix: &str, filter: &ListFilter) -> Result<Vec<Resource>> {
        let mut names = Vec::new();
        let mut cursor = 0;
        loop {
            let call = ScriptCall::new(&scripts::NAMES, &[&partition.names.leases], move |command| {
                command.arg(cursor).arg(prefix);
            });
            let reply = self.router.run(partition, &call, None).await?;
            let (next, some) = decode::names(&reply.value)?;
            names.extend(some);
            // A scan may return a name twice, and no more names than the page needs are remembered.
            if names.len() > 4 * (filter.limit + 1000) || next == 0 {
                names.sort_unstable();
                names.dedup();
                let after = |name: &Resource| filter.after.as_ref().is_none_or(|after| name > after);
                names.retain(after);
                names.truncate(filter.limit + 1);
            }
            if next == 0 {
                return Ok(names);
            }
            cursor = next;
        }
    }

    /// The leases of these resources, in their order.
    async fn records(&self, names: &[Resource]) -> Result<Vec<LeaseRecord>> {
        let mut by_partition: Vec<Vec<Resource>> = vec![Vec::new(); self.keys.all().len()];
        for name in names {
            by_partition[usize::from(self.keys.of(name).number)].push(name.clone());
        }
        let chunks = self.keys.all().iter().zip(&by_partition).flat_map(|(partition, resources)| {
            resources.chunks(RESOURCES_AT_ONCE).map(move |some| self.records_in(partition, some))
        });
        let mut leases: Vec<LeaseRecord> = try_join_all(chunks).await?.into_iter().flatten().collect();
        // Leases of one name are in order, and the sort is stable.
        leases.sort_by(|one, other| one.resource.cmp(&other.resource));
        Ok(leases)
    }

    async fn records_in(&self, partition: &Partition, resources: &[Resource]) -> Result<Vec<LeaseRecord>> {
        let mut leases = Vec::new();
        for (resource, listed) in resources.iter().zip(self.list_from(partition, resources, 0, 0).await?) {
            let Listed { leases: some, mut count, mut ahead } = listed;
            leases.extend(some);
            let mut from = count;
            // A long queue is read in several calls; what changes meanwhile may be missed or seen twice.
            while count == ENTRIES_AT_ONCE {
                let one = std::slice::from_ref(resource);
                let Some(more) = self.list_from(partition, one, from, ahead).await?.pop() else { break };
                leases.extend(more.leases);
                (count, ahead) = (more.count, more.ahead);
                from += count;
            }
        }
        Ok(leases)
    }

    async fn list_from(
        &self,
        partition: &Partition,
        resources: &[Resource],
        from: usize,
        ahead: u32,
    ) -> Result<Vec<Listed>> {
        let call = ScriptCall::for_resources(&scripts::LIST, partition, resources, |command| {
            for _ in resources {
                command.arg(from);
            }
        });
        let reply = self.router.run(partition, &call, None).await?;
        decode::listed(&reply.value, resources, ahead)
    }

    pub(super) async fn ended(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        let found = match &filter.names {
            Names::Exactly(resource) => self.ended_in(self.keys.of(resource), filter).await?,
            Names::All | Names::Prefix(_) => {
                let read = |partition| self.ended_in(partition, filter);
                try_join_all(self.keys.all().iter().map(read)).await?.into_iter().flatten().collect()
            }
        };
        Ok(filter.select(found))
    }

    /// What one partition remembers, newest first, as far as the filter reaches.
    async fn ended_in(&self, partition: &Partition, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        let mut found = Vec::new();
        let mut until = String::from("+");
        while found.len() < filter.limit {
            let mut command = redis::cmd("XREVRANGE");
            command.arg(&partition.names.history).arg(&until).arg("-").arg("COUNT").arg(HISTORY_AT_ONCE);
            let entries = record::history(&self.router.send_plain(partition, command).await?)?;
            let Some(oldest) = entries.last() else { break };
            until = format!("({}", oldest.id);
            let count = entries.len();
            // An entry holds only leases that ended before it was written.
            let past = oldest.written_ms < filter.ended.start.as_micros() / 1000;
            let leases = entries.into_iter().flat_map(|entry| entry.leases);
            found.extend(leases.filter(|ended| filter.include(ended)));
            if past || count < HISTORY_AT_ONCE {
                break;
            }
        }
        Ok(found)
    }

    pub(super) async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        let partition = self.keys.of(resource);
        let problem = encode::problem(&Problem { kind: String::from("evicted"), details: reason.to_owned() });
        let resources = [resource.clone()];
        let call = ScriptCall::for_resources(&scripts::EVICT, partition, &resources, |command| {
            command.arg(format!("{:016}", expected.get())).arg(&problem);
        });
        let reply = self.router.run(partition, &call, None).await?;
        decode::evicted(&reply.value, &self.options)
    }

    /// Follows events; the first stream subscribes and lets the scripts know.
    pub(super) async fn watch(
        self: &Arc<Self>,
        names: Names,
        watch_setup_lock: &Arc<Mutex<WatchUpkeep>>,
    ) -> Result<EventStream> {
        let mut upkeep = watch_setup_lock.lock().await;
        let is_first = self.notifications.watchers.is_idle();
        let stream = self.notifications.watchers.watch(names);
        if is_first {
            // The task of an earlier stream may not have seen yet that the stream was dropped: then it goes on. Started
            // first, since it also ends the subscriptions that remain if one of the calls below fails.
            if *upkeep == WatchUpkeep::Idle {
                *upkeep = WatchUpkeep::Running;
                self.runtime.spawn(upkeep::keep_watching(Arc::downgrade(self), Arc::clone(watch_setup_lock)));
            }
            try_join_all(self.keys.all().iter().map(|partition| self.router.subscribe(&partition.names.events)))
                .await?;
            self.announce_watcher().await?;
        }
        Ok(stream)
    }

    /// Lets every script know that somebody watches.
    pub(super) async fn announce_watcher(&self) -> Result<()> {
        try_join_all(self.keys.all().iter().map(|partition| self.announce_in(partition))).await.map(drop)
    }

    async fn announce_in(&self, partition: &Partition) -> Result<()> {
        let call = ScriptCall::new(&scripts::WATCH, &[&partition.names.leases], |command| {
            command.arg(upkeep::WATCH_LASTS.as_micros().to_string());
        });
        self.router.run(partition, &call, None).await.map(drop)
    }
}
