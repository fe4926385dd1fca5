//! A quorum of real Redis servers by its URL, some of them away or young.
#![cfg(feature = "redlock")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use leasehold::{ErrorKind, Leasehold, backend::Severity};
use leasehold_testkit::{Proxy, redis::Server};

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

    let young = Leasehold::connect(&url(&[&urls[0], &urls[1], &urls[2]], "")).await.unwrap();
    let error = young.mutex("y").acquire().await.unwrap_err();
    assert!(error.to_string().contains("votes in"), "{error}");
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
