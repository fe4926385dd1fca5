//! The suite on Postgres, where leases end with their connection.

use leasehold_conformance::check;

mod places;

#[test]
fn postgres_connection() {
    let server = places::Server::start("liveness=connection");
    check(async |_clock| server.place());
}
