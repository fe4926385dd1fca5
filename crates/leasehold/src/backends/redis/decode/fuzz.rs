//! Whatever a server answers, reading it succeeds or fails; it never panics.
//!
//! `PROPTEST_CASES=1000000` tries as many answers.

use proptest::{collection::vec, prelude::*};

use super::*;

/// Texts as the scripts answer them, whole and damaged, and any others.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "(granted|queued|busy|freed|left|gone|slow|shape|evicted|begin)?".prop_map(String::into_bytes),
        "[0-9 ]{0,140}".prop_map(String::into_bytes),
        "[01s][0-9a-f]{0,32}( [0-9]{13,16}){0,6}.{0,60}".prop_map(String::into_bytes),
        vec(any::<u8>(), 0..200),
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
        drop((epoch(&value, "redis"), fast_standings(&value), decided(&value, asked, "redis")));
        drop((standings(&value, asked, "redis"), evicted(&value, "redis"), listed(&value, &names, ahead)));
        drop((super::names(&value), cluster_nodes(&value), info(&value), pairs(&value), number(&value)));
        drop(Record::read(&value));
    }
}
