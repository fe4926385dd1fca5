//! Locks that live as long as one connection of their own.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_postgres::types::Type;

use super::{Key, Sharing, wait_elapsed};
use crate::{
    Error, Result,
    backends::postgres::{
        connection::{Connection, Connector, Parameter},
        decode,
        errors::{Failure, FailureKind},
        no_sessions,
        options::PostgresOptions,
        statements::Statement,
    },
    clock::SystemClock,
    lease::Brief,
    threads,
};

/// The pause between two tries to unlock.
const UNLOCK_PAUSE: Duration = Duration::from_secs(1);

/// Session-level advisory locks, all held by one dedicated connection.
///
/// # When you lose it
/// The locks are lost if the connection breaks. [`AdvisoryGuard::check`] fails once this process has noticed that.
#[derive(Clone)]
pub struct Advisory(Arc<SessionLocks>);

struct SessionLocks {
    connection: Connection,
    /// Holders in this process: 0 exclusive, n shared. Needed because the server grants a key repeatedly to one
    /// connection.
    keys: Mutex<HashMap<Key, usize>>,
    released: Notify,
    limit: usize,
}

impl Advisory {
    /// The default limit on locks held at once. The server has room for about ten thousand locks in all; when
    /// that is used up, every statement that needs a lock fails.
    pub const LIMIT: usize = 1000;

    /// Longest pause between tries. We poll: a blocking statement would hold a snapshot and delay vacuum.
    const MAX_PAUSE: Duration = Duration::from_millis(100);

