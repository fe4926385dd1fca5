//! Lets an event loop that is no tokio runtime, such as that of Node or of asyncio, read the answers to its own calls.
//!
//! Otherwise the I/O thread reads them and wakes the event loop, and two threads
//! have to be woken for each call. The packages of other languages are made of
//! this; it is no promise to anybody else.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use leasehold_fork::{Registration, close_in_child};
use parking_lot::Mutex;
use rustix::event::{
    Timespec,
    epoll::{self, CreateFlags, Event},
};

/// The most descriptors that are read in one turn.
const MOST_READ: usize = 64;

thread_local! {
    /// The event loop that reads the answers to the calls that this thread polls just now.
    static CURRENT: RefCell<Option<EventLoop>> = const { RefCell::new(None) };
}

/// What reads a descriptor on the thread of an event loop.
pub(crate) trait DescriptorReader: Send + Sync {
    /// Reads what has come; returns false if nothing will come any more.
    fn read(&self) -> bool;

    /// Whether something waits until the callers that were answered have run.
    fn waits_for_callers(&self) -> bool;

    /// The callers that were answered have run.
    fn callers_ran(&self);
}

/// An event loop of the caller's, which reads what the library waits for.
///
/// Its owner watches the descriptor of this, and calls [`read`](Self::read) on the loop's thread when that is readable.
/// A loop that is blocked holds nobody up: the library's own thread reads then.
#[derive(Clone, Debug)]
pub struct EventLoop(Arc<LoopState>);

struct LoopState {
    id: u64,
    epoll: Arc<LoopEpoll>,
    readers: Mutex<HashMap<u64, Arc<dyn DescriptorReader>>>,
    last_key: AtomicU64,
}

/// The epoll instance of an event loop. It contains each descriptor under a key.
#[derive(Debug)]
pub(crate) struct LoopEpoll {
    // Dropped before the descriptor.
    _closed_in_child: Registration,
    fd: OwnedFd,
}

impl AsFd for LoopEpoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::fmt::Debug for LoopState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLoop").field("id", &self.id).finish_non_exhaustive()
    }
}

impl EventLoop {
    /// # Errors
    /// Fails if the process can open no more descriptors.
    pub fn new() -> io::Result<Self> {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        let fd = epoll::create(CreateFlags::CLOEXEC)?;
        let epoll = Arc::new(LoopEpoll { _closed_in_child: close_in_child(fd.as_fd())?, fd });
        let (readers, last_key) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self(Arc::new(LoopState { id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1, epoll, readers, last_key })))
    }

    /// Polls calls on the thread of this event loop, which reads the answers to what they send.
    pub fn poll_here<T>(&self, poll: impl FnOnce() -> T) -> T {
        /// Restores `CURRENT` when it is dropped.
        struct RestoreLoop(Option<EventLoop>);

        impl Drop for RestoreLoop {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }

        let _restored = RestoreLoop(CURRENT.replace(Some(self.clone())));
        poll()
    }

    /// Reads what has come, and wakes the calls that it answers, on this thread.
    pub fn read(&self) -> WaitingBatches {
        let mut answered = WaitingBatches(self.ready());
        answered.0.retain(|(key, reader)| {
            let goes_on = reader.read();
            if !goes_on {
                self.0.remove(*key);
            }
            goes_on && reader.waits_for_callers()
        });
        answered
    }

    /// What can be read now, with its keys.
    fn ready(&self) -> Vec<(u64, Arc<dyn DescriptorReader>)> {
        {
            let readers = self.0.readers.lock();
            if readers.len() == 1 {
                // It must be this one.
                return readers.iter().map(|(key, reader)| (*key, Arc::clone(reader))).collect();
            }
        }
        let mut events = Vec::<Event>::with_capacity(MOST_READ);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.0.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now)).is_err() {
            return Vec::new();
        }
        let readers = self.0.readers.lock();
        let reader = |event: Event| {
            let key = event.data.u64();
            Some((key, Arc::clone(readers.get(&key)?)))
        };
        events.into_iter().filter_map(reader).collect()
    }

    /// The event loop that reads the answers to the calls that this thread polls just now.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn epoll(&self) -> &Arc<LoopEpoll> {
        &self.0.epoll
    }

    /// A key for one more descriptor.
    pub(crate) fn new_key(&self) -> u64 {
        self.0.last_key.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Has the reader read the descriptor of this key, until the returned value is dropped.
    pub(crate) fn add(&self, key: u64, reader: Arc<dyn DescriptorReader>) -> WatchGuard {
        self.0.readers.lock().insert(key, reader);
        WatchGuard { event_loop: Arc::downgrade(&self.0), key }
    }
}

impl AsFd for EventLoop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.epoll.as_fd()
    }
}

/// The batches that wait until the callers that were answered have run, so that their next calls leave together. Drop it
/// then.
#[must_use = "dropping it before the callers have run sends their next calls one by one"]
pub struct WaitingBatches(Vec<(u64, Arc<dyn DescriptorReader>)>);

impl WaitingBatches {
    /// Whether nothing waits.
    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for WaitingBatches {
    fn drop(&mut self) {
        self.0.iter().for_each(|(_, reader)| reader.callers_ran());
    }
}

impl std::fmt::Debug for WaitingBatches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingBatches").field("readers", &self.0.len()).finish()
    }
}

impl LoopState {
    fn remove(&self, key: u64) {
        let _dropped_after_the_lock = self.readers.lock().remove(&key);
    }
}

/// A descriptor that an event loop watches.
#[derive(Debug)]
pub(crate) struct WatchGuard {
    event_loop: Weak<LoopState>,
    key: u64,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if let Some(event_loop) = self.event_loop.upgrade() {
            event_loop.remove(self.key);
        }
    }
}
