//! Another server takes over: sentinels and clusters, during work.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

mod shared;

use std::{future::poll_fn, time::Duration};

use leasehold::{Guard, Leasehold, Loss, lease::Names};
use leasehold_testkit::{
    Proxy,
    redis::{Cluster, Sentinel, Server},
};
use shared::{Turns, hold_for_a_minute, replica_of, soon};
use tokio::time;

/// Everything goes on after a failover, and the replica knows the lease.
async fn go_on_well(turns: Turns, guard: Guard) {
    turns.go_on(20).await;
    guard.check().expect("the replica had it");
    guard.release().await.unwrap();
    turns.end().await.assert_fences_rise();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_steps_down_is_followed() {
    let sentinel = Sentinel::start();
    let (_locks, guard) = hold_for_a_minute(&sentinel.url()).await;
    let turns = Turns::begin(&sentinel.url(), &["a", "b", "c"]).await;
    turns.go_on(20).await;

    let before = sentinel.master();
    sentinel.replicated();
    sentinel.fail_over();
    soon(async || sentinel.master() != before).await;
    go_on_well(turns, guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_replaced_and_followed() {
    let mut sentinel = Sentinel::start();
    let (_locks, guard) = hold_for_a_minute(&sentinel.url()).await;
    let turns = Turns::begin(&sentinel.url(), &["a", "b", "c"]).await;
    turns.go_on(20).await;
    sentinel.replicated();
    sentinel.servers[0].kill();
    go_on_well(turns, guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_cluster_takes_over_and_is_followed() {
    let mut cluster = Cluster::start();
    let locks = Leasehold::connect(&cluster.url()).await.unwrap();
    // On every master: at least some of them are on the one that dies.
    let mut guards = Vec::new();
    for at in 0..30 {
        guards.push(locks.mutex(format!("long:{at}")).ttl(Duration::from_secs(60)).acquire().await.unwrap());
    }
    let turns = Turns::begin(&cluster.url(), &["a", "b", "c", "d"]).await;
    turns.go_on(20).await;
    time::sleep(Duration::from_millis(200)).await;

    // Slot 0 is with the first server; its replica steps in without a loss.
    promote(&cluster, 3, 0).await;
    turns.go_on(30).await;
    for guard in &guards {
        guard.check().expect("a failover by agreement loses nothing");
    }

    // The second server dies.
    cluster.servers[1].kill();
    time::sleep(Duration::from_secs(3)).await;
    let replica = cluster.servers[4].port();
    soon(async || cluster.owner(8000) == Some(replica)).await;
    turns.go_on(30).await;
    for at in 0..30 {
        let lock = locks.mutex(format!("after:{at}")).wait(Duration::from_secs(10));
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    for guard in guards {
        guard.check().expect("the replica had it: it was written long before");
        guard.release().await.unwrap();
    }
    turns.end().await.assert_fences_rise();
}

/// Has a replica take its master's place by agreement, and waits until it has the slot.
async fn promote(cluster: &Cluster, replica: usize, slot: u16) {
    let port = cluster.servers[replica].port();
    for looks in 0..180 {
        if cluster.owner(slot) == Some(port) {
            break;
        }
        // Servers that do not agree within 5 s give up, and are asked again.
        if looks % 60 == 0 {
            cluster.servers[replica].ask(&["CLUSTER", "FAILOVER"]);
        }
        time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(cluster.owner(slot), Some(port));
}

/// A replica confirms subscriptions, too, and its master would take whoever listens there for absent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_listens_to_the_new_master_of_its_slot() {
    let cluster = Cluster::start();
    let locks = Leasehold::connect(&cluster.url()).await.unwrap();
    let long = Duration::from_secs(600);
    let held = locks.mutex("x").ttl(long).acquire().await.unwrap();
    let waiter = locks.mutex("x").ttl(long).wait(long);
    let waiter = tokio::runtime::Handle::current().spawn(async move { waiter.acquire().await });
    let listens = |server: &Server| !server.ask(&["PUBSUB", "SHARDCHANNELS", "*:to:*"]).parts().is_empty();
    let is_there = |(_, server): &(usize, &Server)| listens(server);
    soon(async || cluster.servers.iter().enumerate().any(|server| is_there(&server))).await;
    let (master, _) = cluster.servers.iter().enumerate().find(is_there).unwrap();

    let slot = [0, 8000, 16_000][master];
    promote(&cluster, master + 3, slot).await;
    soon(async || listens(&cluster.servers[master + 3])).await;
    held.release().await.unwrap();
    let next = time::timeout(Duration::from_secs(20), waiter).await.expect("it is told at once").unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_takes_no_lock_of_another_with_it() {
    let cluster = Cluster::start();
    let locks = Leasehold::connect(&cluster.url()).await.unwrap();
    let mut guards = Vec::new();
    for at in 0..30 {
        // All are renewed together, and soon.
        guards.push(locks.mutex(format!("l{at}")).ttl(Duration::from_millis(2400)).acquire().await.unwrap());
    }
    let hung = &cluster.servers[0];
    let mut names = String::new();
    for leases in hung.ask(&["KEYS", "*:leases"]).parts() {
        names += &hung.ask(&["HKEYS", &leases.to_string()]).to_string();
    }
    let is_there = |guard: &Guard| names.lines().any(|name| name == guard.resource().as_str());
    let (there, elsewhere): (Vec<Guard>, Vec<Guard>) = guards.into_iter().partition(is_there);
    assert!(!there.is_empty() && elsewhere.len() >= 10, "they are spread over all servers");

    hung.signal("STOP");
    time::sleep(Duration::from_secs(4)).await;
    hung.signal("CONT");
    for guard in &elsewhere {
        guard.check().expect("its own server answers");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_failover_lost_is_told_by_the_next_renewal() {
    let sentinel = Sentinel::start();
    let locks = Leasehold::connect(&sentinel.url()).await.unwrap();
    let (master, replica) = (&sentinel.servers[0], &sentinel.servers[1]);
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    sentinel.replicated();
    // The replica stands still while the lock is taken, so that it never hears of it.
    replica.signal("STOP");
    let guard = locks.mutex("long").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let fence = guard.fence();
    master.signal("STOP");
    replica.signal("CONT");
    let replica_port = replica.port();
    soon(async || sentinel.master() == replica_port).await;
    let loss = time::timeout(Duration::from_secs(15), guard.lost()).await;
    master.signal("CONT");
    // The bytes may still have been on their way: then the replica knows it after all.
    if let Ok(loss) = loss {
        assert_eq!(loss, Loss::Gone);
        let next = locks.mutex("long").acquire().await.unwrap();
        assert!(next.fence() > fence);
    } else {
        guard.check().expect("the replica knew it");
    }
}

/// One address, the replica promoted and the master demoted, with connections to it left open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_became_a_replica_is_left_for_the_one_behind_the_same_address() {
    let master = Server::start();
    let replica = replica_of(&master).await;
    let address = Proxy::to(master.port());
    let locks = Leasehold::connect(&format!("redis://127.0.0.1:{}", address.port())).await.unwrap();
    let guard = locks.mutex("long").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    soon(async || replica.ask(&["HEXISTS", "leasehold:{default}:leases", "long"]).to_string() == "1").await;

    address.lead_to(replica.port());
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    master.command(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]);
    let next = locks.mutex("next").acquire().await.expect("another connection leads to the new master");
    next.release().await.unwrap();
    time::sleep(Duration::from_secs(4)).await;
    guard.check().expect("it was renewed on the new master");
    guard.release().await.unwrap();

    // Where a fresh connection leads to a replica as well, that is what is wrong.
    address.lead_to(master.port());
    replica.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    replica.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let error = locks.mutex("never").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("it is a replica"), "{error}");
}

/// What a master publishes reaches those who listen to its replica, too, and it does not count them.
///
/// 1. `stays` waits first and listens to the master, which then becomes a replica and leaves the connection open.
/// 2. The holder releases on the new master: nobody listens there for `stays`, so it is passed over.
/// 3. `moves` is granted. If `stays` had been told of a grant, both would hold, with one fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_passed_over_learns_of_no_grant_by_way_of_a_replica() {
    let master = Server::start();
    let replica = replica_of(&master).await;
    let ways: Vec<Proxy> = (0..3).map(|_| Proxy::to(master.port())).collect();
    let mut clients = Vec::new();
    for way in &ways {
        clients.push(Leasehold::connect(&format!("redis://127.0.0.1:{}", way.port())).await.unwrap());
    }
    let long = Duration::from_secs(600);
    let held = clients[0].mutex("x").ttl(long).acquire().await.unwrap();
    let entries = "leasehold:{default}:entries:x";
    let mut waiters = Vec::new();
    for (at, client) in clients[1..].iter().enumerate() {
        let waiter = client.mutex("x").ttl(long).wait(long);
        waiters.push(tokio::runtime::Handle::current().spawn(async move { waiter.acquire().await }));
        soon(async || replica.ask(&["HLEN", entries]).to_string() == (2 * at + 2).to_string()).await;
    }
    let (moves, stays) = (waiters.pop().unwrap(), waiters.pop().unwrap());

    replica.command(&["REPLICAOF", "NO", "ONE"]);
    master.command(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]);
    soon(async || master.ask(&["INFO", "replication"]).to_string().contains("master_link_status:up")).await;
    for moved in [&ways[0], &ways[2]] {
        moved.lead_to(replica.port());
        moved.cut();
        moved.mend();
    }
    soon(async || replica.ask(&["PUBSUB", "CHANNELS", "*:to:*"]).parts().len() == 2).await;
    held.release().await.unwrap();
    let moves = time::timeout(Duration::from_secs(20), moves).await.expect("it is next").unwrap().unwrap();
    let told = time::timeout(Duration::from_secs(1), stays).await;
    assert!(told.is_err(), "both hold it: {moves:?} and {told:?}");
    moves.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_of_a_cluster_sees_events_after_any_server_was_replaced() {
    let mut cluster = Cluster::start();
    let (locks, watcher) =
        (Leasehold::connect(&cluster.url()).await.unwrap(), Leasehold::connect(&cluster.url()).await.unwrap());
    let mut events = watcher.watch(Names::All).await.unwrap();
    let mut seen = async |locks: &Leasehold, name: String| {
        locks.mutex(&name).wait(Duration::from_secs(20)).acquire().await.unwrap().release().await.unwrap();
        let wanted = async {
            loop {
                match poll_fn(|context| events.as_mut().poll_next(context)).await.unwrap() {
                    Ok(event) if event.resource.as_str() == name => return,
                    _ => {}
                }
            }
        };
        time::timeout(Duration::from_secs(2), wanted).await.is_ok()
    };
    assert!(seen(&locks, String::from("first")).await);
    for (master, slot) in [(0, 0), (1, 8000), (2, 16_000)] {
        cluster.servers[master].kill();
        let replica = cluster.servers[master + 3].port();
        time::sleep(Duration::from_secs(3)).await;
        soon(async || cluster.owner(slot) == Some(replica)).await;
        let mut tries = 0;
        while !seen(&locks, format!("after-{master}-{tries}")).await {
            tries += 1;
            assert!(tries < 10, "it is deaf since server {master} was replaced");
        }
    }
}
