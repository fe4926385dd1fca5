//! Locks on one Redis server: leasehold, rslock, and the least that a lock can cost, in interleaved rounds.
//!
//! `cargo bench -p leasehold --features redis --bench redis [rounds]`. Starts a private server. Numbers of one
//! machine mean little: look at the ratios of the same round and at the commands.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold::{
    Leasehold,
    clock::{Clock, SystemClock},
};
use leasehold_testkit::redis::Server;
use redis::{Script, aio::MultiplexedConnection};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);
const SPAN: Duration = Duration::from_millis(700);

/// What is compared.
#[derive(Clone)]
enum Peer {
    /// SET NX PX, then compare and delete.
    Raw(MultiplexedConnection),
    Rslock(Arc<rslock::LockManager>),
    Leasehold(Leasehold),
}

const PEERS: [&str; 3] = ["raw", "rslock", "leasehold"];

impl Peer {
    async fn new(name: &str, server: &Server) -> Self {
        let url = server.url();
        match name {
            "raw" => {
                let client = redis::Client::open(url).expect("a good URL");
                Self::Raw(client.get_multiplexed_async_connection().await.expect("the server runs"))
            }
            "rslock" => Self::Rslock(Arc::new(rslock::LockManager::new(vec![url]))),
            _ => Self::Leasehold(Leasehold::builder().wait_forever().connect(&url).await.expect("the server runs")),
        }
    }

    async fn pair(&mut self, name: &str, at: u64) {
        match self {
            Self::Raw(connection) => raw_pair(connection, name, at).await,
            Self::Rslock(manager) => {
                let lock = manager.lock(name.as_bytes(), TTL).await.expect("it is free");
                manager.unlock(&lock).await;
            }
            Self::Leasehold(locks) => {
                let guard = locks.mutex(name).ttl(TTL).acquire().await.expect("it is free");
                guard.release().await.expect("it is held");
            }
        }
    }
}

async fn raw_pair(connection: &mut MultiplexedConnection, name: &str, at: u64) {
    static FREE: std::sync::LazyLock<Script> = std::sync::LazyLock::new(|| {
        Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0")
    });
    let value = format!("{at:032}");
    let mut set = redis::cmd("SET");
    set.arg(name).arg(&value).arg("NX").arg("PX").arg(30_000);
    let _: Option<String> = set.query_async(connection).await.expect("the server runs");
    let _: u64 = FREE.key(name).arg(value).invoke_async(connection).await.expect("the server runs");
}

/// One measurement: pairs a second, commands a pair, and the time of the processors on each side for each.
struct Measured {
    rate: f64,
    commands: f64,
    server_micros: f64,
    client_micros: f64,
}

async fn measure(peer: &Peer, tasks: u64, server: &Server) -> Measured {
    peer.clone().pair("warm", 0).await;
    server.reset_calls();
    let (server_before, client_before) = (cpu(server), own_cpu());
    let done = Arc::new(AtomicU64::new(0));
    let started = SystemClock.now();
    let mut working = JoinSet::new();
    for task in 0..tasks {
        let (mut peer, done) = (peer.clone(), Arc::clone(&done));
        working.spawn(async move {
            let mut at = 0;
            while SystemClock.now().since(started) < SPAN {
                at += 1;
                peer.pair(&format!("bench:{task}:{at}"), at).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while working.join_next().await.is_some() {}
    let took = SystemClock.now().since(started).as_secs_f64();
    let pairs = f64::from(u32::try_from(done.load(Ordering::Relaxed)).unwrap_or(u32::MAX));
    let sent = match peer {
        Peer::Leasehold(_) => server.calls("evalsha"),
        // What their script calls does not count: SET is theirs, GET and DEL are the script's.
        _ => server.calls("evalsha") + server.calls("eval") + server.calls("set"),
    };
    let commands = f64::from(u32::try_from(sent).unwrap_or(u32::MAX)) / pairs;
    Measured {
        rate: pairs / took,
        commands,
        server_micros: (cpu(server) - server_before) * 1e6 / pairs,
        client_micros: (own_cpu() - client_before) * 1e6 / pairs,
    }
}

/// Seconds that the server has worked.
fn cpu(server: &Server) -> f64 {
    let told = server.ask(&["INFO", "cpu"]).to_string();
    let of = |name: &str| told.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    of("used_cpu_user:").unwrap_or(0.0) + of("used_cpu_sys:").unwrap_or(0.0)
}

/// Hand-offs a second among waiters of one process, all queued before the first release.
async fn drain(waiters: u64, server: &Server) -> (f64, f64) {
    let locks = Leasehold::builder().wait_forever().connect(&server.url()).await.expect("the server runs");
    let guard = locks.mutex("drain").acquire().await.expect("it is free");
    server.reset_calls();
    let mut working = JoinSet::new();
    for _ in 0..waiters {
        let lock = locks.mutex("drain");
        working.spawn(async move {
            let guard = lock.acquire().await.expect("its turn comes");
            guard.release().await.expect("it is held");
        });
    }
    while server.ask(&["HLEN", "leasehold:{default}:entries:drain"]).to_string() != (2 * waiters).to_string() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let started = SystemClock.now();
    guard.release().await.expect("it is held");
    while working.join_next().await.is_some() {}
    let took = SystemClock.now().since(started).as_secs_f64();
    let count = f64::from(u32::try_from(waiters).unwrap_or(u32::MAX));
    (count / took, f64::from(u32::try_from(server.calls("evalsha")).unwrap_or(u32::MAX)) / count)
}

/// Seconds that this process has used of the processors.
fn own_cpu() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(used.tv_sec).unwrap_or(0), u32::try_from(used.tv_nsec).unwrap_or(0)).as_secs_f64()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let rounds = env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(7);
    let server = Server::start();
    let mut peers = Vec::new();
    for name in PEERS {
        peers.push(Peer::new(name, &server).await);
    }
    for tasks in [1, 64] {
        let mut measured: Vec<Vec<Measured>> = (0..PEERS.len()).map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for turn in 0..PEERS.len() {
                let at = (turn + round) % PEERS.len();
                measured[at].push(measure(&peers[at], tasks, &server).await);
            }
        }
        println!("\nuncontended acquire + release, {tasks} tasks, {rounds} rounds");
        println!(
            "{:<10} {:>12} {:>10} {:>14} {:>16} {:>16}",
            "", "pairs/s", "of raw", "commands/pair", "server us/pair", "client us/pair"
        );
        for (at, name) in PEERS.iter().enumerate() {
            let ratios = measured[at].iter().zip(&measured[0]).map(|(one, raw)| one.rate / raw.rate).collect();
            let of = |what: fn(&Measured) -> f64| median(measured[at].iter().map(what).collect());
            println!(
                "{name:<10} {:>12.0} {:>10.2} {:>14.2} {:>16.1} {:>16.1}",
                of(|one| one.rate),
                median(ratios),
                of(|one| one.commands),
                of(|one| one.server_micros),
                of(|one| one.client_micros),
            );
        }
    }
    for waiters in [16, 64, 1000] {
        let mut rates = Vec::new();
        let mut commands = 0.0;
        for _ in 0..rounds {
            let (rate, each) = drain(waiters, &server).await;
            rates.push(rate);
            commands = each;
        }
        println!("hand-off among {waiters} waiters: {:.0} a second, {commands:.2} commands each", median(rates));
    }
}
