//! A pooler lends the same connections to this library and to the application beside it, which notices nothing.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use std::{
    env,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{
    ErrorKind, Leasehold,
    clock::{Clock, SystemClock},
    lease::{ListFilter, Names},
};
use leasehold_testkit::postgres::{PgBouncer, Postgres};
use postgres_schema::server_with_schema;
use tokio::{runtime::Handle, task::JoinSet};
use tokio_postgres::{AsyncMessage, Client, NoTls, SimpleQueryMessage};

/// What an application may rely on in a session: nobody else changed its settings, listens there, or holds locks.
const SESSION: &str = "select concat_ws(' ', current_setting('search_path'), current_setting('statement_timeout'),
    current_setting('lock_timeout'), current_setting('seq_page_cost'), current_setting('enable_seqscan'),
    current_setting('default_transaction_isolation'), current_setting('synchronous_commit'), current_setting('jit'),
    current_setting('idle_in_transaction_session_timeout'), current_setting('tcp_keepalives_idle'),
    (select count(*) from pg_listening_channels()),
    (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())) from pg_sleep(random() / 100)";

fn prepared() -> Postgres {
    let server = server_with_schema(&["fsync=off"]);
    server.psql("create table app (id int)");
    server
}

/// A client that is connected again gets a session that another had, where the pooler lends them for longer.
const CALLS_OF_A_CONNECTION: u32 = 20;

/// Clients of the pooler, each busy all the time until `over`; more than it has connections for, if it lends them for a
/// transaction at a time.
struct Application {
    clients: JoinSet<u32>,
    over: Arc<AtomicBool>,
    notified: Arc<AtomicU32>,
}

impl Application {
    async fn start(pooler: &PgBouncer) -> Self {
        let (over, notified) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let mut clients = JoinSet::new();
        for _ in 0..12 {
            let mut client = connect(pooler.url(), &notified).await;
            let (url, over, notified) = (pooler.url(), Arc::clone(&over), Arc::clone(&notified));
            clients.spawn(async move {
                let mut calls = 0;
                while !over.load(Ordering::SeqCst) {
                    if calls % CALLS_OF_A_CONNECTION == 0 {
                        client = connect(url.clone(), &notified).await;
                    }
                    client.simple_query("select count(*) from app").await.unwrap();
                    let found = client.simple_query(SESSION).await.unwrap();
                    let rows = found.iter().filter_map(|message| match message {
                        SimpleQueryMessage::Row(row) => row.get(0),
                        _ => None,
                    });
                    let expected = "\"$user\", public 0 0 1 on read committed on on 0 7200 0 0";
                    assert_eq!(rows.collect::<Vec<_>>(), [expected], "somebody else changed this session");
                    calls += 1;
                }
                calls
            });
        }
        Self { clients, over, notified }
    }

    async fn noticed_nothing(mut self) {
        self.over.store(true, Ordering::SeqCst);
        while let Some(calls) = self.clients.join_next().await {
            assert!(calls.unwrap() > 10, "it was kept from working");
        }
        assert_eq!(self.notified.load(Ordering::SeqCst), 0, "it was notified of what is not its own");
    }
}

/// A client of the application; counts what it is notified of.
async fn connect(url: String, notified: &Arc<AtomicU32>) -> Client {
    let (client, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let count = Arc::clone(notified);
    Handle::current().spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            count.fetch_add(u32::from(matches!(message, AsyncMessage::Notification(_))), Ordering::SeqCst);
        }
    });
    client
}

/// Locks and waits beside a busy application, 60 times; `LEASEHOLD_SECONDS=300` for as long.
async fn beside_an_application(server: &Postgres, pooler: &PgBouncer, parameters: &str) {
    let application = Application::start(pooler).await;
    let near = Leasehold::connect(&server.url()).await.unwrap();
    let (begun, least) =
        (SystemClock.now(), env::var("LEASEHOLD_SECONDS").map_or(0, |seconds| seconds.parse().unwrap()));
    for at in 0.. {
        if at >= 60 && SystemClock.now().since(begun) >= Duration::from_secs(least) {
            println!("{at} rounds behind the pooler");
            break;
        }
        let far = Leasehold::connect(&format!("{}{parameters}", pooler.url())).await.unwrap();
        far.list(&ListFilter::new(Names::All)).await.unwrap();
        let guard = near.mutex("x").acquire().await.unwrap();
        let waits = far.mutex("x").wait(Duration::from_secs(30));
        let waiter = Handle::current().spawn(async move { waits.acquire().await?.release().await });
        if at % 20 == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap();
        far.close().await.unwrap();
    }
    application.noticed_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pool_is_shared_without_a_trace() {
    let server = prepared();
    beside_an_application(&server, &server.pgbouncer(), "").await;
}

/// Sessions that this library used, and some that leases ended with, are lent to the application afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn lent_sessions_are_given_back_without_a_trace() {
    let server = prepared();
    let pooler = server.pgbouncer_with(&["pool_mode = session", "default_pool_size = 40"]);
    for parameters in ["?pooler=session", "?pooler=session&liveness=connection"] {
        beside_an_application(&server, &pooler, parameters).await;
    }
}

/// The pooler lets `options` pass unread, as many do.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_ignores_options_is_noticed() {
    let server = prepared();
    let pooler = server.pgbouncer_with(&["ignore_startup_parameters = extra_float_digits, options"]);
    beside_an_application(&server, &pooler, "").await;
    for refused in ["liveness=connection", "liveness=connection&pooler=transaction"] {
        let error = Leasehold::connect(&format!("{}?{refused}", pooler.url())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_between_can_be_said() {
    let server = prepared();
    let sessions = server.pgbouncer_with(&["pool_mode = session"]);
    for (url, pushes) in [
        (format!("{}?pooler=session", sessions.url()), true),
        (format!("{}?pooler=none", server.url()), true),
        (server.url(), true),
        (format!("{}?pooler=transaction", server.url()), false),
        (server.pgbouncer().url(), false),
    ] {
        let locks = Leasehold::connect(&url).await.unwrap();
        assert_eq!(locks.guarantees().pushes, pushes, "{url}");
    }
    let lives = Leasehold::connect(&format!("{}?pooler=session&liveness=connection", sessions.url())).await.unwrap();
    lives.mutex("x").acquire().await.unwrap().release().await.unwrap();
    let error = Leasehold::connect(&format!("{}?pooler=maybe", server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

/// Defaults of the role or the database that no lock call could work with; a pooler lends such sessions to all.
#[tokio::test(flavor = "multi_thread")]
async fn other_defaults_of_transactions_do_not_matter_behind_a_pooler() {
    let server = prepared();
    server.psql(
        "alter database postgres set default_transaction_isolation = 'serializable';
         alter database postgres set default_transaction_read_only = on",
    );
    for url in [server.pgbouncer().url(), server.url()] {
        let locks = Leasehold::connect(&url).await.unwrap();
        let guard = locks.mutex("x").acquire().await.unwrap();
        assert_eq!(locks.list(&ListFilter::new(Names::All)).await.unwrap().leases.len(), 1);
        assert!(locks.mutex("x").try_acquire().await.unwrap().is_none());
        let findings = locks.examine().await.unwrap();
        assert!(findings.iter().any(|finding| finding.subject == "isolation"), "{findings:?}");
        guard.release().await.unwrap();
    }
}
