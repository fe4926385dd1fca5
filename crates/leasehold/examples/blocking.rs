//! Number invoices without gaps or doubles, from plain threads.
//!
//! `leasehold::blocking` has the same locks for code without a runtime. The lock `singleton:invoice-number`
//! makes reading the last number and writing the next one step. Leases are renewed on a thread of their own,
//! so the work may block as long as it likes; nobody can stop a thread, so it asks `check` before it writes.

use std::{
    env,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use leasehold::{Result, blocking::Leasehold};

/// Takes the next number; `last` stands for a row that several programs use.
fn next_number(locks: &Leasehold, last: &AtomicU32) -> Result<u32> {
    locks.mutex("singleton:invoice-number").with(|lease| {
        let number = last.load(Ordering::SeqCst) + 1;
        thread::yield_now(); // without the lock, two threads would take one number here
        lease.check()?;
        last.store(number, Ordering::SeqCst);
        Ok(number)
    })
}

pub(crate) fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let locks = Leasehold::connect(&url)?;
    let last = AtomicU32::new(0);

    let mut numbers = thread::scope(|scope| {
        let take_ten = || (0..10).map(|_| next_number(&locks, &last)).collect::<Result<Vec<_>>>();
        let desks: Vec<_> = (0..8).map(|_| scope.spawn(take_ten)).collect();
        desks.into_iter().map(|desk| desk.join().expect("no desk panics")).collect::<Result<Vec<_>>>()
    })?
    .concat();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=80).collect::<Vec<u32>>());
    println!("8 threads numbered {} invoices without a gap", numbers.len());

    let guard = locks.mutex("singleton:invoice-number").note("year-end closing").acquire()?;
    let refused = locks.mutex("singleton:invoice-number").try_acquire()?;
    assert!(refused.is_none(), "two threads of one process exclude each other too");
    guard.release()?;
    locks.close()
}
