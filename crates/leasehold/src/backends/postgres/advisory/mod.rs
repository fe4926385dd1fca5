//! Postgres advisory locks, for applications that need exactly these.
//!
//! *Transaction level*, [`lock_in`]: the lock is taken inside your own transaction
//! and released when that commits or rolls back. The transaction cannot commit
//! after it has lost the lock, so use this if all the data is in the same database.
//!
//! *Session level*, [`Advisory`]: the lock is held as long as one database connection
//! lives. It has no fence, no queue and no holder to look up, and the server may notice
//! that the connection broke before the process does. A [`mutex`](crate::Leasehold::mutex)
//! has a fence, a queue and a visible holder.
//!
//! Both accept names as well as the numbers that `pg_advisory_lock` takes; see [`Key`].

mod session;
mod transaction;

use std::fmt;

use sha2::{Digest, Sha256};
pub use tokio_postgres::Transaction;

pub use self::{
    session::{Advisory, AdvisoryGuard},
    transaction::{lock_in, lock_in_as, try_lock_in, try_lock_in_as},
};
use crate::{Error, Resource, lease::Busy};

/// Returns the key of the lock on this name.
///
/// The key is the number that the first 15 hex digits of the SHA-256 hash of the name's UTF-8 bytes form.
///
/// ```
/// assert_eq!(leasehold::backends::postgres::advisory::key("job:123"), 614867089669398140);
/// ```
pub fn key(name: &str) -> i64 {
    let digest = Sha256::digest(name);
    digest.iter().take(8).fold(0_i64, |key, byte| key << 8 | i64::from(*byte)) >> 4 & 0x0fff_ffff_ffff_ffff
}

/// What the server locks: a number, or a pair of smaller numbers. Pairs and single numbers never conflict.
///
/// ```
/// use leasehold::backends::postgres::advisory::{Key, key};
///
/// assert_eq!(Key::from("job:123"), Key::Number(key("job:123")));
/// assert_eq!(Key::from((4711, 7)), Key::Pair(4711, 7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The number in `pg_advisory_lock(bigint)`; [`key`] computes it from a name.
    Number(i64),
    /// The two numbers in `pg_advisory_lock(int, int)`.
    Pair(i32, i32),
}

impl<N: AsRef<str> + ?Sized> From<&N> for Key {
    fn from(name: &N) -> Self {
        Self::Number(key(name.as_ref()))
    }
}

impl From<String> for Key {
    fn from(name: String) -> Self {
        Self::from(&name)
    }
}

impl From<i64> for Key {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<(i32, i32)> for Key {
    fn from((class, object): (i32, i32)) -> Self {
        Self::Pair(class, object)
    }
}

impl fmt::Display for Key {
    /// Writes `4711`, or a pair as `(47, 11)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Pair(class, object) => write!(f, "({class}, {object})"),
        }
    }
}

/// How a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// One holder at a time.
    Exclusive,
    /// Together with other shared holders, but not with an exclusive one.
    Shared,
}

/// The error of a wait for locks that took too long.
fn wait_elapsed(locks: &str, waited: impl fmt::Display) -> Error {
    let resource = Resource::new(locks).expect("a few words and numbers can be a name");
    Error::wait_elapsed(&resource, "postgres", waited, Busy::default())
}
