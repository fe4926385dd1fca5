//! Fences checked in the user's own transaction, through tokio-postgres and sqlx.
#![cfg(feature = "sqlx")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{error::Error, sync::Arc, time::Duration};

use leasehold::{
    ErrorKind, Guard, Leasehold,
    backends::postgres::{FenceCheck, PostgresOptions, install},
    clock::SystemClock,
};
use leasehold_testkit::postgres::Postgres;
use sqlx::{Connection, PgConnection};
use tokio::runtime::Handle;
use tokio_postgres::{Client, NoTls};

/// The driver that a transaction is begun with.
enum Driver {
    Tokio(Client),
    Sqlx(PgConnection),
}

impl Driver {
    async fn both(url: &str) -> [Self; 2] {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        Handle::current().spawn(connection);
        [Self::Tokio(client), Self::Sqlx(PgConnection::connect(url).await.unwrap())]
    }

    /// Checks the fence in a transaction, does the work in it, and commits.
    async fn checked(&mut self, check: &FenceCheck, work: impl AsyncFnOnce()) -> leasehold::Result<()> {
        match self {
            Self::Tokio(client) => {
                let transaction = client.transaction().await.unwrap();
                check.run(&transaction).await?;
                work().await;
                transaction.commit().await.unwrap();
            }
            Self::Sqlx(connection) => {
                let mut transaction = connection.begin().await.unwrap();
                check.run_sqlx(&mut transaction).await?;
                work().await;
                transaction.commit().await.unwrap();
            }
        }
        Ok(())
    }
}

fn check(guard: &Guard, namespace: &str) -> FenceCheck {
    FenceCheck::new(guard.resource(), guard.fence()).namespace(namespace).schema("locks")
}

/// An instance with the namespace and schema that [`check`] names.
async fn connect(server: &Postgres) -> Leasehold {
    let url = format!("{}?schema=locks", server.url());
    let clock = Arc::new(SystemClock);
    install(PostgresOptions::from_url(&url, "jobs", clock, Duration::from_secs(10)).unwrap(), None).await.unwrap();
    Leasehold::builder().namespace("jobs").connect(&url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checked_fence_keeps_the_lock_until_the_transaction_ends_and_a_lost_one_is_refused() {
    let server = Postgres::start();
    let locks = connect(&server).await;
    for mut driver in Driver::both(&server.url()).await {
        let first = locks.mutex("invoice:42").acquire().await.unwrap();
        let its_check = check(&first, "jobs");
        let elsewhere = check(&first, "default");
        let work = async || {
            first.release().await.unwrap();
            assert!(locks.mutex("invoice:42").try_acquire().await.unwrap().is_none(), "the transaction relies on it");
        };
        driver.checked(&its_check, work).await.unwrap();
        let second = locks.mutex("invoice:42").acquire().await.unwrap();
        for stale in [its_check, elsewhere] {
            let refused = driver.checked(&stale, async || panic!("it goes on")).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Lost, "{refused}");
        }
        let of_no_schema = FenceCheck::new(second.resource(), second.fence()).schema("missing");
        let refused = driver.checked(&of_no_schema, async || panic!("it goes on")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
        assert!(refused.to_string().contains("leasehold init") && refused.source().is_some(), "{refused}");
        second.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_waited_too_long_certainly_did_nothing() {
    let server = Postgres::start();
    let locks = connect(&server).await;
    let held = locks.mutex("invoice:42").acquire().await.unwrap();
    let (other, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    Handle::current().spawn(connection);
    // As a grant does until it is committed.
    let lock =
        "begin; select pg_advisory_xact_lock(locks._guard_lock_class(), locks._guard_lock('jobs', 'invoice:42'))";
    other.batch_execute(lock).await.unwrap();
    for mut driver in Driver::both(&server.url()).await {
        let refused = driver.checked(&check(&held, "jobs"), async || panic!("it goes on")).await.unwrap_err();
        assert_eq!((refused.kind(), refused.outcome_unknown()), (ErrorKind::Unavailable, false), "{refused}");
    }
    other.batch_execute("commit").await.unwrap();
    held.release().await.unwrap();
}
