//! Locks inside the caller's own transaction.

use std::collections::BTreeSet;

use tokio_postgres::{Row, Transaction, error::SqlState, types::Type};

use super::{Key, Sharing, wait_elapsed};
use crate::{
    Error, Result,
    backends::postgres::{
        connection::Parameter,
        errors::{Failure, ServerError},
    },
};

/// Locks these names or keys until the transaction ends, waiting for each.
///
/// One call locks its keys in a fixed order, so two transactions that lock the
/// same keys in one call each cannot deadlock. While it waits, the statement
/// holds a snapshot, which delays vacuum: set a `lock_timeout` if waits may be long.
///
/// # Errors
/// `WaitElapsed` if the `lock_timeout` passed first; otherwise the error that the server reported. The transaction
/// cannot continue after that.
pub async fn lock_in<K: Into<Key>>(transaction: &Transaction<'_>, keys: impl IntoIterator<Item = K>) -> Result<()> {
    lock_in_as(transaction, keys, Sharing::Exclusive).await
}

/// Like [`lock_in`], but `sharing` makes the locks exclusive or shared.
///
/// # Errors
/// As for [`lock_in`].
pub async fn lock_in_as<K: Into<Key>>(
    transaction: &Transaction<'_>,
    keys: impl IntoIterator<Item = K>,
    sharing: Sharing,
) -> Result<()> {
    let function = match sharing {
        Sharing::Exclusive => "pg_advisory_xact_lock",
        Sharing::Shared => "pg_advisory_xact_lock_shared",
    };
    let keys = SortedKeys::new(keys);
    match keys.call(transaction, function).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            Err(wait_elapsed(&keys.describe(), "the lock_timeout of this transaction").caused_by(error))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Locks all of these names or keys until the transaction ends, or none of them. Returns `false` if one is taken.
///
/// # Errors
/// As for [`lock_in`].
pub async fn try_lock_in<K: Into<Key>>(
    transaction: &Transaction<'_>,
    keys: impl IntoIterator<Item = K>,
) -> Result<bool> {
    try_lock_in_as(transaction, keys, Sharing::Exclusive).await
}

/// Like [`try_lock_in`], but `sharing` makes the locks exclusive or shared.
///
/// # Errors
/// As for [`lock_in`].
pub async fn try_lock_in_as<K: Into<Key>>(
    transaction: &Transaction<'_>,
    keys: impl IntoIterator<Item = K>,
    sharing: Sharing,
) -> Result<bool> {
    let function = match sharing {
        Sharing::Exclusive => "pg_try_advisory_xact_lock",
        Sharing::Shared => "pg_try_advisory_xact_lock_shared",
    };
    let keys = SortedKeys::new(keys);
    // Going back to a savepoint releases what was locked after it.
    let run = async {
        transaction.batch_execute("savepoint leasehold_try").await?;
        let rows = keys.call(transaction, function).await?;
        let all = rows.iter().all(|row| row.try_get(0).unwrap_or(false));
        let end = if all {
            "release savepoint leasehold_try"
        } else {
            "rollback to savepoint leasehold_try; release savepoint leasehold_try"
        };
        transaction.batch_execute(end).await?;
        Ok(all)
    };
    run.await.map_err(failed)
}

fn failed(error: tokio_postgres::Error) -> Error {
    let reported = error.as_db_error().map(ServerError::from);
    Failure::in_transaction(None, reported, &error).error().caused_by(error)
}

/// Keys in the global lock order.
struct SortedKeys {
    numbers: Vec<i64>,
    classes: Vec<i32>,
    objects: Vec<i32>,
}

impl SortedKeys {
    fn new<K: Into<Key>>(keys: impl IntoIterator<Item = K>) -> Self {
        let keys: BTreeSet<Key> = keys.into_iter().map(Into::into).collect();
        let mut sorted = Self { numbers: Vec::new(), classes: Vec::new(), objects: Vec::new() };
        for key in keys {
            match key {
                Key::Number(number) => sorted.numbers.push(number),
                Key::Pair(class, object) => {
                    sorted.classes.push(class);
                    sorted.objects.push(object);
                }
            }
        }
        sorted
    }

    /// The lock on the only key, or one of several.
    fn describe(&self) -> String {
        match (&*self.numbers, &*self.classes, &*self.objects) {
            ([number], [], []) => format!("advisory lock {}", Key::Number(*number)),
            ([], [class], [object]) => format!("advisory lock {}", Key::Pair(*class, *object)),
            (numbers, pairs, _) => format!("one of {} advisory locks", numbers.len() + pairs.len()),
        }
    }

    /// Calls the function for each key, numbers before pairs.
    async fn call(&self, transaction: &Transaction<'_>, function: &str) -> Result<Vec<Row>, tokio_postgres::Error> {
        let mut rows = Vec::new();
        if !self.numbers.is_empty() {
            let text = format!("select {function}(k) from unnest($1) as k");
            rows.extend(transaction.query_typed(&text, &[(&self.numbers, Type::INT8_ARRAY)]).await?);
        }
        if !self.classes.is_empty() {
            let text = format!("select {function}(k.class, k.object) from unnest($1, $2) as k(class, object)");
            let pairs: [Parameter<'_>; 2] = [(&self.classes, Type::INT4_ARRAY), (&self.objects, Type::INT4_ARRAY)];
            rows.extend(transaction.query_typed(&text, &pairs).await?);
        }
        Ok(rows)
    }
}
