//! What tests of several servers do: programs that take turns on a few locks before a witness, and ways to wait.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part of it")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use leasehold::{Guard, Leasehold, blocking};
use leasehold_testkit::{Witness, redis::Server};
use tokio::{task::JoinSet, time};

/// Short, so that what is lost costs a test little.
pub const TTL: Duration = Duration::from_millis(1500);

/// Workers of two programs that take turns until they are told to stop.
pub struct Turns {
    witness: Witness,
    names: Vec<&'static str>,
    stop: Arc<AtomicBool>,
    workers: JoinSet<()>,
}

impl Turns {
    /// Two programs with four workers each, on these locks.
    pub async fn begin(url: &str, names: &[&'static str]) -> Self {
        Self::run(url, names, Witness::default()).await
    }

    /// Two more programs on the locks of others, before the eyes of the same witness.
    pub async fn join(others: &Self, url: &str) -> Self {
        Self::run(url, &others.names, others.witness.clone()).await
    }

    async fn run(url: &str, names: &[&'static str], witness: Witness) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = JoinSet::new();
        for _ in 0..2 {
            let locks = Leasehold::connect(url).await.expect("it can be reached");
            for at in 0..4 {
                let worker = Worker { locks: locks.clone(), name: names[at % names.len()], witness: witness.clone() };
                workers.spawn(worker.run(Arc::clone(&stop)));
            }
        }
        Self { witness, names: names.to_vec(), stop, workers }
    }

    /// Waits until there were so many more turns.
    pub async fn go_on(&self, turns: u64) {
        let from = self.witness.entered();
        let more = async {
            while self.witness.entered() < from + turns {
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        time::timeout(Duration::from_secs(30), more).await.expect("everything recovers by itself");
    }

    /// Stops the workers and tells what was seen.
    pub async fn end(mut self) -> Seen {
        self.stop.store(true, Ordering::SeqCst);
        let ended = async { while self.workers.join_next().await.is_some_and(|ended| ended.is_ok()) {} };
        time::timeout(Duration::from_secs(20), ended).await.expect("workers end");
        Seen(self.witness)
    }
}

/// What was seen.
pub struct Seen(Witness);

impl Seen {
    /// No two believed at once, and fences rose.
    pub fn assert_exclusive(&self) {
        assert!(self.0.overlaps().is_empty(), "two believed at once: {:?}", self.0.overlaps());
        self.assert_fences_rise();
    }

    /// Fences rose, whatever was forgotten.
    pub fn assert_fences_rise(&self) {
        assert!(self.0.falls().is_empty(), "fences fell: {:?}", self.0.falls());
    }
}

struct Worker {
    locks: Leasehold,
    name: &'static str,
    witness: Witness,
}

impl Worker {
    async fn run(self, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::SeqCst) {
            let lock = self.locks.mutex(self.name).ttl(TTL).wait(Duration::from_secs(3));
            let Ok(guard) = lock.acquire().await else {
                time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            if guard.check().is_err() {
                continue;
            }
            let stay = self.witness.enter(self.name, guard.fence().get());
            tokio::select! {
                _ = guard.lost() => {}
                () = time::sleep(Duration::from_millis(8)) => {}
            }
            drop(stay);
            let _lost_or_unreachable = guard.release().await;
        }
    }
}

/// Asks until the way to the server is open again.
pub fn hold_at_last(locks: &Leasehold, name: &str, ttl: Duration) -> Guard {
    for _ in 0..200 {
        match blocking::wait(locks.mutex(name).ttl(ttl).acquire()) {
            Ok(guard) => return guard,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("{name} was not granted after the server came back");
}

/// A lease of `long` that outlasts a failover, and the instance that holds it.
pub async fn hold_for_a_minute(url: &str) -> (Leasehold, Guard) {
    let locks = Leasehold::connect(url).await.unwrap();
    let guard = locks.mutex("long").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    (locks, guard)
}

/// A Redis server that follows this one.
pub async fn replica_of(master: &Server) -> Server {
    let replica = Server::with(&["--save", "", "--replicaof", "127.0.0.1", &master.port().to_string()]);
    soon(async || replica.ask(&["INFO", "replication"]).to_string().contains("master_link_status:up")).await;
    replica
}

/// Waits for something that must come soon.
pub async fn soon(is_so: impl AsyncFn() -> bool) {
    let came = async {
        while !is_so().await {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(Duration::from_secs(10), came).await.expect("it comes soon");
}
