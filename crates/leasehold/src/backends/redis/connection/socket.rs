//! A socket that is read where answers are waited for: by the runtime of a caller, or by the I/O thread.
//!
//! An answer that the I/O thread reads wakes that thread, then a thread of the
//! caller's runtime, and often a second one: more than the call itself costs.
//! So the runtime that sends reads the answers, too, as long as it does so
//! promptly. Each reader watches the socket through an epoll instance of its
//! own, and the socket reports to one of them at a time. A runtime is one of
//! tokio, or an event loop of another kind.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::future::select_ok;
use leasehold_fork::{Registration, close_in_child};
use parking_lot::Mutex;
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream, lookup_host},
    runtime::{self, Handle},
    task::AbortHandle,
};

use super::super::options::Address;
use crate::{
    backend::coalesce::{RestingSender, continue_here},
    clock::{Clock, SystemClock},
    event_loop::{EventLoop, LoopEpoll, WatchGuard},
    lease::Moment,
    readable::{Readable, can_read, epoll_of, register, register_on},
    threads::CallersRuntime,
};

/// How long a runtime that left answers unread is not asked to read again: little at first, since on a busy machine
/// any thread may have to wait for a processor; more each time, since a runtime that blocks delays answers each time.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A runtime that was not late for this many times its last pause begins with the first pause again.
const PAUSES_TO_FORGIVE: u32 = 8;
/// The most that is read at once.
const MAX_READ_BYTES: usize = 16 * 1024;
/// The most reads in a row before other work gets a turn.
const MAX_READS: u32 = 64;

/// A socket, and who reads it.
#[derive(Debug)]
pub(super) struct Socket {
    // Fields drop in this order: first unregister the descriptors, then close them. Otherwise a forked child could
    // close a descriptor that has got the same number since.
    _closed_in_child: [Registration; 2],
    by_io_thread: Readable,
    fd: OwnedFd,
    readers: Mutex<Readers>,
    is_output_blocked: AtomicBool,
    /// The last read got less than it had room for, so that nothing is left.
    is_drained: AtomicBool,
}

#[derive(Debug, Default)]
struct Readers {
    /// The runtime that reads; `None` while the I/O thread does.
    current: Option<Arc<Reader>>,
    /// Every runtime that ever read and still exists.
    known: Vec<Arc<Reader>>,
}

/// A runtime of a caller, which can read the socket.
#[derive(Debug)]
pub(super) struct Reader {
    runtime: RuntimeId,
    epoll: ReaderEpoll,
    /// How often its task has run.
    turns: AtomicU64,
    /// How often something was sent from this runtime while it read.
    sends: AtomicU64,
    /// Batch senders that wait while their answered callers run.
    deferred: Mutex<Vec<Arc<RestingSender>>>,
    pause: Mutex<Pause>,
    task: Mutex<Option<ReadTaskHandle>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum RuntimeId {
    Tokio(runtime::Id),
    EventLoop(u64),
}

impl RuntimeId {
    fn of(runtime: &CallersRuntime) -> Self {
        match runtime {
            CallersRuntime::Tokio(runtime) => Self::Tokio(runtime.id()),
            CallersRuntime::EventLoop(event_loop) => Self::EventLoop(event_loop.id()),
        }
    }
}

/// The epoll instance by which a runtime watches the socket.
#[derive(Debug)]
enum ReaderEpoll {
    Tokio {
        // Dropped before the descriptor.
        _closed_in_child: Registration,
        epoll: Arc<OwnedFd>,
    },
    /// That of all that the event loop watches; the socket has this key there.
    EventLoop { epoll: Arc<LoopEpoll>, key: u64 },
}

impl ReaderEpoll {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tokio { epoll, .. } => epoll.as_fd(),
            Self::EventLoop { epoll, .. } => epoll.as_fd(),
        }
    }

    fn key(&self) -> u64 {
        match self {
            Self::Tokio { .. } => 0,
            Self::EventLoop { key, .. } => *key,
        }
    }
}

/// Where the task of a reader is to run.
pub(super) enum TaskPlace {
    Tokio(Handle, Readable),
    /// Under this key.
    EventLoop(EventLoop, u64),
}

/// A running read task. `end` stops it; so does dropping the handle of an event loop, but not that of tokio.
#[derive(Debug)]
pub(super) enum ReadTaskHandle {
    Tokio(AbortHandle),
    EventLoop(WatchGuard),
}

