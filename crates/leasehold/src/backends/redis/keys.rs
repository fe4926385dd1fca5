//! How keys and channels are named: all of one partition share a hash tag, and so a slot.

use super::options::{RedisOptions, Topology};
use crate::lease::Resource;

/// Partitions of a namespace in a cluster: enough to spread it over any number of servers.
const CLUSTER_PARTITIONS: u16 = 64;
/// Slots of every cluster.
pub(super) const SLOTS: u16 = 16384;

/// The names of a namespace's keys and channels.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    partitions: Vec<Partition>,
}

/// The names of one partition's keys and channels.
#[derive(Clone, Debug)]
pub(super) struct Partition {
    /// Its index among all partitions.
    pub(super) number: u16,
    /// The slot that has it in a cluster.
    pub(super) slot: u16,
    pub(super) names: PartitionNames,
    prefix: String,
}

/// The names that most calls need.
#[derive(Clone, Debug)]
pub(super) struct PartitionNames {
    /// The hash of live names.
    pub(super) leases: String,
    /// The stream of ended leases.
    pub(super) history: String,
    /// The channel of events. Channels are shared by all databases of a server, so its name has the number of ours.
    pub(super) events: String,
}

impl Keys {
    /// Everything in one slot: one server has them all.
    pub(super) fn on_one_server(prefix: &str, namespace: &str, database: i64) -> Self {
        Self { partitions: vec![Partition::new(prefix, namespace, 0, database)] }
    }

    /// Spread over the slots of a cluster.
    pub(super) fn in_cluster(prefix: &str, namespace: &str) -> Self {
        let partition = |number| Partition::new(prefix, &format!("{namespace}:{number}"), number, 0);
        Self { partitions: (0..CLUSTER_PARTITIONS).map(partition).collect() }
    }

    /// The partition that has this resource.
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
}

impl Partition {
    fn new(prefix: &str, tag: &str, number: u16, database: i64) -> Self {
        let prefix = format!("{prefix}{{{tag}}}:");
        Self {
            number,
            slot: crc16(tag.as_bytes()) % SLOTS,
            names: PartitionNames {
                leases: format!("{prefix}leases"),
                history: format!("{prefix}history"),
                events: format!("{prefix}events:{database}"),
            },
            prefix,
        }
    }

    /// The key of a resource that has several holders or a queue.
    pub(super) fn entries(&self, resource: &Resource) -> String {
        format!("{}entries:{resource}", self.prefix)
    }

    /// The hash of run records, and the set of their names by the time of the last report.
    pub(super) fn runs(&self) -> [String; 2] {
        ["runs", "reported"].map(|kind| format!("{}{kind}", self.prefix))
    }

    /// Keys that only the first format has.
    pub(super) fn of_format_1(&self) -> [String; 2] {
        ["fence", "index"].map(|kind| format!("{}{kind}", self.prefix))
    }

    /// The channel for grants and evictions of one instance.
    pub(super) fn instance_channel(&self, instance: &str) -> String {
        format!("{}to:{instance}", self.prefix)
    }
}

/// The glob pattern of all names that begin with this text, for `SCAN` and access lists.
pub(super) fn pattern(beginning: &str) -> String {
    let mut pattern = String::with_capacity(beginning.len() + 1);
    for character in beginning.chars() {
        if "*?[]\\".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern
}

/// The glob pattern of the keys and channels of one namespace.
pub(super) fn namespace_pattern(options: &RedisOptions) -> String {
    let RedisOptions { prefix, namespace, .. } = options;
    // The tag goes on with the number of the partition in a cluster.
    let end_of_tag = if options.topology == Topology::Cluster { ":" } else { "}:" };
    pattern(&format!("{prefix}{{{namespace}{end_of_tag}"))
}

/// The checksum by which Redis Cluster finds a slot (CRC-16/XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
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
        let keys = Keys::on_one_server("app:", "default", 0);
        let partition = keys.of(&resource("a{b}c"));
        assert_eq!(partition.names.leases, "app:{default}:leases");
        assert_eq!(partition.entries(&resource("a{b}c")), "app:{default}:entries:a{b}c");
        assert_eq!(partition.slot, crc16(b"default") % SLOTS);
    }

    #[test]
    fn a_pattern_is_of_one_namespace_only() {
        let pattern = |url| namespace_pattern(&RedisOptions::from_url(url, "shop").unwrap());
        assert_eq!(pattern("redis://localhost"), "leasehold:{shop}:*");
        assert_eq!(pattern("redis://localhost?prefix=a*b:"), r"a\*b:{shop}:*");
        assert_eq!(pattern("redis+cluster://localhost"), "leasehold:{shop:*");
    }

    #[test]
    fn partitions_of_a_cluster_are_used_evenly_enough() {
        let keys = Keys::in_cluster("leasehold:", "default");
        let mut used = vec![0_u32; keys.all().len()];
        for at in 0..25_600 {
            used[usize::from(keys.of(&resource(&format!("order:{at}"))).number)] += 1;
        }
        assert!(used.iter().all(|count| (100..1600).contains(count)), "{used:?}");
    }
}
