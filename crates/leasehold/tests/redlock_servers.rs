//! A quorum of real Redis servers by its URL, some of them away or young.
#![cfg(feature = "redlock")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{future::poll_fn, time::Duration};

use leasehold::{ErrorKind, Leasehold, backend::Severity, lease::Names};
use leasehold_testkit::{Proxy, redis::Server, until};
use tokio::runtime::Handle;

fn url(servers: &[&str], query: &str) -> String {
    let hosts: Vec<&str> = servers.iter().map(|url| url.trim_start_matches("redis://").trim_end_matches('/')).collect();
    format!("redlock://{}?{query}", hosts.join(","))
}

#[tokio::test]
async fn a_minority_may_be_away_when_it_is_opened() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let away = ["redis://127.0.0.1:1", "redis://127.0.0.1:2"];
    let five = [away[0], &urls[0], &urls[1], away[1], &urls[2]];
    // Two of three answers are too few: a busy machine must not cost one.
    let locks = Leasehold::connect(&url(&five, "longest_ttl=0&node_limit=5s")).await.unwrap();
    let mut last = leasehold::Fence::default();
    for _ in 0..20 {
        let guard = locks.mutex("x").acquire().await.unwrap();
        assert!(guard.fence() > last);
        last = guard.fence();
        guard.release().await.unwrap();
    }
    let refused = Leasehold::connect(&url(&[away[0], away[1], &urls[0]], "")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_hung_node_does_not_hold_up_opening() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    servers[0].signal("STOP");
    let address = url(&[&urls[0], &urls[1], &urls[2]], "longest_ttl=0&node_limit=5s");
    // One that waited for the hung node would wait until the limit.
    let open = Leasehold::builder().connect_limit(Duration::from_secs(60)).connect(&address);
    let locks = tokio::time::timeout(Duration::from_secs(30), open).await.expect("nobody waits for it").unwrap();
    let guard = locks.mutex("x").acquire().await.unwrap();
    servers[0].signal("CONT");
    until(|| servers[0].calls("evalsha") > 0);
    guard.release().await.unwrap();
}

/// Whoever may not ask for a node's run id cannot know that it was started again from an old dump.
#[tokio::test]
async fn a_node_that_does_not_allow_info_is_refused() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    for server in &servers {
        let user = ["ACL", "SETUSER", "locker", "on", "nopass", "~*", "&*", "+@all", "-info"];
        server.command(&user);
    }
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let address = format!("redlock://locker:any@{}", hosts.join(","));
    let error = Leasehold::connect(&address).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("ACL SETUSER <user> +info"), "{error}");
    // Nodes that lose nothing need not be asked, and who was refused has left nothing there by which others would disagree.
    Leasehold::connect(&format!("{address}?longest_ttl=0")).await.unwrap();
}

/// Three servers, the first two behind addresses that can lead elsewhere, and a quorum in which all of them vote.
struct Quorum {
    servers: Vec<Server>,
    addresses: Vec<Proxy>,
    locks: Leasehold,
}

