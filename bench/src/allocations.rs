//! Counts heap allocations, only while asked to, so that timed rounds pay one load of a flag for it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use crate::Result;

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

impl Counting {
    fn count() {
        if COUNTING.load(Relaxed) {
            COUNT.fetch_add(1, Relaxed);
        }
    }
}

// SAFETY: every call goes to the system's allocator unchanged, and counting neither allocates nor unwinds.
#[allow(unsafe_code, reason = "a global allocator is an unsafe trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Allocations and reallocations of each of `count` operations, in all threads.
///
/// The difference between `count` and twice as many: what a run allocates once cancels out.
pub(crate) fn of_each(count: u64, operate: &dyn Fn(u64) -> Result<()>) -> Result<f64> {
    let once = during(|| operate(count))?;
    let twice = during(|| operate(2 * count))?;
    Ok((twice as f64 - once as f64) / count as f64)
}

fn during(work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let before = COUNT.load(Relaxed);
    COUNTING.store(true, Relaxed);
    let outcome = work();
    COUNTING.store(false, Relaxed);
    outcome.map(|()| COUNT.load(Relaxed) - before)
}
