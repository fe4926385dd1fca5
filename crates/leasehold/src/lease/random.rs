//! Random bits that nobody can guess, without a system call for each.
//!
//! Each thread has a generator that is seeded from the system's source, and
//! reseeded now and then. A forked child has a copy of its parent's generator
//! and must not use it, or both would create the same ids.

use std::cell::RefCell;

use rand::{Rng, SeedableRng, rngs::StdRng};

/// How many ids a generator makes before it is reseeded.
const IDS_PER_SEED: u32 = 4096;

struct Generator {
    bits: StdRng,
    left: u32,
    generation: u32,
}

impl Generator {
    fn from_system() -> Self {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).expect("the system has a source of random bits");
        leasehold_fork::watch().expect("the system has memory for a fork handler");
        Self { bits: StdRng::from_seed(seed), left: IDS_PER_SEED, generation: leasehold_fork::generation() }
    }
}

thread_local! {
    static GENERATOR: RefCell<Generator> = RefCell::new(Generator::from_system());
}

/// Sixteen bytes that nobody can guess and no other process has.
pub(super) fn random_bytes() -> [u8; 16] {
    GENERATOR.with_borrow_mut(|generator| {
        if generator.left == 0 || generator.generation != leasehold_fork::generation() {
            *generator = Generator::from_system();
        }
        generator.left -= 1;
        let mut bytes = [0; 16];
        generator.bits.fill_bytes(&mut bytes);
        bytes
    })
}

/// Sixty-four random bits.
pub(crate) fn random_u64() -> u64 {
    let mut half = [0; 8];
    half.copy_from_slice(&random_bytes()[..8]);
    u64::from_le_bytes(half)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_are_alike_over_several_starts() {
        let many: HashSet<[u8; 16]> = (0..20_000).map(|_| random_bytes()).collect();
        assert_eq!(many.len(), 20_000);
    }
}