impl Quorum {
    async fn of_voters(dump: bool) -> Self {
        let settings: &[&str] = if dump { &["--save", "3600 1"] } else { &["--save", "", "--appendonly", "no"] };
        let servers: Vec<Server> = (0..3).map(|_| Server::with(settings)).collect();
        let addresses: Vec<Proxy> = servers.iter().map(|server| Proxy::to(server.port())).collect();
        let urls: Vec<String> = addresses.iter().map(|proxy| format!("redis://127.0.0.1:{}", proxy.port())).collect();
        // The shortest quarantine is 11 s, however short the ttl.
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let locks = Leasehold::connect(&url(&urls, "longest_ttl=6s&node_limit=5s")).await.unwrap();
        let quorum = Self { servers, addresses, locks };
        let error = quorum.try_once().await.unwrap_err();
        assert!(error.to_string().contains("votes in"), "a fresh server votes at once: {error}");
        for _ in 0..300 {
            match quorum.try_once().await {
                Ok(()) => return quorum,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        panic!("they do not vote: {:?}", quorum.try_once().await);
    }

    async fn try_once(&self) -> leasehold::Result<()> {
        let guard = self.locks.mutex("x").ttl(Duration::from_secs(5)).acquire().await?;
        guard.release().await?;
        Ok(())
    }

    /// Two of three have forgotten: a majority of them would grant what the third still holds.
    async fn is_silent(&self) {
        // A call under way when the connection broke may fail otherwise.
        for _ in 0..50 {
            let error = self.try_once().await.expect_err("nodes that forgot vote");
            if error.to_string().contains("votes in") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{}", self.try_once().await.unwrap_err());
    }
}

#[tokio::test]
async fn nodes_that_were_flushed_do_not_vote_for_a_while() {
    let quorum = Quorum::of_voters(false).await;
    for server in &quorum.servers[..2] {
        server.command(&["FLUSHALL"]);
    }
    quorum.is_silent().await;
}

#[tokio::test]
async fn nodes_that_were_restarted_from_an_old_dump_do_not_vote_for_a_while() {
    let mut quorum = Quorum::of_voters(true).await;
    for server in &mut quorum.servers[..2] {
        server.command(&["SAVE"]);
        server.kill();
        server.launch();
    }
    quorum.is_silent().await;
}

#[tokio::test]
async fn replicas_that_were_promoted_do_not_vote_for_a_while() {
    let quorum = Quorum::of_voters(false).await;
    let mut promoted = Vec::new();
    for (server, address) in quorum.servers.iter().zip(&quorum.addresses).take(2) {
        let replica = Server::with(&["--save", "", "--replicaof", &format!("127.0.0.1 {}", server.port())]);
        until(|| replica.ask(&["INFO", "replication"]).to_string().contains("master_link_status:up"));
        replica.command(&["REPLICAOF", "NO", "ONE"]);
        address.lead_to(replica.port());
        address.cut();
        address.mend();
        promoted.push(replica);
    }
    quorum.is_silent().await;
}

#[tokio::test]
async fn one_server_at_two_addresses_has_one_vote_and_doctor_says_so() {
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let again = Proxy::to(servers[0].port());
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let alias = format!("redis://127.0.0.1:{}", again.port());

    let sound = Leasehold::connect(&url(&[&urls[0], &urls[1], &urls[2]], "longest_ttl=0")).await.unwrap();
    let findings = sound.examine().await.unwrap();
    assert!(findings.iter().all(|finding| finding.subject != "same node twice"), "{findings:?}");

    // Nothing was asked of it yet but to be examined.
    let twice = Leasehold::connect(&url(&[&urls[0], &alias, &urls[1]], "longest_ttl=0")).await.unwrap();
    let findings = twice.examine().await.unwrap();
    let found: Vec<_> = findings.iter().filter(|finding| finding.subject == "same node twice").collect();
    assert_eq!(found.len(), 1, "{findings:?}");
    assert_eq!(found[0].severity, Severity::Failure);
    assert!(found[0].message.contains(alias.trim_start_matches("redis://")), "{}", found[0].message);

    twice.mutex("x").acquire().await.unwrap().release().await.unwrap();
    servers[1].kill();
    let error = twice.mutex("x").acquire().await.expect_err("two addresses of one server are no majority");
    assert!(error.to_string().contains("is the same server as one before it"), "{error}");
}

/// Three servers, and a client that asks them.
async fn three(query: &str) -> (Vec<Server>, Leasehold) {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let locks = Leasehold::connect(&url(&[&urls[0], &urls[1], &urls[2]], query)).await.unwrap();
    (servers, locks)
}

/// Stops a server and waits until the client has noticed.
async fn hang(server: &Server, locks: &Leasehold) {
    server.signal("STOP");
    // It is given to the others after 20 ms; whoever meets the one that hangs waits for four times the limit.
    let noticing = locks.mutex("noticing").acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    noticing.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_node_does_not_hold_up_releases_that_others_wait_for() {
    let (servers, locks) = three("longest_ttl=0&node_limit=500ms").await;
    let held = locks.mutex("x").acquire().await.unwrap();
    until(|| servers[2].ask(&["HEXISTS", "leasehold:{default}:leases", "x"]).to_string() == "1");
    let waiting = Handle::current().spawn({
        let lock = locks.mutex("x");
        async move { lock.acquire().await }
    });
    until(|| servers[0].ask(&["EXISTS", "leasehold:{default}:entries:x"]).to_string() == "1");
    hang(&servers[2], &locks).await;
    let released = tokio::time::timeout(Duration::from_secs(1), held.release()).await;
    released.expect("nobody waits for the one that hangs").unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_that_a_node_refuses_does_not_hold_up_others_there() {
    let (servers, locks) = three("longest_ttl=0&node_limit=500ms").await;
    let leases = "leasehold:{default}:leases";
    let has = |name: &str| servers[2].ask(&["HEXISTS", leases, name]).to_string() == "1";
    let (one, refused) = (locks.mutex("one").acquire().await.unwrap(), locks.mutex("refused").acquire().await.unwrap());
    until(|| has("one") && has("refused"));
    servers[2].command(&["HSET", leases, "refused", "2 as a later version writes it"]);
    hang(&servers[2], &locks).await;
    one.release().await.unwrap();
    refused.release().await.unwrap();
    servers[2].signal("CONT");
    let released = async {
        while has("one") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), released).await.expect("it is released before its ttl is over");
}

/// The watcher makes no calls of its own that would tell it of the node that is gone.
#[tokio::test]
async fn a_watcher_follows_another_node_and_says_that_it_missed_events() {
    let (mut servers, watcher) = three("longest_ttl=0&node_limit=1s").await;
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let locks = Leasehold::connect(&url(&[&urls[0], &urls[1], &urls[2]], "longest_ttl=0&node_limit=1s")).await.unwrap();
    let mut events = watcher.watch(Names::All).await.unwrap();
    let mut next = async || {
        let next = tokio::time::timeout(Duration::from_secs(15), poll_fn(|context| events.as_mut().poll_next(context)));
        next.await.expect("it is not silent").expect("it goes on")
    };
    locks.mutex("before").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(next().await.unwrap().resource.as_str(), "before");
    servers[0].kill();
    while next().await.is_ok() {}
    locks.mutex("after").acquire().await.unwrap().release().await.unwrap();
    while next().await.map_or(true, |event| event.resource.as_str() != "after") {}
}

/// Whether the nodes are there or not, no other attempt could open them: the command would try again.
#[tokio::test]
async fn a_url_that_a_majority_cannot_be_opened_with_is_refused() {
    let servers = [Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url);
    for (hosts, query, word) in [
        ([&*urls[0], &urls[1], "redis://127.0.0.1:1"], "zz=1", "has no parameter zz; it has password_file, "),
        (["redis://a", "redis://b", "redis://c"], "history=none", "history"),
        ([&*urls[0], "redis://b:port", "redis://c:port"], "longest_ttl=0", "host:port"),
    ] {
        let error = Leasehold::connect(&url(&hosts, query)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert_eq!(error.to_string().matches(word).count(), 1, "{error}");
    }
    // A majority is enough.
    Leasehold::connect(&url(&[&*urls[0], &urls[1], "redis://c:port"], "longest_ttl=0&node_limit=5s")).await.unwrap();
}
