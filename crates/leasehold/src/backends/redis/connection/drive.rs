//! Lets the thread that sends a command also write it to the socket, so that no other thread has to be woken for that.
//!
//! The library's multiplexed connection is driven by a future that writes what
//! was sent and hands out the answers. It normally runs as a task. Here it is
//! polled by whoever sends, right after sending, and by whoever reads the
//! socket (`socket.rs`): a task of the caller's runtime, or of the I/O thread.

use std::{
    cell::Cell,
    collections::VecDeque,
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering, fence},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use redis::{AsyncConnectionConfig, ConnectionInfo, RedisError, aio::MultiplexedConnection};
use tokio::{
    runtime::Handle,
    sync::Notify,
    task::{AbortHandle, unconstrained, yield_now},
    time,
};

use super::{
    super::options::Address,
    socket::{ReadTaskHandle, Reader, Socket, Stream, TaskPlace},
};
use crate::{
    backend::coalesce::{continue_here, defer_here},
    clock::{Clock, SystemClock},
    event_loop::DescriptorReader,
    lease::Moment,
    readable::Readable,
    threads::callers_runtime,
};

/// How often to check the reading runtime; without progress the I/O thread reads again.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// A runtime that always finds something to read does other work after this many wake-ups.
const WAKEUPS_BEFORE_YIELD: u32 = 32;

thread_local! {
    /// What this thread does with the driver's wake-ups.
    static SENDING: Cell<Sending> = const { Cell::new(Sending::No) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    No,
    /// It polls the driver itself once it has sent.
    Begun,
    /// It has sent something.
    Sent,
}

/// The driver of a connection; the connection ends when it is dropped.
pub(super) struct Drive {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 3],
}

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Shared {
    /// Fork generation of the connecting process.
    generation: u32,
    /// `None` once the connection has ended.
    driver: Mutex<Option<Driver>>,
    /// The driver has to be polled, by whoever has it or gets it next.
    poll_again: AtomicBool,
    socket: Arc<Socket>,
    driver_waker: Arc<DriverWaker>,
    /// `driver_waker` as a waker, for polling the driver.
    waker: Waker,
    /// A caller's runtime began to read.
    reader_changed: Notify,
    unanswered: Mutex<Unanswered>,
    first_sent: Notify,
    /// An answer did not come in time.
    expired: AtomicBool,
}

/// The commands that are not known to be answered. One timer watches the first of them, so that
/// commands need none of their own.
#[derive(Default)]
struct Unanswered {
    commands: VecDeque<UnansweredCommand>,
    sent: u64,
    is_watched: bool,
}

/// A command that is not known to be answered.
struct UnansweredCommand {
    number: u64,
    limit: Duration,
    due: Moment,
    /// Nobody waits for the answer any more, so that nobody notices if it comes.
    is_abandoned: bool,
}

/// A command whose answer is waited for; dropping this notes whether it came.
struct ReplyGuard<'a> {
    shared: &'a Shared,
    number: u64,
    is_answered: bool,
}

impl Drop for ReplyGuard<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            self.shared.answered(self.number);
        } else {
            self.shared.abandoned(self.number);
        }
    }
}

/// Wakes the I/O thread's task, unless the thread polls the driver itself.
#[derive(Default)]
struct DriverWaker {
    io_task: Mutex<Option<Waker>>,
}

/// Reads the socket on the runtime of a caller: as a task, or whenever an event loop finds it readable.
struct ReadTask {
    shared: Weak<Shared>,
    reader: Arc<Reader>,
    generation: u32,
}

impl ReadTask {
    /// Reads whenever there is something to read, until the connection ends.
    async fn run(&self, readable: Readable) {
        let mut wakeups = 0;
        loop {
            let Ok(mut ready) = readable.readable().await else { return };
            ready.clear_ready();
            if self.generation != leasehold_fork::generation() {
                // The socket and its locks are the parent's.
                return pending().await;
            }
            self.reader.count_turn();
            wakeups += 1;
            if wakeups == WAKEUPS_BEFORE_YIELD {
                wakeups = 0;
                yield_now().await;
            }
            let Some(mut turns) = self.read_now() else { return };
            while turns > 0 && self.reader.has_deferred() {
                turns -= 1;
                // Let the tasks of the callers that were just woken run first.
                yield_now().await;
                self.reader.count_turn();
            }
            self.reader.resume_deferred();
        }
    }

