//! The connection that listens: grants and evictions for this instance, events for
//! followers, and, where leases end with a connection, the connection they end with.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Interval, interval, sleep, timeout},
};
use tokio_postgres::{Notification, types::Type};

use crate::{
    backend::{Belief, EventHub, EventStream, Hint, HintSender, Session},
    backends::postgres::{
        SILENCE_LIMIT,
        calls::Call,
        connection::{Connection, Connector, Notifications},
        decode,
        errors::{Failure, Kind},
        options::Life,
    },
    lease::Names,
};

/// A registration as a follower lasts a minute.
const FOLLOW_AGAIN: Duration = Duration::from_secs(20);

/// One that failed is tried again after this. While it waits for a lock, it delays grants.
const FOLLOW_SOON: Duration = Duration::from_secs(3);

/// How the listener is.
#[derive(Clone, Debug)]
enum State {
    Down(Option<Failure>),
    Up { connection: Arc<Connection>, session: Option<i32>, following: bool },
}

/// The connections that leases of this instance end with.
#[derive(Clone, Debug, Default)]
pub(in crate::backends::postgres) struct Sessions {
    pub(in crate::backends::postgres) now: Option<i32>,
    /// What lived by these is not believed any more; to the server they may be alive yet.
    pub(in crate::backends::postgres) left: Vec<i32>,
}

/// The listening end of an instance.
pub(in crate::backends::postgres) struct Listener {
    connector: Arc<Connector>,
    channel: String,
    hints: HintSender,
    events: EventHub,
    state: watch::Sender<State>,
    followed: watch::Sender<u64>,
    started: AtomicBool,
    was_up: AtomicBool,
    task: Mutex<Option<AbortHandle>>,
    /// What the instance was opened with, for the first time it listens.
    first: Mutex<Option<(Connection, Notifications)>>,
    left: Mutex<Vec<i32>>,
    /// The session that leases end with; an ended one while there is none.
    session: Mutex<Session>,
    /// The socket of the connection that leases end with, as long as it lives.
    socket: Mutex<Weak<OwnedFd>>,
}

