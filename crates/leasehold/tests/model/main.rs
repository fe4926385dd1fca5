//! The rule under random histories, and the rule by example.
//!
//! `world` makes histories, `promises` says what must be true after each of
//! their steps (`hand_offs` of provisional ones), `examples` and
//! `provisional` read as the rule's documentation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod examples;
mod hand_offs;
mod promises;
mod provisional;
mod world;

use proptest::{collection::vec, prelude::*};

use world::{Op, World};

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rule_keeps_its_promises_after_every_step(
        shape in 0..World::SHAPES,
        ops in vec(Op::any(), 1..80),
    ) {
        let mut world = World::new(shape);
        for op in ops {
            let step = world.step(&op);
            promises::check(&step);
        }
    }
}
