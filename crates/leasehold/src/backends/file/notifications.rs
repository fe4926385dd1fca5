//! The notifications that instances send each other, as lines in the receiver's FIFO.

use std::{
    collections::HashSet,
    fmt,
    future::pending,
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering, fence},
    },
    time::Duration,
};

use leasehold_fork::{Registration, close_in_child};
use parking_lot::Mutex;
use rustix::{event::epoll::EventFlags, io::Errno};
use tokio::{
    runtime::Handle,
    task::{AbortHandle, unconstrained, yield_now},
};

use super::{event_watchers::Watchers, presence::OwnPresence};
use crate::{
    backend::{Hint, HintSender},
    clock::Clock,
    lease::{Event, Fence, LeaseId, Resource},
    readable::{Readable, can_read, epoll_of, register, register_on},
};

/// A line that never ends is dropped at this length.
const LONGEST_LINE: usize = 1 << 16;
/// The smallest capacity of a FIFO: one page.
const SMALLEST_FIFO: usize = 4096;

/// One line. Receivers ignore lines that they do not know, so that newer versions may send more.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Notification {
    /// This waiting lease was granted.
    Granted { id: LeaseId, fence: Fence, provisional: bool },
    /// This lease was evicted.
    Evicted(LeaseId),
    /// Something changed for the waiters of this resource.
    Changed(Resource),
    /// A process ahead must confirm its grant of this resource within this time, or the next in line gets it.
    Provisional(Duration, Resource),
    /// An event, for the instances that watch events.
    Event(Box<Event>),
    /// An event was too long to be sent.
    MissedEvent,
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { id, fence, provisional: false } => writeln!(f, "granted {id} {fence}"),
            Self::Granted { id, fence, provisional: true } => writeln!(f, "granted-provisionally {id} {fence}"),
            Self::Evicted(id) => writeln!(f, "evicted {id}"),
            Self::Changed(resource) => writeln!(f, "changed {resource}"),
            Self::Provisional(length, resource) => writeln!(f, "provisional {} {resource}", length.as_millis()),
            Self::Event(event) => writeln!(f, "event {}", serde_json::to_string(event).map_err(|_| fmt::Error)?),
            Self::MissedEvent => writeln!(f, "missed event"),
        }
    }
}

impl Notification {
    /// The notification that carries this hint to an instance; `None` for `Missed`, which is never sent.
    pub(super) fn from_hint(hint: Hint) -> Option<Self> {
        match hint {
            Hint::Granted { id, fence, provisional } => Some(Self::Granted { id, fence, provisional }),
            Hint::Evicted { id } => Some(Self::Evicted(id)),
            Hint::Changed { resource } => Some(Self::Changed(resource)),
            Hint::Missed => None,
        }
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let (word, rest) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        match word {
            "granted" | "granted-provisionally" => {
                let (id, fence) = rest.split_once(' ')?;
                let (id, fence) = (id.parse().ok()?, Fence::new(fence.parse().ok()?));
                Some(Self::Granted { id, fence, provisional: word == "granted-provisionally" })
            }
            "evicted" => Some(Self::Evicted(rest.parse().ok()?)),
            "changed" => Some(Self::Changed(Resource::new(rest).ok()?)),
            "provisional" => {
                let (length, resource) = rest.split_once(' ')?;
                Some(Self::Provisional(Duration::from_millis(length.parse().ok()?), Resource::new(resource).ok()?))
            }
            "event" => Some(Self::Event(serde_json::from_str(rest).ok()?)),
            "missed" => Some(Self::MissedEvent),
            _ => None,
        }
    }
}

/// Passes notifications on to the engine and to the event streams.
#[derive(Debug)]
pub(super) struct NotificationInbox {
    pub(super) hints: HintSender,
    pub(super) watchers: Arc<Watchers>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) runtime: Handle,
    /// The resources for which an `ask_again_in` timer is running.
    pub(super) asking_again: Arc<Mutex<HashSet<Resource>>>,
}

impl NotificationInbox {
    pub(super) fn deliver(&self, notification: Notification) {
        match notification {
            Notification::Granted { id, fence, provisional } => {
                self.hints.send(Hint::Granted { id, fence, provisional });
            }
            Notification::Evicted(id) => self.hints.send(Hint::Evicted { id }),
            Notification::Changed(resource) => self.hints.send(Hint::Changed { resource }),
            Notification::Provisional(length, resource) => self.ask_again_in(length, resource),
            Notification::Event(event) => self.watchers.on_event(&event, &self.runtime),
            Notification::MissedEvent => self.watchers.on_missed(),
        }
    }

