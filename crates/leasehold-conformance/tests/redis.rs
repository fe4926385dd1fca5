//! The suite on a Redis server.

mod redis_fixture;

use leasehold_conformance::check;
use leasehold_testkit::redis::Server;
use redis_fixture::Namespace;

#[test]
fn redis() {
    let server = Server::start();
    check(async |clock| Namespace::new(server.url(), clock));
}
