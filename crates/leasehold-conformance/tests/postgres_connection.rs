//! The suite on Postgres, where leases end with their connection.

use leasehold_conformance::check;

mod postgres_fixture;

#[test]
fn postgres_connection() {
    let server = postgres_fixture::Server::start("liveness=connection");
    check(async |_clock| server.namespace());
}
