//! A private Postgres with leasehold's schema and the classic functions, and clients that call them.

use std::{
    collections::HashMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::poll_fn};
use leasehold::{
    backends::postgres::{PostgresOptions, install},
    clock::SystemClock,
};
use leasehold_testkit::postgres::Postgres;
use parking_lot::Mutex;
use tokio::{
    runtime::{Handle, Runtime},
    sync::oneshot,
    task::yield_now,
};
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use crate::{Result, comparison::Contender, pairs};

/// Starts a server; one that is durable waits for the disk.
pub(crate) fn server(runtime: &Runtime, durable: bool) -> Result<Postgres> {
    let commit = if durable { "synchronous_commit=on" } else { "synchronous_commit=off" };
    let server = Postgres::start_with(&["fsync=on", commit]);
    let limit = Duration::from_secs(10);
    let options = PostgresOptions::from_url(&server.url(), "default", Arc::new(SystemClock), limit)?;
    runtime.block_on(install(options, None))?;
    server.psql(include_str!("classic.sql"));
    Ok(server)
}

/// The functions that a client calls for a pair.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Functions {
    Leasehold,
    Classic,
}

impl Functions {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Leasehold => "leasehold",
            Self::Classic => "classic functions",
        }
    }

    fn texts(self) -> [&'static str; 2] {
        match self {
            Self::Leasehold => ["select leasehold.acquire_lock($1, $2)", "select leasehold.release_lock($1, $2)"],
            Self::Classic => ["select classic_acquire($1, $2)", "select classic_release($1, $2)"],
        }
    }
}

/// One connection and its prepared statements.
struct Caller {
    client: Client,
    acquire: Statement,
    release: Statement,
}

impl Caller {
    async fn connect(server: &Postgres, [acquire, release]: [&str; 2], clients: u64) -> Result<Vec<Self>> {
        let mut callers = Vec::new();
        for _ in 0..clients {
            let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
            Handle::current().spawn(connection);
            let (acquire, release) = (client.prepare(acquire).await?, client.prepare(release).await?);
            callers.push(Self { client, acquire, release });
        }
        Ok(callers)
    }
}

fn caller(callers: &[Caller], number: u64) -> Result<&Caller> {
    Ok(usize::try_from(number).ok().and_then(|at| callers.get(at)).ok_or("no such client")?)
}

/// Clients of one kind.
#[derive(Clone)]
pub(crate) struct Callers(Arc<Vec<Caller>>);

impl Callers {
    pub(crate) async fn connect(server: &Postgres, functions: Functions, clients: u64) -> Result<Self> {
        Ok(Self(Arc::new(Caller::connect(server, functions.texts(), clients).await?)))
    }

    /// Uncontended pairs, each client on its own name.
    pub(crate) fn pairs<'a>(&'a self, name: &'static str, runtime: &'a Runtime) -> Contender<'a> {
        self.contender(name, runtime, |callers, number, count| async move { callers.pair(number, count).await })
    }

    /// Attempts on one name that another holds.
    pub(crate) fn tries<'a>(&'a self, name: &'static str, runtime: &'a Runtime) -> Contender<'a> {
        self.contender(name, runtime, |callers, number, count| async move { callers.fail(number, count).await })
    }

    /// A contender whose clients each do this with a number of their own.
    fn contender<'a, F>(
        &'a self,
        name: &'static str,
        runtime: &'a Runtime,
        operate: impl Fn(Self, u64, u64) -> F + 'a,
    ) -> Contender<'a>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let clients = self.0.len() as u64;
        Contender::new(name, move |count| {
            pairs::spread(runtime, clients, count, |number, count| operate(self.clone(), number, count))
        })
    }

    async fn pair(&self, number: u64, count: u64) -> Result<()> {
        let caller = caller(&self.0, number)?;
        let (name, holder) = (format!("order:{number}"), format!("worker:{number}"));
        for _ in 0..count {
            for statement in [&caller.acquire, &caller.release] {
                if !caller.client.query_one(statement, &[&name, &holder]).await?.get::<_, bool>(0) {
                    return Err("a lock that nobody else uses was not free".into());
                }
            }
        }
        Ok(())
    }

    async fn fail(&self, number: u64, count: u64) -> Result<()> {
        let caller = caller(&self.0, number)?;
        let holder = format!("worker:{number}");
        for _ in 0..count {
            if caller.client.query_one(&caller.acquire, &[&"busy", &holder]).await?.get::<_, bool>(0) {
                return Err("a lock that another holds was granted".into());
            }
        }
        Ok(())
    }
}

