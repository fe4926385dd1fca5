//! The mark by which one lease is known on all nodes.
//!
//! What a node shows of a lease does not tell its id, which is a secret, and
//! its fence may differ from node to node. So each node keeps a one-way mark of
//! the id with the metadata, which is taken off again before anyone sees it.

use serde_json::Value;

use crate::lease::{LeaseId, Metadata, Renewal, Request};

const KEY: &str = "leasehold.redlock";

/// The mark of one lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Tag(String);

impl Tag {
    pub(super) fn of(id: LeaseId) -> Self {
        Self(format!("{:016x}", mixed(id)))
    }

    /// Takes the mark off; `None` where there is none.
    pub(super) fn take(metadata: &mut Metadata) -> Option<Self> {
        match metadata.remove(KEY)? {
            Value::String(tag) => Some(Self(tag)),
            _ => None,
        }
    }

    fn put(self, metadata: &mut Metadata) {
        metadata.insert(KEY.to_owned(), Value::String(self.0));
    }
}

/// The request with the mark of its id.
pub(super) fn tagged(request: &Request) -> Request {
    let mut request = request.clone();
    Tag::of(request.key.id).put(&mut request.metadata);
    request
}

/// The renewal, keeping the mark where it replaces the metadata.
pub(super) fn tagged_renewal(renewal: &Renewal) -> Renewal {
    let mut renewal = renewal.clone();
    if let Some(metadata) = &mut renewal.metadata {
        Tag::of(renewal.key.id).put(metadata);
    }
    renewal
}

/// 64 bits out of 122 random ones: nobody gets back to the id.
pub(super) fn mixed(id: LeaseId) -> u64 {
    let mix = |bits: u64| {
        let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    };
    let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0);
    mix(mix(half(id.as_u128() >> 64)) ^ half(id.as_u128()))
}
