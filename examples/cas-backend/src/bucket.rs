//! A stand-in for an object store that has conditional writes and notifications: S3, etcd, a key-value service.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock, Weak},
};

use leasehold::{
    Resource,
    backend::{EventHub, HintSender},
    clock::Clock,
    lease::LeaseId,
};
use parking_lot::Mutex;

/// One bucket: objects with versions, the server's clock, and those who are notified.
#[derive(Debug)]
pub(crate) struct Bucket {
    objects: Mutex<BTreeMap<Resource, Object>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Where hints about a lease go: to the instance that requested it.
    pub(crate) routes: Mutex<HashMap<LeaseId, HintSender>>,
    pub(crate) events: EventHub,
}

/// What `get` returns; an object that does not exist has version 0 and no bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Object {
    pub(crate) version: u64,
    pub(crate) bytes: Vec<u8>,
}

#[allow(clippy::unused_async, reason = "a store answers over the network")]
impl Bucket {
    /// The bucket of this name in this process, made when nobody has it yet.
    pub(crate) fn named(name: String, clock: &Arc<dyn Clock>) -> Arc<Self> {
        static BUCKETS: LazyLock<Mutex<HashMap<String, Weak<Bucket>>>> = LazyLock::new(Mutex::default);
        let mut buckets = BUCKETS.lock();
        if let Some(bucket) = buckets.get(&name).and_then(Weak::upgrade) {
            return bucket;
        }
        let bucket = Arc::new(Self {
            objects: Mutex::default(),
            clock: Arc::clone(clock),
            routes: Mutex::default(),
            events: EventHub::new(),
        });
        buckets.insert(name, Arc::downgrade(&bucket));
        bucket
    }

    pub(crate) async fn get(&self, name: &Resource) -> Object {
        self.objects.lock().get(name).cloned().unwrap_or_default()
    }

    /// Writes if the object still has this version; returns whether it did.
    pub(crate) async fn put_if(&self, name: &Resource, version: u64, bytes: Vec<u8>) -> bool {
        let mut objects = self.objects.lock();
        if objects.get(name).map_or(0, |object| object.version) != version {
            return false;
        }
        objects.insert(name.clone(), Object { version: version + 1, bytes });
        true
    }

    pub(crate) async fn names(&self) -> Vec<Resource> {
        self.objects.lock().keys().cloned().collect()
    }
}
