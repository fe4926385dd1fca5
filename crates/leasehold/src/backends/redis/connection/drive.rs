//! Lets the thread that sends a command also write it to the socket, so that no other thread has to be woken for that.
//!
//! The library's multiplexed connection is driven by a future that writes what
//! was sent and hands out the answers. It normally runs as a task. Here it is
//! polled by a task of the I/O thread when the socket has something to read,
//! and by whoever sends, right after sending.

use std::{
    cell::Cell,
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::{
    runtime::Handle,
    sync::Notify,
    task::{AbortHandle, unconstrained},
    time,
};

use crate::{
    clock::{Clock, SystemClock},
    lease::Moment,
};

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
    waker: Waker,
    tasks: [AbortHandle; 2],
}

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Shared {
    /// `None` once the connection has ended.
    driver: Mutex<Option<Driver>>,
    /// The driver has to be polled, by whoever has it or gets it next.
    again: AtomicBool,
    signal: Arc<Signal>,
    unanswered: Mutex<Unanswered>,
    first_sent: Notify,
    /// An answer did not come in time.
    expired: AtomicBool,
}

/// The commands that are not known to be answered. One timer watches the first of them, so that
/// commands need none of their own.
#[derive(Default)]
struct Unanswered {
    commands: VecDeque<Sent>,
    sent: u64,
    is_watched: bool,
}

/// A command that is not known to be answered.
struct Sent {
    number: u64,
    limit: Duration,
    due: Moment,
    /// Nobody waits for the answer any more, so that it may have come unnoticed.
    is_abandoned: bool,
}

/// A command whose answer is waited for.
struct Expected<'a> {
    shared: &'a Shared,
    number: u64,
    is_answered: bool,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            self.shared.answered(self.number);
        } else {
            self.shared.abandoned(self.number);
        }
    }
}

/// Wakes the task that reads, unless the thread polls the driver itself.
#[derive(Default)]
struct Signal {
    reader: Mutex<Option<Waker>>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if SENDING.get() != Sending::No {
            SENDING.set(Sending::Sent);
            return;
        }
        let reader = self.reader.lock().clone();
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Drive {
    /// Drives a connection from a new task of this runtime, and from whoever sends by it. If an answer does not come in
    /// time, it ends the connection and notifies `give_up`.
    pub(super) fn new(
        connection: MultiplexedConnection,
        driver: impl Future<Output = ()> + Send + 'static,
        give_up: Arc<Notify>,
    ) -> Self {
        let signal = Arc::new(Signal::default());
        let waker = Waker::from(Arc::clone(&signal));
        let shared = Arc::new(Shared {
            driver: Mutex::new(Some(Box::pin(driver))),
            again: AtomicBool::new(true),
            signal,
            unanswered: Mutex::default(),
            first_sent: Notify::new(),
            expired: AtomicBool::new(false),
        });
        let (reading, its_waker) = (Arc::clone(&shared), waker.clone());
        let runtime = Handle::current();
        let reader = runtime.spawn(poll_fn(move |context| {
            *reading.signal.reader.lock() = Some(context.waker().clone());
            reading.drive(&its_waker)
        }));
        let watchdog = runtime.spawn(Arc::clone(&shared).watch(connection, give_up));
        Self { shared, waker, tasks: [reader.abort_handle(), watchdog.abort_handle()] }
    }

    /// Ends the connection: calls that wait for answers fail now.
    pub(super) fn end(&self) {
        self.shared.end();
    }

    /// Whether the connection ended because an answer did not come in time.
    pub(super) fn has_expired(&self) -> bool {
        self.shared.expired.load(Ordering::SeqCst)
    }

    /// Polls a future that sends by the connection, and writes what it has sent. Where the answer does not come within
    /// the limit, the connection ends.
    pub(super) async fn send<T>(&self, limit: Duration, sending: impl Future<Output = T>) -> T {
        let mut sending = pin!(sending);
        let number = self.shared.expect_answer(limit);
        let mut expected = Expected { shared: &self.shared, number, is_answered: false };
        let polled = poll_fn(|context| {
            SENDING.set(Sending::Begun);
            let polled = sending.as_mut().poll(context);
            if SENDING.replace(Sending::No) == Sending::Sent {
                let _ended = self.shared.drive(&self.waker);
            }
            polled
        });
        // A task that has spent its cooperative budget would leave the command unwritten until it yields.
        let answer = unconstrained(polled).await;
        expected.is_answered = true;
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
        unanswered.commands.push_back(Sent { number, limit, due, is_abandoned: false });
        let is_watched = std::mem::replace(&mut unanswered.is_watched, true);
        drop(unanswered);
        if !is_watched {
            self.first_sent.notify_one();
        }
        number
    }

    /// Answers come in the order of their commands: those before were answered as well, even if nobody waited for it.
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
    async fn watch(self: Arc<Self>, connection: MultiplexedConnection, give_up: Arc<Notify>) {
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
                give_up.notify_one();
                return;
            }
        }
    }

    /// Forgets the first commands as far as nobody waits for their answers; returns the limit of the last of them.
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
        // It must not keep the driver, or a connection that is dropped meanwhile would stay with it.
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

    /// Polls the driver, on this thread or on the one that polls it right now; ready when the connection has ended.
    fn drive(&self, waker: &Waker) -> Poll<()> {
        self.again.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // 1. This thread asks for another poll and finds the driver taken.  2. The thread that has it lets go.
        // 3. It looks whether another poll is asked for, and polls again.
        while self.again.load(Ordering::SeqCst) {
            let Some(mut driver) = self.driver.try_lock() else { return Poll::Pending };
            self.again.store(false, Ordering::SeqCst);
            let Some(polled) = driver.as_mut() else { return Poll::Ready(()) };
            if polled.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
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
    }
}
