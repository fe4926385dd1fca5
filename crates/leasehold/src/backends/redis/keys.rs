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
    partitions: u16,
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
        Self { namespace: namespace.to_owned(), partitions: 1 }
    }

    /// Spread over the slots of a cluster.
    pub(super) fn in_cluster(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), partitions: IN_CLUSTER }
    }

    /// The partition that keeps this resource.
    pub(super) fn of(&self, resource: &Resource) -> Partition {
        self.partition(crc16(resource.as_str().as_bytes()) % self.partitions)
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = Partition> + '_ {
        (0..self.partitions).map(|number| self.partition(number))
    }

    fn partition(&self, number: u16) -> Partition {
        let namespace = &self.namespace;
        let prefix = match self.partitions {
            1 => format!("leasehold:{{{namespace}}}:"),
            _ => format!("leasehold:{{{namespace}:{number}}}:"),
        };
        Partition { number, prefix }
    }

    /// The channel that tells those who watch this namespace.
    pub(super) fn events(&self) -> String {
        format!("leasehold:{}:events", self.namespace)
    }
}

impl Partition {
    /// The slot that keeps it in a cluster.
    pub(super) fn slot(&self) -> u16 {
        let tag = self.prefix.trim_start_matches("leasehold:{").trim_end_matches("}:");
        crc16(tag.as_bytes()) % SLOTS
    }

    /// The keys that all its resources share, as the scripts expect them.
    pub(super) fn shared(&self) -> Vec<Vec<u8>> {
        ["fence", "index", "history", "watched"].map(|key| self.key(key, "")).to_vec()
    }

    /// The keys of one resource, as the scripts expect them.
    pub(super) fn resource(&self, resource: &Resource) -> [Vec<u8>; 4] {
        ["lease:", "entries:", "order:", "ends:"].map(|key| self.key(key, resource.as_str()))
    }

    /// The shared keys, then those of one resource.
    pub(super) fn keys(&self, resource: &Resource) -> Vec<Vec<u8>> {
        let mut keys = self.shared();
        keys.extend(self.resource(resource));
        keys
    }

    /// The names that have live leases.
    pub(super) fn index(&self) -> Vec<u8> {
        self.key("index", "")
    }

    /// The stream of ended leases.
    pub(super) fn history(&self) -> Vec<u8> {
        self.key("history", "")
    }

    /// Says on which channel to tell those who watch, while anyone does.
    pub(super) fn watched(&self) -> Vec<u8> {
        self.key("watched", "")
    }

    /// The channel on which an instance is told about its leases in this partition.
    pub(super) fn to(&self, instance: &str) -> String {
        format!("{}to:{instance}", self.prefix)
    }

    fn key(&self, kind: &str, name: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), kind.as_bytes(), name.as_bytes()].concat()
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
        let partition = Keys::on_one_server("default").of(&resource("a{b}c"));
        assert_eq!(partition.resource(&resource("a{b}c"))[0], b"leasehold:{default}:lease:a{b}c");
        assert_eq!(partition.slot(), crc16(b"default") % SLOTS);
    }

    #[test]
    fn partitions_of_a_cluster_are_used_evenly_enough() {
        let keys = Keys::in_cluster("default");
        let mut used = vec![0_u32; keys.all().count()];
        for at in 0..25_600 {
            used[usize::from(keys.of(&resource(&format!("order:{at}"))).number)] += 1;
        }
        assert!(used.iter().all(|count| (20..400).contains(count)), "{used:?}");
    }
}
