//! Watches the instances that our waiting entries wait for, and sends a hint when one dies.
//!
//! An open write end of a FIFO gets an error event when its last reader is
//! gone, for whatever reason. So nothing polls, and each watched instance needs
//! one watch. A few idle watches stay open, since the same instances are often
//! waited for again.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{io::Interest, net::unix::pipe, runtime::Handle, task::AbortHandle};
use uuid::Uuid;

use super::{
    directory::Directory,
    presence::{means_dead, open},
};
use crate::{
    backend::{Hint, HintSender},
    lease::Resource,
};

/// How many idle watches stay open.
const MAX_IDLE: usize = 4;

/// The watches of one instance.
#[derive(Debug)]
pub(super) struct DeathWatch {
    directory: Arc<Directory>,
    runtime: Handle,
    hints: HintSender,
    watches: Arc<Mutex<Watches>>,
}

#[derive(Debug, Default)]
struct Watches {
    /// For each resource, the instances whose death our waiting entries must notice.
    by_resource: HashMap<Resource, BTreeSet<Uuid>>,
    /// The watch on each instance, and for which resources.
    by_instance: HashMap<Uuid, InstanceWatch>,
    /// The instances that are watched for no resource, the longest idle first.
    idle: VecDeque<Uuid>,
}

#[derive(Debug)]
struct InstanceWatch {
    resources: HashSet<Resource>,
    task: AbortHandle,
}

impl DeathWatch {
    pub(super) fn new(directory: Arc<Directory>, runtime: Handle, hints: HintSender) -> Self {
        Self { directory, runtime, hints, watches: Arc::default() }
    }

    /// Watches these instances for the resource from now on, and no others; returns whether one is dead already.
    ///
    /// The caller holds the latch of the resource, so that nobody else sets what is watched for it.
    pub(super) fn set_watched(&self, resource: &Resource, wanted: BTreeSet<Uuid>) -> bool {
        let new = self.watches.lock().keep_watched(resource, wanted);
        let mut is_dead = false;
        for id in new {
            // Opening may take long, so this thread does not hold the lock: on the I/O thread, a task may be waiting for it.
            let _inside = self.runtime.enter();
            match open(&self.directory.presence(id)).and_then(pipe::Sender::from_file) {
                Ok(fifo) => self.watch(id, fifo, resource),
                // It died after the operation had checked it, so no event will come.
                Err(error) if means_dead(&error) => is_dead = true,
                // The next operation tries again.
                Err(error) => {
                    tracing::warn!(presence = %id, %error, "cannot watch a process; only a renewal will notice its death");
                }
            }
        }
        is_dead
    }

    /// Watches an instance for the resource by its FIFO, unless it is watched already.
    fn watch(&self, id: Uuid, fifo: pipe::Sender, resource: &Resource) {
        let mut watches = self.watches.lock();
        watches.by_resource.entry(resource.clone()).or_default().insert(id);
        if watches.add_to_watch(id, resource) {
            return;
        }
        let (watches_of, hints) = (Arc::downgrade(&self.watches), self.hints.clone());
        let task = self.runtime.spawn(async move {
            if fifo.ready(Interest::ERROR).await.is_ok()
                && let Some(watches) = watches_of.upgrade()
            {
                let resources = watches.lock().end_watch(id);
                for resource in resources {
                    hints.send(Hint::Changed { resource });
                }
            }
        });
        let resources = HashSet::from([resource.clone()]);
        watches.by_instance.insert(id, InstanceWatch { resources, task: task.abort_handle() });
    }
}

impl Drop for DeathWatch {
    fn drop(&mut self) {
        self.watches.lock().by_instance.drain().for_each(|(_, watch)| watch.task.abort());
    }
}

impl Watches {
    /// Watches only these instances for the resource; returns those that are not watched for anything yet.
    fn keep_watched(&mut self, resource: &Resource, wanted: BTreeSet<Uuid>) -> Vec<Uuid> {
        if wanted.is_empty() && !self.by_resource.contains_key(resource) {
            return Vec::new();
        }
        let had = self.by_resource.remove(resource).unwrap_or_default();
        for no_longer in had.difference(&wanted) {
            self.drop_watch(*no_longer, resource);
        }
        let (watched, new) =
            wanted.into_iter().partition::<BTreeSet<_>, _>(|id| had.contains(id) || self.add_to_watch(*id, resource));
        if !watched.is_empty() {
            self.by_resource.insert(resource.clone(), watched);
        }
        new.into_iter().collect()
    }