impl Listener {
    /// Listens first by a connection that is there already.
    pub(in crate::backends::postgres) fn new(
        connector: Arc<Connector>,
        channel: String,
        hints: HintSender,
        first: Option<(Connection, Notifications)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            connector,
            channel,
            hints,
            events: EventHub::new(),
            state: watch::Sender::new(State::Down(None)),
            followed: watch::Sender::new(0),
            started: AtomicBool::new(false),
            was_up: AtomicBool::new(false),
            task: Mutex::new(None),
            first: Mutex::new(first),
            left: Mutex::default(),
            session: Mutex::new(no_session()),
            socket: Mutex::default(),
        })
    }

    pub(in crate::backends::postgres) fn close(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    /// Listens from now on; ends when it does, or when it is known that it cannot just now.
    pub(in crate::backends::postgres) async fn ensure(self: &Arc<Self>) -> Result<Option<i32>, Failure> {
        self.wait_for(|state| match state {
            State::Up { session, .. } => Some(Ok(*session)),
            State::Down(Some(failure)) => Some(Err(failure.clone())),
            State::Down(None) => None,
        })
        .await
    }

    /// The connection that listens, once it does.
    pub(in crate::backends::postgres) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        self.wait_for(|state| match state {
            State::Up { connection, .. } if !connection.is_closed() => Some(Ok(Arc::clone(connection))),
            State::Down(Some(failure)) => Some(Err(failure.clone())),
            State::Up { .. } | State::Down(None) => None,
        })
        .await
    }

    /// The connection that leases end with just now, if there is one.
    pub(in crate::backends::postgres) fn session(&self) -> Option<i32> {
        match &*self.state.borrow() {
            State::Up { session, .. } => *session,
            State::Down(_) => None,
        }
    }

    pub(in crate::backends::postgres) fn sessions(&self) -> Sessions {
        // This order: one that is left in between is in both, and not believed.
        let now = self.session();
        Sessions { now, left: self.left.lock().clone() }
    }

    /// How long answers to what is sent from now on may be believed.
    pub(in crate::backends::postgres) fn belief(&self) -> Belief {
        match self.connector.options.life {
            Life::Ttl => Belief::Ttl,
            Life::Connection => Belief::Session(self.session.lock().clone()),
        }
    }

    /// Leaves the connection there was, if there was one.
    fn leave(&self, failure: Option<Failure>) {
        let session = self.session();
        self.left.lock().extend(session);
        let before = self.state.send_replace(State::Down(failure));
        if session.is_some() {
            self.session.lock().end();
        }
        if let State::Up { .. } = before {
            // Leases that lived by it are dead to others, or soon will be.
            self.hints.send(Hint::Missed);
        }
    }

    /// For a child: while it has this open, the connection lives on without us.
    pub(in crate::backends::postgres) fn lend(&self) -> Option<OwnedFd> {
        // Open across exec, unlike all that this process opens for itself.
        rustix::io::dup(&*self.socket.lock().upgrade()?).ok()
    }

    /// What happens from now on, to any resource of the namespace.
    pub(in crate::backends::postgres) async fn follow(self: &Arc<Self>, names: Names) -> Result<EventStream, Failure> {
        let events = self.events.watch(names);
        self.followed.send_modify(|asked| *asked += 1);
        self.wait_for(|state| match state {
            State::Up { following, .. } => following.then_some(Ok(())),
            State::Down(Some(failure)) => Some(Err(failure.clone())),
            State::Down(None) => None,
        })
        .await?;
        Ok(events)
    }

    async fn wait_for<T>(self: &Arc<Self>, look: impl Fn(&State) -> Option<Result<T, Failure>>) -> Result<T, Failure> {
        if !self.started.swap(true, Ordering::SeqCst) {
            let task = self.connector.runtime.spawn(Arc::clone(self).run());
            *self.task.lock() = Some(task.abort_handle());
        }
        let mut state = self.state.subscribe();
        let limit = self.connector.options.connect_limit;
        let seen = timeout(limit, async {
            loop {
                if let Some(seen) = look(&state.borrow_and_update()) {
                    return seen;
                }
                if state.changed().await.is_err() {
                    return Err(Failure::new(Kind::Unavailable, "the connection to postgres was closed"));
                }
            }
        });
        seen.await.unwrap_or_else(|_| {
            Err(Failure::new(Kind::Unavailable, format!("postgres at {} let nobody listen", self.connector.place)))
        })
    }

    async fn run(self: Arc<Self>) {
        let mut pause = Duration::from_millis(20);
        loop {
            match self.listen().await {
                Ok(()) => pause = Duration::from_millis(20),
                Err(failure) => self.leave(Some(failure)),
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// One connection from its beginning to its end.
    async fn listen(&self) -> Result<(), Failure> {
        let first = self.first.lock().take();
        let (connection, mut notifications) = match first {
            Some(first) => first,
            None => self.connector.connect_to_listen().await?,
        };
        let connection = Arc::new(connection);
        connection.execute(&format!("listen \"{}\"", self.channel)).await?;
        let session = match self.connector.options.life {
            Life::Connection => Some(open_session(&connection, &self.channel).await?),
            Life::Ttl => None,
        };
        if session.is_some_and(|session| self.left.lock().contains(&session)) {
            // Numbers come again after a failover that lost some: what lived by the old one must not seem alive.
            return Err(Failure::new(
                Kind::Unavailable,
                "the number of this connection was used before; trying another",
            ));
        }
        *self.socket.lock() = connection.socket.as_ref().map(Arc::downgrade).unwrap_or_default();
        let mut followed = self.followed.subscribe();
        let mut again = interval(FOLLOW_AGAIN);
        again.reset();
        let following = self.keep_following(&connection, &mut again).await?;
        *self.session.lock() = Session::new(SILENCE_LIMIT);
        self.state.send_replace(State::Up { connection: Arc::clone(&connection), session, following });
        if self.was_up.swap(true, Ordering::SeqCst) {
            // Whatever was sent while nobody listened is gone, and so are leases that lived by the last connection.
            // Only now that there is another: places in queues go over to it.
            self.hints.send(Hint::Missed);
            self.events.missed();
        }

        loop {
            tokio::select! {
                notification = notifications.recv() => match notification {
                    Some(notification) => {
                        self.take(&notification);
                        continue;
                    }
                    None => break,
                },
                _asked = followed.changed() => {}
                _tick = again.tick() => {}
            }
            let following = self.keep_following(&connection, &mut again).await?;
            self.state.send_replace(State::Up { connection: Arc::clone(&connection), session, following });
        }
        self.leave(None);
        Ok(())
    }

    /// Registers as a follower, or does so soon: leases may end with this connection as long as it is open.
    async fn keep_following(&self, connection: &Connection, again: &mut Interval) -> Result<bool, Failure> {
        match self.follow_events(connection).await {
            // Nothing ends with this one, and it may be dead: another is better.
            Err(failure) if failure.kind == Kind::Unanswered && self.connector.options.life == Life::Ttl => {
                Err(failure)
            }
            Err(failure) if !connection.is_closed() => {
                tracing::debug!(%failure, "could not register as a follower");
                again.reset_after(FOLLOW_SOON);
                Ok(false)
            }
            followed => followed,
        }
    }

    /// Registers as a follower while someone here follows.
    async fn follow_events(&self, connection: &Connection) -> Result<bool, Failure> {
        if self.events.is_idle() {
            return Ok(false);
        }
        let namespace = &self.connector.options.namespace;
        let rows = connection.ask(Call::Watch, &[(namespace, Type::TEXT), (&self.channel, Type::TEXT)]).await?;
        let channel: String = decode::only(&rows)?;
        connection.execute(&format!("listen \"{channel}\"")).await?;
        Ok(true)
    }

    fn take(&self, notification: &Notification) {
        if notification.channel() == self.channel {
            if let Some(hint) = decode::hint(notification.payload()) {
                self.hints.send(hint);
            }
        } else if let Ok(event) = serde_json::from_str(notification.payload()) {
            self.events.send(&event);
        }
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("state", &*self.state.borrow()).finish_non_exhaustive()
    }
}

/// A session that has ended, for leases to end with while there is no connection.
fn no_session() -> Session {
    let session = Session::new(SILENCE_LIMIT);
    session.end();
    session
}

async fn open_session(connection: &Connection, client: &str) -> Result<i32, Failure> {
    let rows = connection.ask(Call::OpenSession, &[(&client, Type::TEXT)]).await?;
    decode::only(&rows)
}