    /// Reads what has come; returns for how many turns the answered callers may run before the deferred senders are
    /// resumed, or `None` if the connection has ended.
    fn read_now(&self) -> Option<usize> {
        let shared = self.shared.upgrade()?;
        let (driven, deferred) = defer_here(|| shared.drive());
        self.reader.defer(deferred.senders);
        if driven.is_ready() {
            // `Drop` resumes the senders.
            return None;
        }
        // Nobody monitors a runtime that no longer reads; if it blocked, the deferred senders would wait too.
        Some(if shared.socket.is_read_by(&self.reader) { deferred.turns } else { 0 })
    }
}

impl DescriptorReader for ReadTask {
    fn read(&self) -> bool {
        if self.generation != leasehold_fork::generation() {
            // The socket and its locks are the parent's.
            return true;
        }
        self.reader.count_turn();
        let turns = self.read_now();
        if turns == Some(0) {
            self.reader.resume_deferred();
        }
        turns.is_some()
    }

    fn waits_for_callers(&self) -> bool {
        self.reader.has_deferred()
    }

    fn callers_ran(&self) {
        self.reader.count_turn();
        self.reader.resume_deferred();
    }
}

impl Drop for ReadTask {
    /// Hands reading back to the I/O thread. Also runs when the runtime is dropped.
    fn drop(&mut self) {
        if self.generation != leasehold_fork::generation() {
            return;
        }
        if let Some(shared) = self.shared.upgrade() {
            shared.socket.forget(&self.reader);
            shared.waker.wake_by_ref();
        }
        self.reader.resume_deferred();
    }
}

impl Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if SENDING.get() != Sending::No {
            SENDING.set(Sending::Sent);
            return;
        }
        let io_task = self.io_task.lock().clone();
        if let Some(io_task) = io_task {
            io_task.wake();
        }
    }
}

/// Connects; returns `None` for an address that only the client library can connect to.
pub(super) async fn connect(
    address: &Address,
    info: &ConnectionInfo,
    config: &AsyncConnectionConfig,
    reconnect: &Arc<Notify>,
) -> Result<Option<(MultiplexedConnection, Drive)>, RedisError> {
    let Some(socket) = Socket::connect(address).await? else { return Ok(None) };
    let (settings, stream) = (info.redis_settings(), Stream::new(&socket));
    let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config.clone()).await?;
    let drive = Drive::new(connection.clone(), driver, socket, Arc::clone(reconnect));
    Ok(Some((connection, drive)))
}

impl Drive {
    /// Drives a connection from a new task of this runtime, and from whoever sends by it. If an answer does not come in
    /// time, it ends the connection and notifies `reconnect`.
    fn new(
        connection: MultiplexedConnection,
        driver: impl Future<Output = ()> + Send + 'static,
        socket: Arc<Socket>,
        reconnect: Arc<Notify>,
    ) -> Self {
        let driver_waker = Arc::new(DriverWaker::default());
        let shared = Arc::new(Shared {
            generation: leasehold_fork::generation(),
            driver: Mutex::new(Some(Box::pin(driver))),
            poll_again: AtomicBool::new(true),
            socket,
            waker: Waker::from(Arc::clone(&driver_waker)),
            driver_waker,
            reader_changed: Notify::new(),
            unanswered: Mutex::default(),
            first_sent: Notify::new(),
            expired: AtomicBool::new(false),
        });
        let runtime = Handle::current();
        let reading = Arc::clone(&shared);
        let io_task = runtime.spawn(poll_fn(move |context| {
            *reading.driver_waker.io_task.lock() = Some(context.waker().clone());
            reading.read()
        }));
        let watchdog = runtime.spawn(Arc::clone(&shared).enforce_answer_limits(connection, reconnect));
        let reclaimer = runtime.spawn(Arc::clone(&shared).reclaim_idle_readers());
        Self { shared, tasks: [io_task.abort_handle(), watchdog.abort_handle(), reclaimer.abort_handle()] }
    }