impl ReadTaskHandle {
    fn end(self) {
        match self {
            Self::Tokio(task) => task.abort(),
            Self::EventLoop(watched) => drop(watched),
        }
    }
}

/// The last time for which a runtime was not asked to read.
#[derive(Debug, Default)]
struct Pause {
    until: Moment,
    length: Duration,
}

impl Pause {
    /// Begins another pause.
    fn extend(&mut self, now: Moment) {
        let is_forgiven = now >= self.until.after(self.length * PAUSES_TO_FORGIVE);
        self.length = if is_forgiven { FIRST_PAUSE } else { (self.length * 2).min(LONGEST_PAUSE) };
        self.until = now.after(self.length);
    }
}

impl Socket {
    /// Connects; must be called on the I/O thread's runtime, which reads the socket at first. Returns `None` for an
    /// address that only the client library can connect to.
    pub(super) async fn connect(address: &Address) -> io::Result<Option<Arc<Self>>> {
        let connected: OwnedFd = match address {
            Address::Tcp { host, port } => connect_tcp(host, *port).await?.into_std()?.into(),
            Address::Unix(path) => UnixStream::connect(path).await?.into_std()?.into(),
            Address::Info(_) => return Ok(None),
        };
        Self::new(connected).map(Some)
    }

    fn new(fd: OwnedFd) -> io::Result<Arc<Self>> {
        let epoll = Arc::new(epoll_of(&fd, EventFlags::IN)?);
        let closed_in_child = [close_in_child(fd.as_fd())?, close_in_child(epoll.as_fd())?];
        Ok(Arc::new(Self {
            _closed_in_child: closed_in_child,
            by_io_thread: register(epoll)?,
            fd,
            readers: Mutex::default(),
            is_output_blocked: AtomicBool::new(false),
            is_drained: AtomicBool::new(false),
        }))
    }

