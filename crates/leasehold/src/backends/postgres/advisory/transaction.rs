//! Locks inside the caller's own transaction.

use std::collections::BTreeSet;

use tokio_postgres::{Row, Transaction, types::Type};

use super::{Key, Sharing};
use crate::{
    Error, Result,
    backends::postgres::{connection::Parameter, errors::Failure},
};

/// Locks these names or keys until the transaction ends, waiting for each.
///
/// One call locks its keys in a fixed order, so two transactions that lock the
/// same keys in one call each cannot deadlock. While it waits, the statement
/// holds a snapshot, which delays vacuum: set a `lock_timeout` if waits may be long.
///
/// # Errors
/// The error that the server reported. The transaction cannot continue after that.
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
    let keys = Keys::sorted(keys);
    keys.call(transaction, function).await.map_err(|error| failed(&error))?;
    Ok(())
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
    let keys = Keys::sorted(keys);
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
    run.await.map_err(|error| failed(&error))
}

fn failed(error: &tokio_postgres::Error) -> Error {
    Failure::calling("this transaction", "select SCHEMA.allow('ROLE')", error).error()
}

/// Keys in the global lock order.
struct Keys {
    numbers: Vec<i64>,
    classes: Vec<i32>,
    objects: Vec<i32>,
}

impl Keys {
    fn sorted<K: Into<Key>>(keys: impl IntoIterator<Item = K>) -> Self {
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
