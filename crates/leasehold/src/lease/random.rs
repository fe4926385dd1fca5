//! Random bits from the system's source, read many at a time.
//!
//! One system call for each lease id would cost more than a lock in memory.
//! A forked child has a copy of its parent's buffer: it must not use it, or
//! both would make the same ids.

use std::cell::RefCell;

const BUFFER: usize = 2048;

struct Buffer {
    bytes: [u8; BUFFER],
    used: usize,
    generation: u32,
}

thread_local! {
    static UNUSED: RefCell<Buffer> =
        const { RefCell::new(Buffer { bytes: [0; BUFFER], used: BUFFER, generation: 0 }) };
}

/// Sixteen bytes that nobody can guess and no other process has.
pub(super) fn random_bytes() -> [u8; 16] {
    UNUSED.with_borrow_mut(|buffer| {
        let generation = leasehold_fork::generation();
        if buffer.used == BUFFER || buffer.generation != generation {
            getrandom::fill(&mut buffer.bytes).expect("the system has a source of random bits");
            (buffer.used, buffer.generation) = (0, generation);
        }
        let mut taken = [0; 16];
        taken.copy_from_slice(&buffer.bytes[buffer.used..buffer.used + 16]);
        // What was handed out must not be found in memory later.
        buffer.bytes[buffer.used..buffer.used + 16].fill(0);
        buffer.used += 16;
        taken
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
    fn no_two_are_alike_over_many_buffers() {
        let many: HashSet<[u8; 16]> = (0..10_000).map(|_| random_bytes()).collect();
        assert_eq!(many.len(), 10_000);
    }
}