    /// Ends the connection: calls that wait for answers fail now.
    pub(super) fn end(&self) {
        self.shared.end();
    }

    /// Whether the connection ended because an answer did not come in time.
    pub(super) fn has_expired(&self) -> bool {
        self.shared.expired.load(Ordering::SeqCst)
    }

    /// Polls a future that sends by the connection, and writes what it has sent. If the answer does not come within the
    /// limit, the connection ends.
    pub(super) async fn send<T>(&self, limit: Duration, sending: impl Future<Output = T>) -> T {
        let mut sending = pin!(sending);
        let number = self.shared.expect_answer(limit);
        let mut reply_guard = ReplyGuard { shared: &self.shared, number, is_answered: false };
        let polled = poll_fn(|context| {
            SENDING.set(Sending::Begun);
            let polled = sending.as_mut().poll(context);
            if SENDING.replace(Sending::No) == Sending::Sent {
                let is_new_reader = self.shared.read_by_caller();
                let _ended = self.shared.drive();
                if is_new_reader {
                    // Not before the command is on its way: the I/O thread would compete with the server for a processor.
                    self.shared.reader_changed.notify_one();
                }
            }
            polled
        });
        // A task that has spent its cooperative budget would leave the command unwritten until it yields.
        let answer = unconstrained(polled).await;
        reply_guard.is_answered = true;
        answer
    }
}

impl Shared {
    /// Begins to wait for an answer; returns the number of its command.
    fn expect_answer(&self, limit: Duration) -> u64 {
        let due = SystemClock.now().after(limit);
        let mut unanswered = self.unanswered.lock();
        unanswered.sent += 1;
        let number = unanswered.sent;
        unanswered.commands.push_back(UnansweredCommand { number, limit, due, is_abandoned: false });
        let is_watched = std::mem::replace(&mut unanswered.is_watched, true);
        drop(unanswered);
        if !is_watched {
            self.first_sent.notify_one();
        }
        number
    }

    /// Notes that a command was answered. Answers come in the order of their commands, so that all earlier ones were
    /// answered, too, even if nobody waited for them.
    fn answered(&self, number: u64) {
        let mut unanswered = self.unanswered.lock();
        while unanswered.commands.front().is_some_and(|earlier| earlier.number <= number) {
            unanswered.commands.pop_front();
        }
    }

    fn abandoned(&self, number: u64) {
        let mut unanswered = self.unanswered.lock();
        if let Some(sent) = unanswered.commands.iter_mut().find(|sent| sent.number == number) {
            sent.is_abandoned = true;
        }
    }

    /// Ends the connection when an answer does not come in time.
    async fn enforce_answer_limits(self: Arc<Self>, connection: MultiplexedConnection, reconnect: Arc<Notify>) {
        loop {
            let due = {
                let mut unanswered = self.unanswered.lock();
                unanswered.is_watched = !unanswered.commands.is_empty();
                unanswered.commands.front().map(|sent| sent.due)
            };
            let Some(due) = due else {
                self.first_sent.notified().await;
                continue;
            };
            let left = due.since(SystemClock.now());
            if !left.is_zero() {
                time::sleep(left).await;
            } else if let Some(limit) = self.take_abandoned() {
                self.ping(connection.clone(), limit);
            } else {
                self.expired.store(true, Ordering::SeqCst);
                self.end();
                reconnect.notify_one();
                return;
            }
        }
    }

    /// Removes abandoned commands from the front; returns the limit of the last one removed.
    fn take_abandoned(&self) -> Option<Duration> {
        let mut unanswered = self.unanswered.lock();
        let mut limit = None;
        while unanswered.commands.front().is_some_and(|first| first.is_abandoned) {
            limit = unanswered.commands.pop_front().map(|first| first.limit);
        }
        limit
    }