    /// Makes the waiters of the resource ask again once the time to confirm a provisional grant is over.
    fn ask_again_in(&self, length: Duration, resource: Resource) {
        // One pending question is enough: its answer says when to ask next.
        if !self.asking_again.lock().insert(resource.clone()) {
            return;
        }
        let (hints, asking_again) = (self.hints.clone(), Arc::clone(&self.asking_again));
        let over = {
            let _inside = self.runtime.enter();
            self.clock.sleep_until(self.clock.now().after(length))
        };
        self.runtime.spawn(async move {
            over.await;
            asking_again.lock().remove(&resource);
            hints.send(Hint::Changed { resource });
        });
    }

    fn on_overflow(&self) {
        self.hints.send(Hint::Missed);
        self.watchers.on_missed();
    }
}

/// Reads what others write to this instance, on the I/O thread and on the runtime of a caller that waits.
///
/// If only the I/O thread read the FIFO, a line would wake that thread and then the caller's, and each wake-up takes
/// longer than the rest of a hand-off. So a line wakes both threads, and whichever runs first reads it.
#[derive(Debug)]
pub(super) struct NotificationReader {
    own_presence: Arc<OwnPresence>,
    inbox: Arc<NotificationInbox>,
    /// The beginning of a line whose end has not arrived yet.
    unfinished: Mutex<Vec<u8>>,
    /// Whether there may be more to read; the reading thread checks this before it stops.
    read_again: AtomicBool,
    by_caller: Mutex<Option<AbortHandle>>,
}

impl NotificationReader {
    /// Starts to read on the I/O thread's runtime, for as long as the returned task is not aborted.
    pub(super) fn start(
        own_presence: &Arc<OwnPresence>,
        inbox: &Arc<NotificationInbox>,
        runtime: &Handle,
    ) -> io::Result<(Arc<Self>, AbortHandle)> {
        let reader = Arc::new(Self {
            own_presence: Arc::clone(own_presence),
            inbox: Arc::clone(inbox),
            unfinished: Mutex::default(),
            read_again: AtomicBool::new(false),
            by_caller: Mutex::default(),
        });
        let watched = reader.watch(|epoll| {
            let _context = runtime.enter();
            register(epoll)
        })?;
        let task = runtime.spawn(listen(Arc::downgrade(&reader), watched)).abort_handle();
        Ok((reader, task))
    }

    /// Reads on this runtime as well, unless the runtime of another caller already does.
    pub(super) fn read_on(self: &Arc<Self>, runtime: &Handle) {
        let mut by_caller = self.by_caller.lock();
        if by_caller.as_ref().is_some_and(|task| !task.is_finished()) || !can_read(runtime) {
            return;
        }
        let without_io = || io::Error::from(io::ErrorKind::Unsupported);
        let Ok(watched) = self.watch(|epoll| register_on(runtime, epoll).ok_or_else(without_io)) else { return };
        let listen = listen(Arc::downgrade(self), watched);
        // The task wakes rarely; tokio's cooperative budget would only delay it.
        *by_caller = Some(runtime.spawn(unconstrained(listen)).abort_handle());
    }

    /// Ends the task on the runtime of a caller.
    pub(super) fn stop_reading_on_caller(&self) {
        self.by_caller.lock().as_ref().map(AbortHandle::abort);
    }

    fn watch(&self, register: impl FnOnce(Arc<OwnedFd>) -> io::Result<Readable>) -> io::Result<WatchedFifo> {
        let epoll = Arc::new(epoll_of(self.own_presence.fifo(), EventFlags::IN)?);
        let closed_in_child = close_in_child(epoll.as_fd())?;
        // Keeps the descriptor open until `closed_in_child` is dropped, even if this fails.
        let readable = register(Arc::clone(&epoll))?;
        Ok(WatchedFifo { _closed_in_child: closed_in_child, readable })
    }

