//! The SQL of docs/postgres.md, run as printed.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use leasehold_testkit::postgres::Postgres;
use postgres_schema::install_schema;

const GUIDE: &str = include_str!("../../../docs/postgres.md");

#[tokio::test]
async fn every_statement_of_the_guide_does_what_it_says() {
    let server = Postgres::start();
    install_schema(&server.url(), Some("public")).unwrap();
    let script: String =
        GUIDE.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect::<Vec<_>>().join("");
    let said = server.psql(&script);
    let said: Vec<&str> = said.lines().collect();
    // What acquire_lock twice, extend_lock, the view and release_lock say.
    let order = said.iter().position(|line| line.starts_with("order:42|worker-7|")).unwrap();
    assert_eq!(said[order - 3..order], ["t", "t", "t"], "{said:?}");
    assert!(said[order].ends_with("{\"step\": 2}"), "{said:?}");
    assert_eq!(said[order + 1], "t", "{said:?}");
    assert!(said.iter().any(|line| line.starts_with("nightly-report|") && line.contains('-')), "{said:?}");
    assert!(said.contains(&"nightly-report|printer|it is on fire"), "{said:?}");
    assert_eq!(server.psql("select paid from invoice where id = 42"), "t");
}