    /// Adds the resource to the watch on an instance; returns false if there is none.
    fn add_to_watch(&mut self, id: Uuid, resource: &Resource) -> bool {
        let Some(watch) = self.by_instance.get_mut(&id) else { return false };
        watch.resources.insert(resource.clone());
        self.idle.retain(|idle| *idle != id);
        true
    }

    fn drop_watch(&mut self, id: Uuid, resource: &Resource) {
        let Some(watch) = self.by_instance.get_mut(&id) else { return };
        watch.resources.remove(resource);
        if watch.resources.is_empty() {
            self.idle.push_back(id);
        }
        if self.idle.len() > MAX_IDLE
            && let Some(watch) = self.idle.pop_front().and_then(|id| self.by_instance.remove(&id))
        {
            watch.task.abort();
        }
    }

    /// Forgets an instance that died; returns the resources for which it was watched.
    fn end_watch(&mut self, id: Uuid) -> HashSet<Resource> {
        let resources = self.by_instance.remove(&id).map(|watch| watch.resources).unwrap_or_default();
        self.idle.retain(|idle| *idle != id);
        for resource in &resources {
            if let Some(wanted) = self.by_resource.get_mut(resource) {
                wanted.remove(&id);
            }
        }
        resources
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

    use super::*;
    use crate::{
        backend::Hints,
        backends::file::{FileOptions, presence::OwnPresence},
        clock::SystemClock,
    };

    fn directory(root: &Path) -> Arc<Directory> {
        let url = format!("file://{}", root.display());
        let options = FileOptions::from_url(&url, "test", Arc::new(SystemClock)).unwrap();
        Arc::new(Directory::open(&options).unwrap())
    }

    /// A watch in the directory, and the hints it sends.
    fn watching(root: &Path) -> (Arc<Directory>, DeathWatch, Hints) {
        let (directory, hints) = (directory(root), HintSender::new());
        let received = hints.subscribe();
        (Arc::clone(&directory), DeathWatch::new(directory, Handle::current(), hints), received)
    }

    #[tokio::test]
    async fn a_process_that_could_not_be_watched_is_tried_again() {
        let root = tempfile::tempdir().unwrap();
        let (directory, watch, mut received) = watching(root.path());
        let resource = Resource::new("x").unwrap();
        let watched = OwnPresence::create(Arc::clone(&directory)).unwrap();
        let path = directory.presence(watched.id());
        let (moved, wanted) = (root.path().join("moved"), BTreeSet::from([watched.id()]));
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(!watch.set_watched(&resource, wanted.clone()));
        fs::remove_dir(&path).unwrap();
        fs::rename(&moved, &path).unwrap();
        assert!(!watch.set_watched(&resource, wanted));
        drop(watched);
        let hint = tokio::time::timeout(Duration::from_secs(5), received.next()).await;
        assert_eq!(hint, Ok(Some(Hint::Changed { resource })));
    }

    #[tokio::test]
    async fn a_process_that_died_before_it_was_watched_is_reported_at_once() {
        let root = tempfile::tempdir().unwrap();
        let watch = DeathWatch::new(directory(root.path()), Handle::current(), HintSender::new());
        assert!(watch.set_watched(&Resource::new("x").unwrap(), BTreeSet::from([Uuid::new_v4()])));
    }

    #[tokio::test]
    async fn a_few_processes_stay_watched_that_nothing_waits_for() {
        let root = tempfile::tempdir().unwrap();
        let (directory, watch, mut received) = watching(root.path());
        let resource = Resource::new("x").unwrap();
        let mut watched: Vec<_> =
            (0..=MAX_IDLE).map(|_| OwnPresence::create(Arc::clone(&directory)).unwrap()).collect();
        for process in &watched {
            assert!(!watch.set_watched(&resource, BTreeSet::from([process.id()])));
        }
        assert!(!watch.set_watched(&resource, BTreeSet::new()));
        assert_eq!(watch.watches.lock().by_instance.len(), MAX_IDLE, "the one that was idle longest is let go");

        let (needed, idle) = (watched.pop().unwrap(), watched.pop().unwrap());
        assert!(!watch.set_watched(&resource, BTreeSet::from([needed.id()])));
        drop(idle);
        drop(needed);
        let hint = tokio::time::timeout(Duration::from_secs(5), received.next()).await;
        assert_eq!(hint, Ok(Some(Hint::Changed { resource })), "only the death of the one that is waited for");
        assert_eq!(tokio::time::timeout(Duration::from_millis(50), received.next()).await.ok(), None);
    }
}
