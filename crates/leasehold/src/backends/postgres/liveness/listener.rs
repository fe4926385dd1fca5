//! The connection that listens: grants and evictions for this instance, events for those
//! who watch, and the session that leases are bound to with `liveness=connection`.

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
        connection::{Connection, Connector, Notifications, SessionSocket},
        decode,
        errors::{Failure, FailureKind},
        options::LivenessOption,
        statements::Statement,
    },
    lease::Names,
};

/// How often to register for events again; a registration lasts 60 s.
const REGISTER_EVERY: Duration = Duration::from_secs(20);

/// Retry a failed registration after this. Not sooner: while it waits for a lock, it delays grants.
const REGISTER_RETRY: Duration = Duration::from_secs(3);

/// The state of the listening connection.
#[derive(Clone, Debug)]
enum ListenerState {
    Down(Option<Failure>),
    Up { connection: Arc<Connection>, session: Option<i32>, watching: bool },
}

/// The sessions that leases of this instance are bound to.
#[derive(Clone, Debug, Default)]
pub(in crate::backends::postgres) struct Sessions {
    pub(in crate::backends::postgres) current: Option<i32>,
    /// Earlier sessions. We consider their leases lost; the server may still hold them.
    pub(in crate::backends::postgres) abandoned: Vec<i32>,
}

/// The listening end of an instance.
pub(in crate::backends::postgres) struct Listener {
    connector: Arc<Connector>,
    channel: String,
    hints: HintSender,
    events: EventHub,
    state: watch::Sender<ListenerState>,
    watch_requests: watch::Sender<u64>,
    started: AtomicBool,
    was_up: AtomicBool,
    task: Mutex<Option<AbortHandle>>,
    /// The connection that the instance was opened with; it listens first.
    initial: Mutex<Option<(Connection, Notifications)>>,
    abandoned: Mutex<Vec<i32>>,
    /// The session that leases are bound to; an ended one while there is none.
    session: Mutex<Session>,
    /// The socket of that session, while it is open.
    socket: Mutex<Weak<SessionSocket>>,
}

