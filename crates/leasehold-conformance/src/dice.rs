//! Chance that can be repeated.

use std::env;

use leasehold::lease::LeaseId;

/// A source of chance: the same seed gives the same sequence (`SplitMix64`).
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed chosen by `LEASEHOLD_SEED`, or a new one.
    pub(crate) fn seed() -> u64 {
        let chosen = env::var("LEASEHOLD_SEED").ok();
        chosen.map_or_else(random, |text| text.trim().parse().expect("LEASEHOLD_SEED must be a number"))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        u32::try_from(self.next() % u64::from(limit)).expect("a remainder is below its divisor")
    }

    /// True in this many of a hundred cases.
    pub(crate) fn percent(&mut self, chance: u32) -> bool {
        self.below(100) < chance
    }

    /// One of these.
    pub(crate) fn choose<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        let limit = u32::try_from(among.len()).expect("few enough to choose from");
        &among[self.below(limit) as usize]
    }

    pub(crate) fn id(&mut self) -> LeaseId {
        LeaseId::from_u128((u128::from(self.next()) << 64) | u128::from(self.next()))
    }
}

fn random() -> u64 {
    u64::try_from(LeaseId::random().as_u128() & u128::from(u32::MAX)).expect("32 bits fit")
}
