//! Postgres advisory locks, for those who want exactly that.
//!
//! *Transaction level*, [`lock_in`]: taken inside your own transaction and
//! released by its commit or rollback. Losing the lock aborts the work with
//! it, so this is the one to use where all the data is in the same database.
//!
//! *Session level*, [`Advisory`]: held as long as one database connection
//! lives. No fence, no queue, no holder to look up; nothing tells a process
//! that its connection died before the server noticed. A mutex of this crate
//! promises more.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{sync::Notify, time::timeout};
pub use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use super::{
    connection::{Call, Connection, Connector},
    failure::{Failure, Kind},
    options::PostgresOptions,
    row,
};
use crate::{Error, Result, clock::SystemClock, engine};

/// The key of the lock on this name: the first 15 hex digits of the SHA-256 of its UTF-8.
///
/// ```
/// assert_eq!(leasehold::backends::postgres::advisory::key("job:123"), 614867089669398140);
/// ```
pub fn key(name: &str) -> i64 {
    let digest = Sha256::digest(name);
    digest.iter().take(8).fold(0_i64, |key, byte| key << 8 | i64::from(*byte)) >> 4 & 0x0fff_ffff_ffff_ffff
}

/// How a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One at a time.
    Exclusive,
    /// With others that share.
    Shared,
}

fn keys<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Vec<i64> {
    let mut keys: Vec<i64> = names.into_iter().map(|name| key(name.as_ref())).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Locks these names until the transaction ends, waiting for each.
///
/// The names are taken in one order whoever asks, so that two who lock the
/// same two accounts do not wait for each other. While it waits, the statement
/// holds the transaction's snapshot: set a `lock_timeout` where waits may be long.
///
/// # Errors
/// What the server said; the transaction cannot go on after that.
pub async fn lock_in<N: AsRef<str>>(transaction: &Transaction<'_>, names: impl IntoIterator<Item = N>) -> Result<()> {
    lock_in_as(transaction, names, Sharing::Exclusive).await
}

/// The same, exclusive or shared.
///
/// # Errors
/// As for [`lock_in`].
pub async fn lock_in_as<N: AsRef<str>>(
    transaction: &Transaction<'_>,
    names: impl IntoIterator<Item = N>,
    sharing: Sharing,
) -> Result<()> {
    let text = match sharing {
        Sharing::Exclusive => include_str!("sql/calls/advisory_in.sql"),
        Sharing::Shared => include_str!("sql/calls/advisory_in_shared.sql"),
    };
    transaction.query_typed(text, &[(&keys(names), Type::INT8_ARRAY)]).await.map_err(|error| failed(&error))?;
    Ok(())
}

/// Locks all of these names until the transaction ends, or none of them: `false` when one is taken.
///
/// # Errors
/// As for [`lock_in`].
pub async fn try_lock_in<N: AsRef<str>>(
    transaction: &Transaction<'_>,
    names: impl IntoIterator<Item = N>,
) -> Result<bool> {
    try_lock_in_as(transaction, names, Sharing::Exclusive).await
}

/// The same, exclusive or shared.
///
/// # Errors
/// As for [`lock_in`].
pub async fn try_lock_in_as<N: AsRef<str>>(
    transaction: &Transaction<'_>,
    names: impl IntoIterator<Item = N>,
    sharing: Sharing,
) -> Result<bool> {
    let text = match sharing {
        Sharing::Exclusive => include_str!("sql/calls/advisory_try_in.sql"),
        Sharing::Shared => include_str!("sql/calls/advisory_try_in_shared.sql"),
    };
    // Going back to a savepoint releases what was locked after it.
    let run = async {
        transaction.batch_execute("savepoint leasehold_try").await?;
        let rows = transaction.query_typed(text, &[(&keys(names), Type::INT8_ARRAY)]).await?;
        let all = rows.iter().all(|row| row.try_get(0).unwrap_or(false));
        let end = if all {
            "release savepoint leasehold_try"
        } else {
            "rollback to savepoint leasehold_try; release savepoint leasehold_try"
        };
        transaction.batch_execute(end).await?;
        Ok(all)
    };
    run.await.map_err(|error| failed(&error))
}

fn failed(error: &tokio_postgres::Error) -> Error {
    Failure::calling("this transaction", error).error()
}

/// Session-level advisory locks on one connection of their own.
///
/// # When you lose it
/// With the connection. [`AdvisoryGuard::check`] tells once this process has noticed.
#[derive(Clone)]
pub struct Advisory(Arc<Held>);

struct Held {
    connection: Connection,
    /// The server would give a key twice to one connection: we do not.
    keys: Mutex<HashSet<i64>>,
    released: Notify,
    limit: usize,
}

impl Advisory {
    /// So many locks are held at once by default: the server has room for some ten thousand in all,
    /// and without room nobody can do anything.
    pub const LIMIT: usize = 1000;

    /// How long another process's lock is waited for between two looks, at most. A blocked
    /// statement would be told sooner, and would keep dead rows from being removed.
    const LOOK_EVERY: Duration = Duration::from_millis(100);

    /// Connects to the server this `postgres://` URL names.
    ///
    /// # Errors
    /// `Unsupported` through a pooler that shares connections, else as for connecting.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with_limit(url, Self::LIMIT).await
    }

    /// The same with another cap on how many locks may be held at once.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn connect_with_limit(url: &str, limit: usize) -> Result<Self> {
        let options = PostgresOptions::from_url(url, "default", Arc::new(SystemClock), Duration::from_secs(3))?;
        on_runtime(async move {
            let connector = Connector::new(options)?;
            let [connection, _second] = connector.connect_pair().await.map_err(Failure::error)?;
            if connector.is_pooled() {
                let words = format!(
                    "session-level advisory locks do not work through the pooler at {}; connect to the server itself, \
                     or lock inside a transaction",
                    connector.place
                );
                return Err(Failure::new(Kind::Unsupported, words).error());
            }
            let held = Held { connection, keys: Mutex::default(), released: Notify::new(), limit };
            Ok(Self(Arc::new(held)))
        })
        .await
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// When the server could not tell, or this instance holds as many locks as it may.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind.
    pub async fn try_acquire(&self, name: &str) -> Result<Option<AdvisoryGuard>> {
        let (held, key) = (Arc::clone(&self.0), key(name));
        // A task of its own: whoever drops this future does not leave a lock behind.
        on_runtime(async move {
            if !held.reserve(key)? {
                return Ok(None);
            }
            let guard = AdvisoryGuard { held, key, over: AtomicBool::new(false) };
            let rows = guard.held.connection.ask(Call::AdvisoryTry, &[(&key, Type::INT8)]).await;
            match rows.and_then(|rows| row::only::<bool>(&rows)) {
                Ok(true) => Ok(Some(guard)),
                Ok(false) => {
                    guard.forget();
                    Ok(None)
                }
                // Whether it was taken is not known: the guard's drop unlocks it.
                Err(failure) => Err(failure.error()),
            }
        })
        .await
    }

    /// Takes the lock, waiting for it so long. No order among those who wait.
    ///
    /// # Errors
    /// `WaitElapsed` when it was not free in time, else as for [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind.
    pub async fn acquire(&self, name: &str, wait: Duration) -> Result<AdvisoryGuard> {
        let advisory = self.clone();
        let owned = name.to_owned();
        let taken = on_runtime(async move {
            let taken = timeout(wait, async {
                let mut pause = Duration::from_millis(2);
                loop {
                    let released = advisory.0.released.notified();
                    if let Some(guard) = advisory.try_acquire(&owned).await? {
                        return Ok(guard);
                    }
                    let _either = timeout(pause, released).await;
                    pause = (pause * 2).min(Self::LOOK_EVERY);
                }
            });
            taken.await.map_or(Ok(None), |taken: Result<AdvisoryGuard>| taken.map(Some))
        });
        taken.await?.ok_or_else(|| {
            let resource = crate::Resource::new(name).ok();
            let busy = crate::lease::Busy::default();
            match resource {
                Some(resource) => Error::wait_elapsed(&resource, "postgres advisory", crate::lease::Brief(wait), busy),
                None => Error::unavailable("the advisory lock was not free in time"),
            }
        })
    }

    /// How many locks are held.
    pub fn held(&self) -> usize {
        self.0.keys.lock().len()
    }
}