impl Listener {
    /// Listens first on this connection, if there is one.
    pub(in crate::backends::postgres) fn new(
        connector: Arc<Connector>,
        channel: String,
        hints: HintSender,
        initial: Option<(Connection, Notifications)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            connector,
            channel,
            hints,
            events: EventHub::new(),
            state: watch::Sender::new(ListenerState::Down(None)),
            watch_requests: watch::Sender::new(0),
            started: AtomicBool::new(false),
            was_up: AtomicBool::new(false),
            task: Mutex::new(None),
            initial: Mutex::new(initial),
            abandoned: Mutex::default(),
            session: Mutex::new(no_session()),
            socket: Mutex::default(),
        })
    }

    pub(in crate::backends::postgres) fn close(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    /// Starts listening; returns once it works or has failed.
    pub(in crate::backends::postgres) async fn ensure_listening(self: &Arc<Self>) -> Result<Option<i32>, Failure> {
        self.wait_for(|state| match state {
            ListenerState::Up { session, .. } => Some(Ok(*session)),
            ListenerState::Down(Some(failure)) => Some(Err(failure.clone())),
            ListenerState::Down(None) => None,
        })
        .await
    }

    /// The connection that listens, once it does.
    pub(in crate::backends::postgres) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        self.wait_for(|state| match state {
            ListenerState::Up { connection, .. } if !connection.is_closed() => Some(Ok(Arc::clone(connection))),
            ListenerState::Down(Some(failure)) => Some(Err(failure.clone())),
            ListenerState::Up { .. } | ListenerState::Down(None) => None,
        })
        .await
    }

    /// The session that leases are bound to now, if there is one.
    pub(in crate::backends::postgres) fn session(&self) -> Option<i32> {
        match &*self.state.borrow() {
            ListenerState::Up { session, .. } => *session,
            ListenerState::Down(_) => None,
        }
    }

    pub(in crate::backends::postgres) fn sessions(&self) -> Sessions {
        // Read `current` first: a session abandoned meanwhile is then in both, and not relied on.
        let current = self.session();
        Sessions { current, abandoned: self.abandoned.lock().clone() }
    }

    /// How long to rely on answers to requests sent from now on.
    pub(in crate::backends::postgres) fn belief(&self) -> Belief {
        match self.connector.options.liveness {
            LivenessOption::Ttl => Belief::Ttl,
            LivenessOption::Connection => Belief::Session(self.session.lock().clone()),
        }
    }

    /// Abandons the connection, if there is one.
    fn disconnect(&self, failure: Option<Failure>) {
        let session = self.session();
        self.abandoned.lock().extend(session);
        let before = self.state.send_replace(ListenerState::Down(failure));
        if session.is_some() {
            self.session.lock().end();
        }
        if let ListenerState::Up { .. } = before {
            // Leases bound to it are dead to others, or soon will be.
            self.hints.send(Hint::Missed);
        }
    }

    /// A duplicate of the session's socket. A child that inherits it keeps the session alive.
    pub(in crate::backends::postgres) fn inheritable_socket(&self) -> Option<OwnedFd> {
        self.socket.lock().upgrade()?.inheritable().ok()
    }

    /// Streams events about `names` from now on.
    pub(in crate::backends::postgres) async fn watch(self: &Arc<Self>, names: Names) -> Result<EventStream, Failure> {
        let events = self.events.watch(names);
        self.watch_requests.send_modify(|count| *count += 1);
        self.wait_for(|state| match state {
            ListenerState::Up { watching, .. } => watching.then_some(Ok(())),
            ListenerState::Down(Some(failure)) => Some(Err(failure.clone())),
            ListenerState::Down(None) => None,
        })
        .await?;
        Ok(events)
    }

    async fn wait_for<T>(
        self: &Arc<Self>,
        ready: impl Fn(&ListenerState) -> Option<Result<T, Failure>>,
    ) -> Result<T, Failure> {
        if !self.started.swap(true, Ordering::SeqCst) {
            let task = self.connector.runtime.spawn(Arc::clone(self).run());
            *self.task.lock() = Some(task.abort_handle());
        }
        let mut state = self.state.subscribe();
        let limit = self.connector.options.connect_limit;
        let waiting = timeout(limit, async {
            loop {
                if let Some(result) = ready(&state.borrow_and_update()) {
                    return result;
                }
                if state.changed().await.is_err() {
                    return Err(Failure::new(FailureKind::Unavailable, "the connection to postgres was closed"));
                }
            }
        });
        waiting.await.unwrap_or_else(|_| {
            Err(Failure::new(
                FailureKind::Unavailable,
                format!("postgres at {} let nobody listen", self.connector.address),
            ))
        })
    }

    async fn run(self: Arc<Self>) {
        let mut pause = Duration::from_millis(20);
        loop {
            match self.listen().await {
                Ok(()) => pause = Duration::from_millis(20),
                Err(failure) => self.disconnect(Some(failure)),
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// One connection from its beginning to its end.
    async fn listen(&self) -> Result<(), Failure> {
        let initial = self.initial.lock().take();
        let (connection, mut notifications) = match initial {
            Some(initial) => initial,
            None => self.connector.connect_to_listen().await?,
        };
        let connection = Arc::new(connection);
        connection.execute(&format!("listen \"{}\"", self.channel)).await?;
        let session = match self.connector.options.liveness {
            LivenessOption::Connection => Some(open_session(&connection, &self.channel).await?),
            LivenessOption::Ttl => None,
        };
        if session.is_some_and(|session| self.abandoned.lock().contains(&session)) {
            // A failover may reuse session ids; old leases must not look alive.
            return Err(Failure::new(
                FailureKind::Unavailable,
                "the number of this connection was used before; trying another",
            ));
        }
        *self.socket.lock() = connection.socket.as_ref().map(Arc::downgrade).unwrap_or_default();
        let mut watch_requests = self.watch_requests.subscribe();
        let mut again = interval(REGISTER_EVERY);
        again.reset();
        let watching = self.keep_watching(&connection, &mut again).await?;
        *self.session.lock() = Session::new(SILENCE_LIMIT);
        self.state.send_replace(ListenerState::Up { connection: Arc::clone(&connection), session, watching });
        if self.was_up.swap(true, Ordering::SeqCst) {
            // Notifications sent meanwhile are lost, and so are leases bound to the last session. Send `Missed` only
            // once the new session is set: the renewals that follow move the queue positions to it.
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
                _requested = watch_requests.changed() => {}
                _tick = again.tick() => {}
            }
            let watching = self.keep_watching(&connection, &mut again).await?;
            self.state.send_replace(ListenerState::Up { connection: Arc::clone(&connection), session, watching });
        }
        self.disconnect(None);
        Ok(())
    }

    /// Registers for events, or schedules a retry; keeps the connection, since leases may depend on it.
    async fn keep_watching(&self, connection: &Connection, again: &mut Interval) -> Result<bool, Failure> {
        match self.watch_events(connection).await {
            // No lease depends on this connection, which may be dead: reconnect.
            Err(failure)
                if failure.kind == FailureKind::Unanswered
                    && self.connector.options.liveness == LivenessOption::Ttl =>
            {
                Err(failure)
            }
            Err(failure) if !connection.is_closed() => {
                tracing::debug!(%failure, "could not register for events");
                again.reset_after(REGISTER_RETRY);
                Ok(false)
            }
            watching => watching,
        }
    }

    /// Registers for events while someone in this process watches.
    async fn watch_events(&self, connection: &Connection) -> Result<bool, Failure> {
        if self.events.is_idle() {
            return Ok(false);
        }
        let namespace = &self.connector.options.namespace;
        let rows = connection.call(Statement::Watch, &[(namespace, Type::TEXT), (&self.channel, Type::TEXT)]).await?;
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

/// An ended session, for leases to be bound to while there is no connection.
fn no_session() -> Session {
    let session = Session::new(SILENCE_LIMIT);
    session.end();
    session
}

async fn open_session(connection: &Connection, client: &str) -> Result<i32, Failure> {
    let rows = connection.call(Statement::OpenSession, &[(&client, Type::TEXT)]).await?;
    decode::only(&rows)
}
