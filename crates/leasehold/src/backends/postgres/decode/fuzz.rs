//! Whatever a server answers, reading it succeeds or fails; it never panics.
//!
//! `PROPTEST_CASES=1000000` tries as many answers.

use std::cell::Cell;

use leasehold_testkit::postgres::Postgres;
use proptest::{collection::vec, option, prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};
use tokio_postgres::{NoTls, types::ToSql};

use super::*;

/// Columns of every row that the library reads, by name and type. A decoder takes those that it knows.
const ROW: &str = r#"select $1::"char" as verdict, $2::"char" as mode, $3::int4 as at, $4::int4 as ahead,
    $5::int4 as waiting, $6::int4 as units, $7::int4 as capacity, $8::int8 as fence, $9::int8 as acquired_us,
    $10::int8 as now_us, $11::int8 as asked_us, $12::int8 as renewed_us, $13::int8 as expires_us,
    $14::int8 as ttl_us, $15::text as name, $16::text as holder, $17::text as ending, $18::text as note,
    $19::text[] as hints, $20::json as holders, $21::json as metadata, $13::int8 as ask_again_us,
    $12::int8 as held_us, $11::int8 as ended_us, $10::int8 as skips, $13::int8 as last_skip_us,
    $13::int8 as last_success_us, $16::text as held_by, $18::text as problem, $18::text as details, true as waits,
    true as behind_session"#;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[a-z-]{1,12}", 1 => "[^\0]{0,40}"]
}

/// A line as the functions send it, whole and damaged, and any other.
fn line() -> impl Strategy<Value = String> {
    let id = any::<u128>().prop_map(|id| Uuid::from_u128(id).to_string());
    let whole = ("[gpecx]", id, any::<u64>()).prop_map(|(kind, id, fence)| format!("{kind} {id} {fence}"));
    prop_oneof![
        2 => whole.clone(),
        2 => (whole, any::<prop::sample::Index>()).prop_map(|(line, at)| line[..at.index(line.len())].to_owned()),
        1 => "[gpec] [^\0]{0,40}",
        1 => "[^\0]{0,40}",
    ]
}

fn holders() -> impl Strategy<Value = Value> {
    let one = (text(), option::of(text()), any::<u64>(), any::<i64>()).prop_map(|(holder, note, fence, held)| {
        json!({"holder": holder, "note": note, "mode": "exclusive", "fence": fence, "held_us": held})
    });
    prop_oneof![3 => vec(one, 0..3).prop_map(Value::Array), 1 => text().prop_map(Value::String), 1 => Just(Value::Null)]
}

type Parameters = Vec<Box<dyn ToSql + Sync>>;

fn row() -> impl Strategy<Value = Parameters> {
    let letter = |among: &'static str| prop_oneof![4 => prop::sample::select(among.as_bytes()).prop_map(u8::cast_signed), 1 => any::<i8>()];
    // From one on: the functions count the elements of a call.
    let at = option::of(prop_oneof![3 => 1..4, 1 => any::<i32>(), 1 => Just(i32::MIN)]);
    let ints = prop::array::uniform4(option::of(any::<i32>()));
    let longs = prop::array::uniform7(option::weighted(0.9, any::<i64>()));
    let ending = prop_oneof![3 => "released|failed|expired|evicted|gave_up", 1 => text()];
    let texts = (text(), option::weighted(0.9, text()), ending, option::of(text()));
    let json = (option::of(vec(line(), 0..3)), option::of(holders()), option::of(holders()));
    (letter("gqbsnfle"), letter("xslp"), at, ints, longs, texts, json).prop_map(
        |(verdict, mode, at, ints, longs, (name, holder, ending, note), (hints, holders, metadata))| {
            let mut parameters: Parameters = vec![Box::new(verdict), Box::new(mode), Box::new(at)];
            parameters.extend(ints.map(|number| Box::new(number) as Box<dyn ToSql + Sync>));
            parameters.extend(longs.map(|number| Box::new(number) as Box<dyn ToSql + Sync>));
            parameters.extend([Box::new(name) as Box<dyn ToSql + Sync>, Box::new(holder), Box::new(ending)]);
            parameters.extend([Box::new(note) as Box<dyn ToSql + Sync>, Box::new(hints)]);
            parameters.extend([holders, metadata].map(|json| Box::new(json.map(Json)) as Box<dyn ToSql + Sync>));
            parameters
        },
    )
}

proptest! {
    #[test]
    fn no_hint_panics(line in line()) {
        drop(hint(&line));
    }
}

#[test]
fn no_row_panics() {
    let server = Postgres::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, connection) = runtime.block_on(tokio_postgres::connect(&server.url(), NoTls)).unwrap();
    runtime.spawn(connection);
    let statement = runtime.block_on(client.prepare(ROW)).unwrap();
    let understood = Cell::new(0);
    let outcome = TestRunner::default().run(&row(), |parameters| {
        let parameters: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|one| &**one).collect();
        let rows = runtime.block_on(client.query(&statement, &parameters)).unwrap();
        understood.set(understood.get() + usize::from(answer(&rows[0]).is_ok()));
        drop((renewed(&rows[0]), dead_check(&rows[0]), leases(&rows), ended(&rows[0]), run(&rows[0])));
        Ok(())
    });
    outcome.unwrap();
    assert!(understood.get() > 0, "no row was like one of the library's functions");
}
