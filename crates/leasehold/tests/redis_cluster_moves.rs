//! A slot of a cluster moves to another server while its locks are held and waited for.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod shared;

use std::time::Duration;

use leasehold::{Guard, Leasehold, backend::Severity};
use leasehold_testkit::redis::{Cluster, RespReply, Server};
use shared::{Turns, soon};
use tokio::{sync::mpsc, task::JoinSet, time};

const WAITERS: usize = 8;

/// The master that has this name, and the key of its partition.
fn find<'a>(cluster: &'a Cluster, name: &str) -> (&'a Server, String) {
    for master in &cluster.servers[..3] {
        for leases in master.ask(&["KEYS", "*:leases"]).parts().iter().map(ToString::to_string) {
            if master.ask(&["HEXISTS", &leases, name]).to_string() == "1" {
                return (master, leases);
            }
        }
    }
    panic!("no master has {name}");
}

/// How many instances hear what they are told about this slot; all of them where pushes go to every server.
fn hear(server: &Server, slot: u16, cluster: &Cluster) -> usize {
    match server.ask(&["PUBSUB", "SHARDCHANNELS", "*"]) {
        RespReply::Many(channels) => {
            channels.iter().filter(|channel| cluster.slot(&channel.to_string()) == slot).count()
        }
        _ => usize::MAX,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_while_its_locks_are_held_and_waited_for() {
    let cluster = Cluster::start();
    let (one, two) =
        (Leasehold::connect(&cluster.url()).await.unwrap(), Leasehold::connect(&cluster.url()).await.unwrap());
    // Renewed several times while the slot moves.
    let held = one.mutex("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let (order, mut served) = mpsc::unbounded_channel();
    let mut waiting = JoinSet::new();
    let (from, key) = find(&cluster, "x");
    let queue = key.replace(":leases", ":entries:x");
    for waiter in 0..WAITERS {
        // Long leases: only a push tells them of their turn in time.
        let lock = [&one, &two][waiter % 2].mutex("x").ttl(Duration::from_secs(60)).wait(Duration::from_secs(60));
        let order = order.clone();
        waiting.spawn(async move {
            let guard: Guard = lock.acquire().await.unwrap();
            order.send((waiter, guard.fence())).unwrap();
            guard.release().await.unwrap();
        });
        soon(async || from.ask(&["HLEN", &queue]).to_string() == (2 * waiter + 2).to_string()).await;
    }
    // Locks of other slots on every server, and others of this one.
    let turns = Turns::begin(&cluster.url(), &["a", "b", "c", "d", "e", "f"]).await;
    turns.go_on(20).await;

    let slot = cluster.slot(&key);
    let to = cluster.servers[..3].iter().find(|server| server.port() != from.port()).unwrap();
    cluster.move_slot(slot, from, to, async || time::sleep(Duration::from_millis(700)).await).await;
    turns.go_on(30).await;
    held.check().expect("it was renewed where it is now");
    soon(async || hear(to, slot, &cluster) >= 2).await;

    let last = held.fence();
    held.release().await.unwrap();
    let all = time::timeout(Duration::from_secs(5), async {
        let mut all = Vec::new();
        while all.len() < WAITERS {
            all.push(served.recv().await.unwrap());
        }
        all
    });
    let all = all.await.expect("each is told of its turn");
    assert_eq!(all.iter().map(|(waiter, _)| *waiter).collect::<Vec<_>>(), (0..WAITERS).collect::<Vec<_>>());
    assert!(all.iter().map(|(_, fence)| *fence).is_sorted_by(|one, next| one < next) && all[0].1 > last, "{all:?}");
    while let Some(waiter) = waiting.join_next().await {
        waiter.unwrap();
    }
    assert_eq!(to.ask(&["EXISTS", &queue]).to_string(), "0", "nothing is left of it");

    // Away and back again while nobody asks: whoever waits next is told of its turn all the same.
    cluster.move_slot(slot, to, from, async || ()).await;
    cluster.move_slot(slot, from, to, async || ()).await;
    let held = one.mutex("x").wait(Duration::from_secs(10)).acquire().await.unwrap();
    let lock = two.mutex("x").ttl(Duration::from_secs(60)).wait(Duration::from_secs(60));
    waiting.spawn(async move { lock.acquire().await.unwrap().release().await.map(drop).unwrap() });
    soon(async || to.ask(&["HLEN", &queue]).to_string() == "2").await;
    held.release().await.unwrap();
    let told = time::timeout(Duration::from_secs(5), waiting.join_next()).await;
    told.expect("its turn is told").unwrap().unwrap();

    // Those that were told that a slot has gone are still heard on the other slots of that server.
    for locks in [&one, &two] {
        for at in 0..30 {
            let lock = locks.mutex(format!("after:{at}")).wait(Duration::from_secs(5));
            lock.acquire().await.unwrap().release().await.unwrap();
        }
    }
    turns.go_on(30).await;
    turns.end().await.assert_exclusive();

    let findings = one.examine().await.unwrap();
    let of = |subject: &'static str| findings.iter().filter(move |finding| finding.subject == subject);
    for subject in ["reachable", "clock offset", "version", "memory"] {
        assert_eq!(of(subject).count(), 3, "each master is examined: {findings:?}");
    }
    assert!(of("rights").all(|finding| finding.severity == Severity::Ok), "{findings:?}");
}