    /// Pending until the socket reports to the I/O thread, which wakes the driver.
    fn poll_io_thread(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.by_io_thread.poll_read_ready(context))?.clear_ready();
        Poll::Ready(Ok(()))
    }

    /// Lets the caller's runtime read, unless another one does. Returns whether it was the I/O thread that read before.
    ///
    /// The caller polls the driver afterwards, since nothing reports what is there already. For a runtime that is not
    /// known yet, `start` begins a task that drives the connection when the descriptor is readable.
    pub(super) fn read_by(
        &self,
        runtime: &CallersRuntime,
        start: impl FnOnce(&Arc<Reader>, TaskPlace) -> ReadTaskHandle,
    ) -> bool {
        let id = RuntimeId::of(runtime);
        let known = {
            let readers = self.readers.lock();
            if let Some(reader) = &readers.current {
                if reader.runtime == id {
                    reader.sends.fetch_add(1, Ordering::Relaxed);
                }
                return false;
            }
            readers.known.iter().find(|reader| reader.runtime == id).cloned()
        };
        let Some(reader) = known.or_else(|| self.add_runtime(runtime, start)) else { return false };
        if SystemClock.now() < reader.pause.lock().until {
            return false;
        }
        let mut readers = self.readers.lock();
        // The runtime may have ended meanwhile, or another one began to read.
        let is_known = readers.known.iter().any(|known| Arc::ptr_eq(known, &reader));
        if readers.current.is_some() || !is_known || self.set_reader_interest(&reader, EventFlags::IN).is_err() {
            return false;
        }
        reader.sends.fetch_add(1, Ordering::Relaxed);
        readers.current = Some(reader);
        self.set_io_thread_interest(&readers);
        true
    }

    /// Starts a task on a runtime that has not read before. It may end at once, on a runtime that is shut down, and is
    /// then forgotten within this call: no lock is held.
    fn add_runtime(
        &self,
        runtime: &CallersRuntime,
        start: impl FnOnce(&Arc<Reader>, TaskPlace) -> ReadTaskHandle,
    ) -> Option<Arc<Reader>> {
        let (epoll, place) = self.watch_on(runtime)?;
        let reader = Arc::new(Reader {
            runtime: RuntimeId::of(runtime),
            epoll,
            turns: AtomicU64::new(0),
            sends: AtomicU64::new(0),
            deferred: Mutex::default(),
            pause: Mutex::default(),
            task: Mutex::default(),
        });
        {
            let mut readers = self.readers.lock();
            if let Some(other) = readers.known.iter().find(|known| known.runtime == reader.runtime) {
                return Some(Arc::clone(other));
            }
            readers.known.push(Arc::clone(&reader));
        }
        let task = start(&reader, place);
        *reader.task.lock() = Some(task);
        Some(reader)
    }

    /// Lets a runtime watch the socket, without any event for now; returns `None` if it has no I/O.
    fn watch_on(&self, runtime: &CallersRuntime) -> Option<(ReaderEpoll, TaskPlace)> {
        match runtime {
            CallersRuntime::Tokio(runtime) => {
                if !can_read(runtime) {
                    return None;
                }
                let epoll = Arc::new(epoll_of(&self.fd, EventFlags::empty()).ok()?);
                let closed_in_child = close_in_child(epoll.as_fd()).ok()?;
                let readable = register_on(runtime, Arc::clone(&epoll))?;
                let epoll = ReaderEpoll::Tokio { _closed_in_child: closed_in_child, epoll };
                Some((epoll, TaskPlace::Tokio(runtime.clone(), readable)))
            }
            CallersRuntime::EventLoop(event_loop) => {
                let (epoll, key) = (Arc::clone(event_loop.epoll()), event_loop.new_key());
                epoll::add(&epoll, &self.fd, EventData::new_u64(key), EventFlags::empty()).ok()?;
                Some((ReaderEpoll::EventLoop { epoll, key }, TaskPlace::EventLoop(event_loop.clone(), key)))
            }
        }
    }

    /// The runtime that reads, if it is not the I/O thread's.
    pub(super) fn reader(&self) -> Option<Arc<Reader>> {
        self.readers.lock().current.clone()
    }

    /// Lets the I/O thread read; returns the runtime that read before.
    ///
    /// The caller polls the driver afterwards, since nothing reports what is there already.
    pub(super) fn reclaim(&self) -> Option<Arc<Reader>> {
        let mut readers = self.readers.lock();
        let reader = readers.current.take()?;
        let _closed = self.set_reader_interest(&reader, EventFlags::empty());
        self.set_io_thread_interest(&readers);
        Some(reader)
    }

    /// Forgets a runtime that ends. The caller wakes the driver afterwards, as after [`Self::reclaim`].
    pub(super) fn forget(&self, reader: &Arc<Reader>) {
        // An event loop would be told again and again that the connection has ended.
        let _not_there = epoll::delete(reader.epoll.fd(), &self.fd);
        let mut readers = self.readers.lock();
        readers.known.retain(|known| !Arc::ptr_eq(known, reader));
        if readers.current.take_if(|current| Arc::ptr_eq(current, reader)).is_some() {
            self.set_io_thread_interest(&readers);
        }
    }

    /// Whether it is this runtime that reads.
    pub(super) fn is_read_by(&self, reader: &Arc<Reader>) -> bool {
        self.readers.lock().current.as_ref().is_some_and(|current| Arc::ptr_eq(current, reader))
    }

    /// Has the next read ask the kernel. What comes after a short read raises a new event, but perhaps for another reader.
    pub(super) fn read_again(&self) {
        self.is_drained.store(false, Ordering::Relaxed);
    }

    /// Whether something has come that nobody has read.
    pub(super) fn has_unread(&self) -> bool {
        rustix::io::ioctl_fionread(&self.fd).is_ok_and(|bytes| bytes > 0)
    }

    /// Ends the tasks of all runtimes that can read. One that is blocked now ends its task later, so
    /// the deferred senders are resumed now.
    pub(super) fn abort_readers(&self) {
        let known = self.readers.lock().known.clone();
        for reader in known {
            let task = reader.task.lock().take();
            if let Some(task) = task {
                task.end();
            }
            reader.resume_deferred();
        }
    }

    fn set_io_thread_interest(&self, readers: &Readers) {
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, readers.current.is_none());
        events.set(EventFlags::OUT, self.is_output_blocked.load(Ordering::SeqCst));
        let _never_fails_for_what_was_added = self.set_interest(self.by_io_thread.get_ref(), 0, events);
    }

    fn set_reader_interest(&self, reader: &Reader, events: EventFlags) -> rustix::io::Result<()> {
        self.set_interest(reader.epoll.fd(), reader.epoll.key(), events)
    }

    /// Sets which events an epoll instance reports. Data that arrived before may not be reported again.
    fn set_interest(&self, epoll: impl AsFd, key: u64, events: EventFlags) -> rustix::io::Result<()> {
        epoll::modify(epoll, &self.fd, EventData::new_u64(key), events)
    }

    /// Sets whether a write did not fit and the I/O thread has to continue it; returns whether this has changed.
    fn set_output_blocked(&self, is_blocked: bool) -> bool {
        let is_new = self.is_output_blocked.swap(is_blocked, Ordering::SeqCst) != is_blocked;
        if is_new {
            self.set_io_thread_interest(&self.readers.lock());
        }
        is_new
    }
}