    /// Finds out whether the server still answers.
    fn ping(self: &Arc<Self>, mut connection: MultiplexedConnection, limit: Duration) {
        // A strong reference would keep the driver, and with it the connection, even if `Drive` is dropped meanwhile.
        let (shared, number) = (Arc::downgrade(self), self.expect_answer(limit));
        Handle::current().spawn(async move {
            let _refused_is_an_answer_too = connection.send_packed_command(&redis::cmd("PING")).await;
            if let Some(shared) = shared.upgrade() {
                shared.answered(number);
            }
        });
    }

    fn end(&self) {
        let _dropped_after_the_lock = self.driver.lock().take();
    }

    /// Lets the runtime of the caller that sends read the answers. Returns whether the I/O thread read them before, which
    /// has to monitor that runtime from now on.
    fn read_by_caller(self: &Arc<Self>) -> bool {
        let Some(runtime) = callers_runtime() else { return false };
        let start = |reader: &Arc<Reader>, place| {
            let (shared, reader) = (Arc::downgrade(self), Arc::clone(reader));
            let read_task = ReadTask { shared, reader, generation: self.generation };
            match place {
                // Once a task has spent its cooperative budget, tokio leaves it to the runtime of that task to wake the
                // driver, even if that runtime is blocked.
                TaskPlace::Tokio(runtime, readable) => {
                    let task = runtime.spawn(unconstrained(async move { read_task.run(readable).await }));
                    ReadTaskHandle::Tokio(task.abort_handle())
                }
                TaskPlace::EventLoop(event_loop, key) => {
                    ReadTaskHandle::EventLoop(event_loop.add(key, Arc::new(read_task)))
                }
            }
        };
        self.socket.read_by(&runtime, start)
    }

    /// Has the I/O thread read again once a runtime no longer sends and reads: it is done, it is blocked, or the server
    /// is far away.
    async fn reclaim_idle_readers(self: Arc<Self>) {
        loop {
            self.reader_changed.notified().await;
            let mut seen = None;
            while let Some(reader) = self.socket.reader()
                && seen.as_ref().is_none_or(|seen| reader.has_progressed_since(seen))
            {
                seen = Some(reader.activity());
                time::sleep(CHECK_INTERVAL).await;
            }
            // An answer that arrived just now does not show that the runtime is late, so wait once more.
            let late = match self.socket.reader() {
                Some(reader) if self.socket.has_unread() => {
                    let seen = reader.activity();
                    time::sleep(CHECK_INTERVAL).await;
                    (!reader.has_run_since(&seen)).then_some(reader)
                }
                _ => None,
            };
            if let Some(reader) = self.socket.reclaim() {
                reader.resume_deferred();
                if self.read().is_ready() {
                    return;
                }
            }
            if let Some(reader) = late {
                reader.mark_late();
            }
        }
    }

    /// Reads what has come, and hands out the answers on this thread; ready when the connection has ended.
    fn read(&self) -> Poll<()> {
        continue_here(|| self.drive())
    }

    /// Polls the driver here, or has the thread that polls it now poll once more; ready when the connection has ended.
    fn drive(&self) -> Poll<()> {
        if self.generation != leasehold_fork::generation() {
            // The runtime of a caller lives on in a forked child, where nobody may read what is the parent's.
            return Poll::Pending;
        }
        self.poll_again.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // 1. This thread asks for another poll and finds the driver taken.  2. The thread that has it lets go.
        // 3. It looks whether another poll is asked for, and polls again.
        while self.poll_again.load(Ordering::SeqCst) {
            let Some(mut driver) = self.driver.try_lock() else { return Poll::Pending };
            self.poll_again.store(false, Ordering::SeqCst);
            self.socket.read_again();
            let Some(polled) = driver.as_mut() else { return Poll::Ready(()) };
            if polled.as_mut().poll(&mut Context::from_waker(&self.waker)).is_ready() {
                let ended = driver.take();
                drop(driver);
                drop(ended);
                return Poll::Ready(());
            }
            // A failed `try_lock` orders nothing by itself.
            drop(driver);
            fence(Ordering::SeqCst);
        }
        Poll::Pending
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.shared.socket.abort_readers();
    }
}
