//! How keys and channels are named: all of one partition share a hash tag, and so a slot.

use crate::lease::Resource;

/// Partitions of a namespace in a cluster: enough to spread it over any number of servers.
const IN_CLUSTER: u16 = 256;
/// Slots of every cluster.
pub(super) const SLOTS: u16 = 16384;

/// The names of a namespace's keys and channels.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    namespace: String,
    partitions: Vec<Partition>,
}

/// The names of one partition's keys and channels.
#[derive(Clone, Debug)]
pub(super) struct Partition {
    /// Which one.
    pub(super) number: u16,
    prefix: String,
}

impl Keys {
    /// Everything in one slot: one server has them all.
    pub(super) fn on_one_server(namespace: &str) -> Self {
        let partitions = vec![Partition { number: 0, prefix: format!("leasehold:{{{namespace}}}:") }];
        Self { namespace: namespace.to_owned(), partitions }
    }

    /// Spread over the slots of a cluster.
    pub(super) fn in_cluster(namespace: &str) -> Self {
        let partition = |number| Partition { number, prefix: format!("leasehold:{{{namespace}:{number}}}:") };
        Self { namespace: namespace.to_owned(), partitions: (0..IN_CLUSTER).map(partition).collect() }
    }

    /// The partition that keeps this resource.
    pub(super) fn of(&self, resource: &Resource) -> &Partition {
        match self.partitions.as_slice() {
            [only] => only,
            many => &many[usize::from(crc16(resource.as_str().as_bytes())) % many.len()],
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> &[Partition] {
        &self.partitions
    }

    /// The channel that tells those who watch this namespace.
    pub(super) fn events(&self) -> String {
        format!("leasehold:{}:events", self.namespace)
    }
}

/// The keys that all resources of a partition share, as the scripts expect them.
const SHARED: [&str; 4] = ["fence", "index", "history", "watched"];
/// The keys of one resource, as the scripts expect them.
const OF_RESOURCE: [&str; 4] = ["lease:", "entries:", "order:", "ends:"];

impl Partition {
    /// The slot that keeps it in a cluster.
    pub(super) fn slot(&self) -> u16 {
        let tag = self.prefix.trim_start_matches("leasehold:{").trim_end_matches("}:");
        crc16(tag.as_bytes()) % SLOTS
    }

    /// How many keys a call about so many resources has.
    pub(super) fn count_keys(resources: usize) -> usize {
        SHARED.len() + OF_RESOURCE.len() * resources
    }

    /// The shared keys, then those of each resource.
    pub(super) fn add_keys<'a>(&self, resources: impl Iterator<Item = &'a Resource>, mut add: impl FnMut(&str)) {
        let mut key = String::with_capacity(self.prefix.len() + 64);
        let mut add = |kind: &str, name: &str| {
            key.clear();
            key.push_str(&self.prefix);
            key.push_str(kind);
            key.push_str(name);
            add(&key);
        };
        for kind in SHARED {
            add(kind, "");
        }
        for resource in resources {
            for kind in OF_RESOURCE {
                add(kind, resource.as_str());
            }
        }
    }

    /// The names that have live leases.
    pub(super) fn index(&self) -> String {
        format!("{}index", self.prefix)
    }

    /// The stream of ended leases.
    pub(super) fn history(&self) -> String {
        format!("{}history", self.prefix)
    }

    /// Says on which channel to tell those who watch, while anyone does.
    pub(super) fn watched(&self) -> String {
        format!("{}watched", self.prefix)
    }

    /// The channel on which an instance is told about its leases in this partition.
    pub(super) fn to(&self, instance: &str) -> String {
        format!("{}to:{instance}", self.prefix)
    }
}

/// The checksum by which Redis Cluster finds a slot (CRC-16/XMODEM).
pub(super) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum: u16, byte| {
        (0..8).fold(sum ^ u16::from(*byte) << 8, |sum, _| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(name: &str) -> Resource {
        Resource::new(name).unwrap()
    }

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b"foo") % SLOTS, 12182, "CLUSTER KEYSLOT foo");
    }

    #[test]
    fn a_name_with_braces_stays_in_its_partition() {
        let keys = Keys::on_one_server("default");
        let partition = keys.of(&resource("a{b}c"));
        let mut named = Vec::new();
        partition.add_keys([&resource("a{b}c")].into_iter(), |key| named.push(key.to_owned()));
        assert_eq!(named.len(), Partition::count_keys(1));
        assert_eq!(named[4], "leasehold:{default}:lease:a{b}c");
        assert_eq!(partition.slot(), crc16(b"default") % SLOTS);
    }

    #[test]
    fn partitions_of_a_cluster_are_used_evenly_enough() {
        let keys = Keys::in_cluster("default");
        let mut used = vec![0_u32; keys.all().len()];
        for at in 0..25_600 {
            used[usize::from(keys.of(&resource(&format!("order:{at}"))).number)] += 1;
        }
        assert!(used.iter().all(|count| (20..400).contains(count)), "{used:?}");
    }
}