/// Connects to the address of the host that answers first.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = lookup_host((host, port)).await?;
    let connecting: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if connecting.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address")));
    }
    let (stream, _others) = select_ok(connecting).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// What a runtime that reads has done.
pub(super) struct Activity {
    runtime: RuntimeId,
    turns: u64,
    sends: u64,
}

impl Reader {
    pub(super) fn activity(&self) -> Activity {
        let (turns, sends) = (self.turns.load(Ordering::Relaxed), self.sends.load(Ordering::Relaxed));
        Activity { runtime: self.runtime, turns, sends }
    }

    /// Whether it has both read and sent, or another runtime reads.
    pub(super) fn has_progressed_since(&self, seen: &Activity) -> bool {
        let now = self.activity();
        now.runtime != seen.runtime || now.turns != seen.turns && now.sends != seen.sends
    }

    /// Whether its task has run.
    pub(super) fn has_run_since(&self, seen: &Activity) -> bool {
        self.activity().turns != seen.turns
    }

    /// Passes the runtime over for a while: it left something unread.
    pub(super) fn mark_late(&self) {
        self.pause.lock().extend(SystemClock.now());
    }

    pub(super) fn count_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds senders to those that are resumed later.
    pub(super) fn defer(&self, mut senders: Vec<Arc<RestingSender>>) {
        self.deferred.lock().append(&mut senders);
    }

    /// Whether a sender still waits to be resumed.
    pub(super) fn has_deferred(&self) -> bool {
        self.deferred.lock().iter().any(|sender| !sender.is_resumed())
    }

    /// Resumes the deferred senders, here or on the I/O thread if this runtime is late.
    pub(super) fn resume_deferred(&self) {
        let deferred = std::mem::take(&mut *self.deferred.lock());
        if deferred.is_empty() {
            return;
        }
        continue_here(|| deferred.iter().for_each(|sender| sender.resume()));
    }
}

/// The two directions of the socket, for the driver of the connection.
///
/// The I/O thread wakes a pending write, and a pending read unless a caller's runtime reads: the task of that runtime
/// then polls the driver.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Arc<Socket>,
    /// Reads since there was nothing to read.
    reads: u32,
}

impl Stream {
    pub(super) fn new(socket: &Arc<Socket>) -> Self {
        Self { socket: Arc::clone(socket), reads: 0 }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining().min(MAX_READ_BYTES);
        self.reads += 1;
        if self.reads > MAX_READS {
            // The I/O thread goes on, and does other things in between.
            self.reads = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            // The last read was short, so another one would find nothing.
            if self.socket.is_drained.swap(false, Ordering::Relaxed) {
                self.reads = 0;
                ready!(self.socket.poll_io_thread(context))?;
            }
            match rustix::net::recv(&self.socket.fd, buffer.initialize_unfilled_to(room), RecvFlags::empty()) {
                Ok((received, _)) => {
                    self.socket.is_drained.store(received < room, Ordering::Relaxed);
                    buffer.advance(received);
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.reads = 0;
                    ready!(self.socket.poll_io_thread(context))?;
                }
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match rustix::net::send(&self.socket.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.socket.set_output_blocked(false);
                    return Poll::Ready(Ok(sent));
                }
                Err(Errno::INTR) => {}
                // Try once more: epoll does not report space that became free before the interest was set.
                Err(Errno::AGAIN) if self.socket.set_output_blocked(true) => {}
                Err(Errno::AGAIN) => ready!(self.socket.poll_io_thread(context))?,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&self.socket.fd, Shutdown::Write).map_err(io::Error::from))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The descriptor may stay open for a while, in calls that still know the connection.
        let _closed_by_the_server = rustix::net::shutdown(&self.socket.fd, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_late_again_and_again_pauses_ever_longer() {
        let (mut pause, mut now) = (Pause::default(), SystemClock.now());
        let mut lengths = Vec::new();
        for _ in 0..9 {
            pause.extend(now);
            lengths.push(pause.length.as_millis());
            now = pause.until.after(Duration::from_millis(1));
        }
        assert_eq!(lengths, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        pause.extend(pause.until.after(LONGEST_PAUSE * PAUSES_TO_FORGIVE));
        assert_eq!(pause.length, FIRST_PAUSE, "it has read for long");
    }
}