    /// Connects to the server of this `postgres://` URL.
    ///
    /// # Errors
    /// `Unsupported` if a pooler in between shares connections; otherwise as for
    /// [`Leasehold::connect`](crate::Leasehold::connect).
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with_limit(url, Self::LIMIT).await
    }

    /// Like [`connect`](Self::connect), with a limit on how many locks may be held at once.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn connect_with_limit(url: &str, limit: usize) -> Result<Self> {
        let options = PostgresOptions::from_url(url, "default", Arc::new(SystemClock), Duration::from_secs(3))?;
        on_runtime(async move {
            let connector = Connector::new(options)?;
            let connection = connector.connect().await.map_err(Failure::error)?;
            if connector.is_transaction_pooled() {
                return Err(no_sessions(&connector, "a session-level advisory lock", "lock inside a transaction"));
            }
            let locks = SessionLocks { connection, keys: Mutex::default(), released: Notify::new(), limit };
            Ok(Self(Arc::new(locks)))
        })
        .await
    }

    /// Takes the lock on a name or key if nobody holds it; returns `None` otherwise.
    ///
    /// # Errors
    /// Fails if the server cannot be reached or does not answer, or if this instance already holds as many locks as its
    /// limit allows.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind.
    pub async fn try_acquire(&self, key: impl Into<Key>) -> Result<Option<AdvisoryGuard>> {
        self.try_acquire_as(key, Sharing::Exclusive).await
    }

    /// Like [`try_acquire`](Self::try_acquire), but `sharing` makes the lock exclusive or shared.
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind.
    pub async fn try_acquire_as(&self, key: impl Into<Key>, sharing: Sharing) -> Result<Option<AdvisoryGuard>> {
        let (locks, key) = (Arc::clone(&self.0), key.into());
        // A task of its own: whoever drops this future does not leave a lock behind.
        on_runtime(async move {
            if !locks.reserve(key, sharing)? {
                return Ok(None);
            }
            let guard = AdvisoryGuard { locks, key, sharing, released: AtomicBool::new(false) };
            match guard.locks.call(KeyStatements::of(key, sharing).lock, key).await.map_err(Failure::error) {
                Ok(true) => Ok(Some(guard)),
                Ok(false) => {
                    guard.forget();
                    Ok(None)
                }
                // Outcome unknown: dropping the guard unlocks.
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Takes the lock, waiting for it for at most `wait`. Waiters are served in no particular order.
    ///
    /// # Errors
    /// `WaitElapsed` if the lock was not free in time; otherwise as for [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind.
    pub async fn acquire(&self, key: impl Into<Key>, wait: Duration) -> Result<AdvisoryGuard> {
        self.acquire_as(key, Sharing::Exclusive, wait).await
    }

    /// Like [`acquire`](Self::acquire), but `sharing` makes the lock exclusive or shared.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind.
    pub async fn acquire_as(&self, key: impl Into<Key>, sharing: Sharing, wait: Duration) -> Result<AdvisoryGuard> {
        let (advisory, key) = (self.clone(), key.into());
        // Dropped with this future; a try that is under way then unlocks again.
        let mut asking = JoinSet::new();
        let task = async move {
            let taken = timeout(wait, async {
                let mut pause = Duration::from_millis(2);
                loop {
                    let released = advisory.0.released.notified();
                    if let Some(guard) = advisory.try_acquire_as(key, sharing).await? {
                        return Ok(guard);
                    }
                    let _either = timeout(pause, released).await;
                    pause = (pause * 2).min(Self::MAX_PAUSE);
                }
            });
            taken.await.map_or(Ok(None), |taken: Result<AdvisoryGuard>| taken.map(Some))
        };
        asking.spawn_on(task, &threads::of_process()?.io);
        let taken = asking.join_next().await.and_then(Result::ok).unwrap_or_else(|| Err(io_thread_ended()))?;
        taken.ok_or_else(|| wait_elapsed(&format!("advisory lock {key}"), Brief(wait)))
    }

    /// Returns how many locks are held.
    pub fn held(&self) -> usize {
        self.0.keys.lock().len()
    }
}

impl fmt::Debug for Advisory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Advisory").field("held", &self.held()).finish_non_exhaustive()
    }
}

impl SessionLocks {
    /// Reserves the key here; false if this instance holds it in a conflicting mode.
    fn reserve(&self, key: Key, sharing: Sharing) -> Result<bool> {
        let mut keys = self.keys.lock();
        match (keys.get_mut(&key), sharing) {
            (Some(sharers), Sharing::Shared) if *sharers > 0 => {
                *sharers += 1;
                return Ok(true);
            }
            (Some(_), _) => return Ok(false),
            (None, _) => {}
        }
        if keys.len() >= self.limit {
            return Err(Error::unavailable(format!(
                "{} advisory locks are held, as many as may be: release some, or raise the limit",
                self.limit
            )));
        }
        keys.insert(key, usize::from(sharing == Sharing::Shared));
        Ok(true)
    }

    fn free(&self, key: Key) {
        let mut keys = self.keys.lock();
        match keys.get_mut(&key) {
            Some(sharers) if *sharers > 1 => *sharers -= 1,
            _ => drop(keys.remove(&key)),
        }
        drop(keys);
        self.released.notify_waiters();
    }

    /// Unlocks, and frees the key once that was answered: until then the server may grant it to this connection again.
    async fn unlock(self: Arc<Self>, key: Key, sharing: Sharing) -> Result<bool> {
        let unlocked = self.call(KeyStatements::of(key, sharing).unlock, key).await;
        if self.must_retry(key, &unlocked) {
            let locks = Arc::downgrade(&self);
            threads::of_process()?.io.spawn(async move {
                loop {
                    sleep(UNLOCK_PAUSE).await;
                    let Some(locks) = locks.upgrade() else { return };
                    let unlocked = locks.call(KeyStatements::of(key, sharing).unlock, key).await;
                    if !locks.must_retry(key, &unlocked) {
                        return locks.free(key);
                    }
                }
            });
        } else {
            self.free(key);
        }
        unlocked.map_err(Failure::error)
    }

    /// Whether to unlock again: the connection may still have the lock. An unlock whose outcome is unknown is not
    /// retried while other guards share the lock, since it could release the lock of another guard.
    fn must_retry(&self, key: Key, unlocked: &Result<bool, Failure>) -> bool {
        let Err(failure) = unlocked else { return false };
        let is_shared = || self.keys.lock().get(&key).is_some_and(|sharers| *sharers > 1);
        !self.connection.is_closed() && (failure.kind != FailureKind::Unanswered || !is_shared())
    }

    async fn call(&self, statement: Statement, key: Key) -> Result<bool, Failure> {
        let rows = match &key {
            Key::Number(number) => self.connection.call(statement, &[(number, Type::INT8)]).await,
            Key::Pair(class, object) => {
                let pair: [Parameter<'_>; 2] = [(class, Type::INT4), (object, Type::INT4)];
                self.connection.call(statement, &pair).await
            }
        };
        rows.and_then(|rows| decode::only(&rows))
    }
}

/// The statements that lock and unlock a key.
struct KeyStatements {
    lock: Statement,
    unlock: Statement,
}

impl KeyStatements {
    fn of(key: Key, sharing: Sharing) -> Self {
        let (lock, unlock) = match (key, sharing) {
            (Key::Number(_), Sharing::Exclusive) => (Statement::AdvisoryTry, Statement::AdvisoryUnlock),
            (Key::Number(_), Sharing::Shared) => (Statement::AdvisoryTryShared, Statement::AdvisoryUnlockShared),
            (Key::Pair(..), Sharing::Exclusive) => (Statement::AdvisoryTryPair, Statement::AdvisoryUnlockPair),
            (Key::Pair(..), Sharing::Shared) => (Statement::AdvisoryTryPairShared, Statement::AdvisoryUnlockPairShared),
        };
        Self { lock, unlock }
    }
}

/// A session-level advisory lock. Dropping the guard releases the lock in the background.
#[must_use = "the lock is released when the guard is dropped"]
pub struct AdvisoryGuard {
    locks: Arc<SessionLocks>,
    key: Key,
    sharing: Sharing,
    released: AtomicBool,
}

impl AdvisoryGuard {
    /// Returns the key that is locked.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Fails once this process has noticed that the connection broke. The lock is then lost.
    ///
    /// # Errors
    /// `Unavailable` if the connection broke.
    pub fn check(&self) -> Result<()> {
        if self.locks.connection.is_closed() {
            return Err(Error::unavailable(
                "the connection that held this advisory lock broke; stop the work it protects",
            ));
        }
        Ok(())
    }

    /// Releases the lock. Returns `false` if the server no longer held it for this connection.
    ///
    /// # Errors
    /// Fails if the server cannot be reached or does not answer.
    pub async fn release(self) -> Result<bool> {
        self.released.store(true, Ordering::SeqCst);
        let (locks, key, sharing) = (Arc::clone(&self.locks), self.key, self.sharing);
        on_runtime(async move { locks.unlock(key, sharing).await }).await
    }

    /// The server refused: drop the reservation.
    fn forget(self) {
        self.released.store(true, Ordering::SeqCst);
        self.locks.free(self.key);
    }
}

impl Drop for AdvisoryGuard {
    fn drop(&mut self) {
        if self.released.load(Ordering::SeqCst) {
            return;
        }
        let (locks, key, sharing) = (Arc::clone(&self.locks), self.key, self.sharing);
        if let Ok(threads) = threads::of_process() {
            threads.io.spawn(async move {
                if let Err(error) = locks.unlock(key, sharing).await {
                    tracing::warn!(%error, "could not unlock; trying again while the connection lasts");
                }
            });
        }
    }
}

impl fmt::Debug for AdvisoryGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdvisoryGuard").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Runs on the runtime of the connection, to its end, even if the caller is dropped.
async fn on_runtime<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    threads::of_process()?.io.spawn(work).await.unwrap_or_else(|_| Err(io_thread_ended()))
}

fn io_thread_ended() -> Error {
    Error::unavailable("the I/O thread ended")
}