    /// Reads all available lines, on this thread or on the thread that is already reading. Returns whether it stopped
    /// before the end, because somebody writes as fast as this reads.
    fn read(&self) -> io::Result<bool> {
        self.read_again.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // 1. This thread asks for another read and finds the lock taken.  2. The thread that has it unlocks it.
        // 3. That thread finds `read_again` set and reads again.
        while self.read_again.load(Ordering::SeqCst) {
            let Some(mut unfinished) = self.unfinished.try_lock() else { return Ok(false) };
            self.read_again.store(false, Ordering::SeqCst);
            let stopped = self.read_lines(&mut unfinished)?;
            // A failed `try_lock` orders nothing by itself.
            drop(unfinished);
            fence(Ordering::SeqCst);
            if stopped {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads until the FIFO is empty, or as much as it can hold; returns whether there may be more.
    fn read_lines(&self, unfinished: &mut Vec<u8>) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let (mut since_empty, mut more) = (0, true);
        while more {
            match rustix::io::read(self.own_presence.fifo(), &mut bytes) {
                // End of file: only in a forked child, where `leasehold_fork` put an empty pipe in the FIFO's place.
                Ok(0) | Err(Errno::AGAIN) => more = false,
                Ok(length) => {
                    since_empty += length;
                    unfinished.extend_from_slice(&bytes[..length]);
                    take_lines(unfinished, |notification| self.inbox.deliver(notification));
                    // Compared first: `capacity` is a system call.
                    if since_empty >= SMALLEST_FIFO && since_empty >= self.own_presence.capacity() {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // A FIFO that was full held at least half of its capacity: the kernel starts a page when a line does not fit
        // into the last one, so that two neighbouring pages hold more than one page of lines. Writers drop what a full
        // FIFO refuses, so its reader has to find out.
        if since_empty >= SMALLEST_FIFO / 2 && since_empty >= self.own_presence.capacity() / 2 {
            self.inbox.on_overflow();
        }
        Ok(more)
    }
}

/// The FIFO, as one runtime watches it.
struct WatchedFifo {
    // Fields drop in this order. If the descriptor were closed first, its number could be reused, and a child would
    // close the wrong file.
    _closed_in_child: Registration,
    readable: Readable,
}

/// Reads whenever there is something to read, for as long as the instance lives.
async fn listen(reader: Weak<NotificationReader>, watched: WatchedFifo) {
    loop {
        match watched.readable.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            Err(error) => return report(&error),
        }
        let Some(reader) = reader.upgrade() else { return };
        if reader.own_presence.is_inherited() {
            // The FIFO and its lines belong to the parent: leak the inherited reader.
            std::mem::forget(reader);
            return pending().await;
        }
        loop {
            match reader.read() {
                // Others get their turn on this thread.
                Ok(true) => yield_now().await,
                Ok(false) => break,
                Err(error) => return report(&error),
            }
        }
    }
}

fn report(error: &io::Error) {
    tracing::warn!(%error, "cannot read notifications any more; waiters now learn of changes only when they renew");
}

/// Takes the whole lines out of what was read.
fn take_lines(pending: &mut Vec<u8>, mut take: impl FnMut(Notification)) {
    let Some(last) = pending.iter().rposition(|byte| *byte == b'\n') else {
        if pending.len() > LONGEST_LINE {
            pending.clear();
        }
        return;
    };
    pending[..last].split(|byte| *byte == b'\n').filter_map(Notification::parse).for_each(&mut take);
    pending.drain(..=last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Claim, EventKind, Holder, Timestamp};

    fn all() -> Vec<Notification> {
        let resource = Resource::new("a resource: with \"words\"").unwrap();
        let (id, fence) = (LeaseId::from_u128(7), Fence::new(9));
        let event = Event::new(
            Timestamp::from_micros(1),
            resource.clone(),
            Holder::new("me").unwrap(),
            Claim::EXCLUSIVE,
            EventKind::Acquired { fence },
        );
        vec![
            Notification::Granted { id, fence, provisional: false },
            Notification::Granted { id, fence, provisional: true },
            Notification::Evicted(id),
            Notification::Changed(resource.clone()),
            Notification::Provisional(Duration::from_secs(5), resource),
            Notification::Event(Box::new(event)),
            Notification::MissedEvent,
        ]
    }

    #[test]
    fn lines_read_back_in_whatever_pieces_they_come() {
        let text: String = all().iter().map(ToString::to_string).collect();
        for size in [1, 7, 4096] {
            let (mut pending, mut read) = (Vec::new(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                pending.extend_from_slice(piece);
                take_lines(&mut pending, |notification| read.push(notification));
            }
            assert_eq!(read, all());
            assert!(pending.is_empty());
        }
    }

    #[test]
    fn garbage_is_ignored_and_does_not_hide_what_follows() {
        let mut pending = b"what\n\xff\xfe\ngranted x y\nevicted\nchanged a\n".to_vec();
        let mut read = Vec::new();
        take_lines(&mut pending, |notification| read.push(notification));
        assert_eq!(read, [Notification::Changed(Resource::new("a").unwrap())]);
        let mut endless = vec![b'x'; LONGEST_LINE + 1];
        take_lines(&mut endless, |_| panic!("there is no line"));
        assert!(endless.is_empty());
    }
}
