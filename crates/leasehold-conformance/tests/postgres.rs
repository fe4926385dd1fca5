//! The suite on Postgres, where leases end with their ttl.

use leasehold_conformance::check;

mod postgres_fixture;

#[test]
fn postgres() {
    let server = postgres_fixture::Server::start("");
    check(async |_clock| server.namespace());
}
