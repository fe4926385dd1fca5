//! The suite on a Redis cluster of three masters.

mod redis_fixture;

use leasehold_conformance::check;
use leasehold_testkit::redis::Cluster;
use redis_fixture::Namespace;

#[test]
fn redis_cluster() {
    let cluster = Cluster::start();
    check(async |clock| Namespace::new(cluster.url(), clock));
}
