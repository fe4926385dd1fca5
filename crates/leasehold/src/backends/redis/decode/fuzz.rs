//! Whatever a server answers, reading it succeeds or fails; it never panics.
//!
//! `PROPTEST_CASES=1000000` tries as many answers.

use proptest::{collection::vec, prelude::*};

use super::{super::record, *};

/// A record with its columns in place, as `prelude.lua` describes them.
fn whole() -> impl Strategy<Value = String> {
    let times = prop::array::uniform4(0..10_000_000_000_000_000_u64);
    (times, any::<u128>(), "[01s]", "[xslpq]", 0..10_000_000_000_000_u64, any::<u32>(), any::<u32>()).prop_map(
        |([ends, renewed, fence, asked], id, form, mode, ttl, units, capacity)| {
            let columns = format!(
                "{form}{id:032x} {ends:016} {renewed:016} {fence:016} {asked:016} {asked:016} {ttl:013} {:16} {capacity:010}m {units:010} {mode}",
                ""
            );
            format!("{columns:192}{{\"holder\":\"h\",\"note\":\"n\"}}\n{{\"k\":1}}")
        },
    )
}

/// Texts as the scripts answer them, whole and damaged, and any others.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let words =
        "holding|waiting|wrong|release|fast|newer|error|none|busy|queued|gone|slow|freed|left|evicted|begin|g|q|b";
    prop_oneof![
        3 => words.prop_map(String::into_bytes),
        1 => "[0-9 ]{0,140}".prop_map(String::into_bytes),
        3 => whole().prop_map(String::into_bytes),
        2 => (whole(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(record, at, byte)| {
            let mut bytes = record.into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        }),
        1 => (whole(), any::<prop::sample::Index>()).prop_map(|(record, at)| record[..at.index(record.len())].into()),
        1 => vec(any::<u8>(), 0..200),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => bytes().prop_map(Value::BulkString),
        1 => Just(Value::Nil),
        1 => Just(Value::Okay),
        1 => any::<i64>().prop_map(Value::Int),
        1 => any::<f64>().prop_map(Value::Double),
        1 => ".{0,20}".prop_map(Value::SimpleString),
    ];
    leaf.prop_recursive(3, 64, 8, |inner| vec(inner, 0..8).prop_map(Value::Array))
}

proptest! {
    #[test]
    fn no_answer_panics(value in value(), asked in 0..4_usize, ahead in any::<u32>()) {
        let names: Vec<Resource> = (0..asked).filter_map(|at| Resource::new(format!("x{at}")).ok()).collect();
        if let Ok(mut answers) = FastAnswers::read(&value) {
            for _ in 0..asked {
                drop(answers.release());
                drop(answers.request());
            }
        }
        let options = RedisOptions::from_url("redis://localhost", "t").unwrap();
        drop((epoch(&value, &options), fast_standings(&value), decided(&value, asked, &options)));
        drop((standings(&value, asked, &options), evicted(&value, &options), listed(&value, &names, ahead)));
        drop((super::names(&value), cluster_nodes(&value), info(&value), pairs(&value), number(&value)));
        drop(record::history(&value));
    }

    #[test]
    fn no_message_panics(message in bytes()) {
        drop((record::pushes(&message), record::events(&message)));
    }

    #[test]
    fn a_whole_record_is_read(record in whole().prop_filter("a known mode", |record| &record[173..174] != "q")) {
        // Only what the model cannot have written is refused: a ttl or permits out of range.
        let (ttl, is_permit) = (record[119..132].parse::<u64>().unwrap_or(0), &record[173..174] == "p");
        let is_possible = (100_000..=2_592_000_000_000).contains(&ttl) && !is_permit;
        prop_assert!(Record::read(&Value::BulkString(record.into_bytes())).is_ok() || !is_possible);
    }
}
