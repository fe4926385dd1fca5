//! The suite on Postgres, where leases end with their ttl.

use leasehold_conformance::check;

mod places;

#[test]
fn postgres() {
    let server = places::Server::start("");
    check(async |_clock| server.place());
}
