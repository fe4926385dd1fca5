//! The death watch: hears of the death of those our waiting entries wait for.
//!
//! An open write end of a FIFO gets an error event when its last reader is
//! gone, whatever ended it. No polling, and one watch per process watched.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{io::Interest, net::unix::pipe, runtime::Handle, task::AbortHandle};
use uuid::Uuid;

use super::{
    directory::Directory,
    presence::{means_dead, open},
    record::Stored,
};
use crate::{
    backend::{Hint, HintSender},
    lease::{LeaseId, Resource},
};

/// The watches of one instance.
#[derive(Debug)]
pub(super) struct Deaths {
    directory: Arc<Directory>,
    runtime: Handle,
    book: Arc<Book>,
}

#[derive(Debug)]
struct Book {
    hints: HintSender,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// Whose deaths matter to our waiting entries on a resource.
    wanted: HashMap<Resource, BTreeSet<Uuid>>,
    /// The watch on each process, and for which resources.
    watches: HashMap<Uuid, Watch>,
}

#[derive(Debug)]
struct Watch {
    resources: HashSet<Resource>,
    task: AbortHandle,
}

impl Deaths {
    pub(super) fn new(directory: Arc<Directory>, runtime: Handle, hints: HintSender) -> Self {
        Self { directory, runtime, book: Arc::new(Book { hints, pages: Mutex::default() }) }
    }

    /// Watches these for the resource from now on, and no others.
    pub(super) fn follow(&self, resource: &Resource, mut wanted: BTreeSet<Uuid>) {
        let mut pages = self.book.pages.lock();
        let had = pages.wanted.remove(resource).unwrap_or_default();
        for no_longer in had.difference(&wanted) {
            pages.drop_watch(*no_longer, resource);
        }
        // One that could not be watched is not remembered, so that the next operation tries again.
        wanted.retain(|id| had.contains(id) || self.watch(&mut pages, *id, resource));
        if !wanted.is_empty() {
            pages.wanted.insert(resource.clone(), wanted);
        }
    }

    /// Whether it is watched, or known to be dead.
    fn watch(&self, pages: &mut Pages, id: Uuid, resource: &Resource) -> bool {
        if let Some(watch) = pages.watches.get_mut(&id) {
            watch.resources.insert(resource.clone());
            return true;
        }
        let _inside = self.runtime.enter();
        match open(&self.directory.presence(id)).and_then(pipe::Sender::from_file) {
            Ok(fifo) => {
                let book = Arc::downgrade(&self.book);
                let task = self.runtime.spawn(async move {
                    if fifo.ready(Interest::ERROR).await.is_ok()
                        && let Some(book) = book.upgrade()
                    {
                        book.died(id);
                    }
                });
                let resources = HashSet::from([resource.clone()]);
                pages.watches.insert(id, Watch { resources, task: task.abort_handle() });
            }
            // It died since the operation looked, so nobody else will tell us.
            Err(error) if means_dead(&error) => self.book.hints.send(Hint::Changed { resource: resource.clone() }),
            Err(error) => {
                tracing::warn!(presence = %id, %error, "cannot watch a process; its death shows at the next renewal");
                return false;
            }
        }
        true
    }
}

impl Drop for Deaths {
    fn drop(&mut self) {
        self.book.pages.lock().watches.drain().for_each(|(_, watch)| watch.task.abort());
    }
}

impl Book {
    fn died(&self, id: Uuid) {
        let mut pages = self.pages.lock();
        let Some(watch) = pages.watches.remove(&id) else { return };
        for resource in watch.resources {
            if let Some(wanted) = pages.wanted.get_mut(&resource) {
                wanted.remove(&id);
            }
            self.hints.send(Hint::Changed { resource });
        }
    }
}

impl Pages {
    fn drop_watch(&mut self, id: Uuid, resource: &Resource) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        watch.resources.remove(resource);
        if watch.resources.is_empty() {
            watch.task.abort();
            self.watches.remove(&id);
        }
    }
}

/// Whose deaths an instance should watch for its entries that wait.
pub(super) fn in_the_way_of(own: Uuid, stored: &Stored) -> BTreeSet<Uuid> {
    needs(stored)
        .filter(|(id, _)| stored.presence.get(id) == Some(&own))
        .flat_map(|(_, needed)| needed)
        .filter(|watched| *watched != own)
        .collect()
}

/// Those that wait behind someone new, and cannot know: each must look again to watch the right ones.
pub(super) fn behind_someone_new(before: &Stored, after: &Stored) -> Vec<LeaseId> {
    let known: HashMap<LeaseId, BTreeSet<Uuid>> = needs(before).collect();
    needs(after)
        .filter(|(id, needed)| known.get(id).is_some_and(|known| !needed.is_subset(known)))
        .map(|(id, _)| id)
        .collect()
}

/// Whose death each waiter must hear of: the first of every holder's, each other one of the waiter before it.
///
/// That is enough: whoever dies together, the first survivor hears of it. And a death wakes one.
fn needs(stored: &Stored) -> impl Iterator<Item = (LeaseId, BTreeSet<Uuid>)> {
    let mut before = None;
    let waiting = stored.state.entries.iter().filter(|entry| entry.is_waiting());
    waiting.map(move |entry| {
        let needed = match before.replace(stored.bound_to(entry)) {
            Some(waiter) => waiter.into_iter().collect(),
            None => holders(stored).collect(),
        };
        (entry.id, needed)
    })
}

fn holders(stored: &Stored) -> impl Iterator<Item = Uuid> {
    stored.state.entries.iter().filter(|entry| !entry.is_waiting()).filter_map(|entry| stored.bound_to(entry))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

    use super::*;
    use crate::{
        backends::file::{FileOptions, presence::OwnPresence},
        clock::SystemClock,
    };

    fn directory(root: &Path) -> Arc<Directory> {
        let url = format!("file://{}", root.display());
        let options = FileOptions::from_url(&url, "test", Arc::new(SystemClock)).unwrap();
        Arc::new(Directory::open(&options).unwrap())
    }

    #[tokio::test]
    async fn one_that_could_not_be_watched_is_tried_again() {
        let root = tempfile::tempdir().unwrap();
        let directory = directory(root.path());
        let hints = HintSender::new();
        let mut heard = hints.subscribe();
        let deaths = Deaths::new(Arc::clone(&directory), Handle::current(), hints);
        let resource = Resource::new("x").unwrap();
        let watched = OwnPresence::appear(Arc::clone(&directory)).unwrap();
        let path = directory.presence(watched.id());
        let (aside, wanted) = (root.path().join("aside"), BTreeSet::from([watched.id()]));
        fs::rename(&path, &aside).unwrap();
        fs::create_dir(&path).unwrap();
        deaths.follow(&resource, wanted.clone());
        fs::remove_dir(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
        deaths.follow(&resource, wanted);
        drop(watched);
        let told = tokio::time::timeout(Duration::from_secs(5), heard.next()).await;
        assert_eq!(told, Ok(Some(Hint::Changed { resource })));
    }

    #[tokio::test]
    async fn one_that_died_before_it_was_watched_is_told_at_once() {
        let root = tempfile::tempdir().unwrap();
        let hints = HintSender::new();
        let mut heard = hints.subscribe();
        let deaths = Deaths::new(directory(root.path()), Handle::current(), hints);
        let resource = Resource::new("x").unwrap();
        deaths.follow(&resource, BTreeSet::from([Uuid::new_v4()]));
        assert_eq!(heard.next().await, Some(Hint::Changed { resource }));
    }
}
