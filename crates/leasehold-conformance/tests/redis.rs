//! The suite on a Redis server.

mod redis_places;

use leasehold_conformance::check;
use leasehold_testkit::redis::Server;
use redis_places::Namespace;

#[test]
fn redis() {
    let server = Server::start();
    check(async |clock| Namespace::new(server.url(), clock));
}
