//! Seeded chance: the same seed gives the same decisions.

/// A `SplitMix64` generator.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which must not be zero.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True in `chance` of a hundred cases.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// The position of one of `count` things.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        let limit = u64::try_from(count).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.below(limit)).unwrap_or(0)
    }

    /// A generator of its own for a part of the run.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next())
    }
}