impl fmt::Debug for Advisory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Advisory").field("held", &self.held()).finish_non_exhaustive()
    }
}

impl Held {
    fn reserve(&self, key: i64) -> Result<bool> {
        let mut keys = self.keys.lock();
        if keys.contains(&key) {
            return Ok(false);
        }
        if keys.len() >= self.limit {
            return Err(Error::unavailable(format!(
                "{} advisory locks are held, as many as may be: release some, or raise the limit",
                self.limit
            )));
        }
        Ok(keys.insert(key))
    }

    fn free(&self, key: i64) {
        self.keys.lock().remove(&key);
        self.released.notify_waiters();
    }

    async fn unlock(&self, key: i64) -> Result<bool> {
        let rows = self.connection.ask(Call::AdvisoryUnlock, &[(&key, Type::INT8)]).await;
        self.free(key);
        rows.and_then(|rows| row::only(&rows)).map_err(Failure::error)
    }
}

/// A session-level advisory lock; dropping it releases it soon after.
#[must_use = "the lock is released when the guard is dropped"]
pub struct AdvisoryGuard {
    held: Arc<Held>,
    key: i64,
    over: AtomicBool,
}

impl AdvisoryGuard {
    /// The key under which the server knows it.
    pub fn key(&self) -> i64 {
        self.key
    }

    /// Fails once it is known that the connection, and the lock with it, is gone.
    ///
    /// # Errors
    /// `Unavailable` when the connection broke.
    pub fn check(&self) -> Result<()> {
        if self.held.connection.is_closed() {
            return Err(Error::unavailable(
                "the connection that held this advisory lock broke; stop the work it protects",
            ));
        }
        Ok(())
    }

    /// Releases it; `false` when the server says that it was not held any more.
    ///
    /// # Errors
    /// When the server could not tell.
    pub async fn release(self) -> Result<bool> {
        self.over.store(true, Ordering::SeqCst);
        let (held, key) = (Arc::clone(&self.held), self.key);
        on_runtime(async move { held.unlock(key).await }).await
    }

    /// It was never taken.
    fn forget(self) {
        self.over.store(true, Ordering::SeqCst);
        self.held.free(self.key);
    }
}

impl Drop for AdvisoryGuard {
    fn drop(&mut self) {
        if self.over.load(Ordering::SeqCst) {
            return;
        }
        let (held, key) = (Arc::clone(&self.held), self.key);
        if let Ok(threads) = engine::threads() {
            threads.io.spawn(async move {
                if let Err(error) = held.unlock(key).await {
                    tracing::warn!(%error, "could not unlock; it ends with the connection");
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

/// Runs where the connection lives, to its end, whatever becomes of the caller.
async fn on_runtime<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let ended = || Error::unavailable("the thread that keeps locks ended");
    engine::threads()?.io.spawn(work).await.unwrap_or_else(|_| Err(ended()))
}