/// Connections that block in `pg_advisory_lock`.
#[derive(Clone)]
pub(crate) struct Blocked(Arc<Vec<Caller>>);

impl Blocked {
    pub(crate) async fn connect(server: &Postgres, clients: u64) -> Result<Self> {
        let texts = ["select pg_advisory_lock(7)", "select pg_advisory_unlock(7)"];
        Ok(Self(Arc::new(Caller::connect(server, texts, clients).await?)))
    }

    /// Takes turns on one key: each lets the others run while it holds.
    pub(crate) fn in_turns<'a>(&'a self, name: &'static str, runtime: &'a Runtime) -> Contender<'a> {
        let clients = self.0.len() as u64;
        Contender::new(name, move |count| {
            pairs::spread(runtime, clients, count, |number, count| {
                let callers = Arc::clone(&self.0);
                async move {
                    let caller = caller(&callers, number)?;
                    for _ in 0..count {
                        caller.client.execute(&caller.acquire, &[]).await?;
                        yield_now().await;
                        caller.client.execute(&caller.release, &[]).await?;
                    }
                    Ok(())
                }
            })
        })
    }
}

/// Connections that share a bare lock, whose waiters are woken by NOTIFY.
#[derive(Clone)]
pub(crate) struct Notified(Arc<Vec<NotifiedConnection>>);

/// One connection, and those who wait by it.
struct NotifiedConnection {
    caller: Caller,
    channel: String,
    next_ticket: AtomicI64,
    waiters: Arc<Mutex<HashMap<i64, oneshot::Sender<()>>>>,
}

impl Notified {
    pub(crate) async fn connect(server: &Postgres, count: u64) -> Result<Self> {
        let mut connections = Vec::new();
        for number in 0..count {
            let (client, mut connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
            let waiters = Arc::new(Mutex::new(HashMap::<i64, oneshot::Sender<()>>::new()));
            let waiting = Arc::clone(&waiters);
            Handle::current().spawn(async move {
                let mut messages = poll_fn(|context| connection.poll_message(context));
                while let Some(Ok(message)) = messages.next().await {
                    if let AsyncMessage::Notification(granted) = message
                        && let Ok(ticket) = granted.payload().parse()
                        && let Some(waiter) = waiting.lock().remove(&ticket)
                    {
                        let _waiter_left = waiter.send(());
                    }
                }
            });
            let channel = format!("notified_{number}");
            client.batch_execute(&format!("listen {channel}")).await?;
            let acquire = client.prepare("select notified_acquire($1, $2)").await?;
            let release = client.prepare("select notified_release()").await?;
            let caller = Caller { client, acquire, release };
            connections.push(NotifiedConnection { caller, channel, next_ticket: AtomicI64::new(0), waiters });
        }
        Ok(Self(Arc::new(connections)))
    }

    /// Takes turns, as `tasks` tasks that share the connections: each lets the others run while it holds.
    pub(crate) fn in_turns<'a>(&'a self, name: &'static str, tasks: u64, runtime: &'a Runtime) -> Contender<'a> {
        Contender::new(name, move |count| {
            pairs::spread(runtime, tasks, count, |number, count| {
                let connections = Arc::clone(&self.0);
                async move {
                    let at = usize::try_from(number)? % connections.len();
                    for _ in 0..count {
                        connections[at].acquire().await?;
                        yield_now().await;
                        let Caller { client, release, .. } = &connections[at].caller;
                        client.execute(release, &[]).await?;
                    }
                    Ok(())
                }
            })
        })
    }
}

impl NotifiedConnection {
    async fn acquire(&self) -> Result<()> {
        let ticket = self.next_ticket.fetch_add(1, Relaxed);
        let (granted, grant) = oneshot::channel();
        self.waiters.lock().insert(ticket, granted);
        let Caller { client, acquire, .. } = &self.caller;
        if client.query_one(acquire, &[&ticket, &self.channel]).await?.get(0) {
            self.waiters.lock().remove(&ticket);
            return Ok(());
        }
        Ok(grant.await?)
    }
}

/// The processor time of all processes that work for the server now, in microseconds.
pub(crate) fn server_cpu(server: &Postgres) -> f64 {
    server.psql("select string_agg(pid::text, ' ') from pg_stat_activity").split_whitespace().map(cpu_of).sum()
}

fn cpu_of(pid: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // Hundredths of a second: user and system.
    fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 1e4
}
