//! Atomics and a mutex at which `shuttle` may switch threads.
//!
//! `shuttle` runs the threads of a test as coroutines on one thread of the system, so the types below are ordinary ones
//! that yield first. Memory orders weaker than sequential consistency are not explored.

use std::{cell::Cell, ops::Deref, sync::atomic};

use parking_lot::MutexGuard;

thread_local! {
    static EXPLORING: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test under many random interleavings of its `shuttle` threads.
pub(crate) fn explore(interleavings: usize, test: impl Fn() + Send + Sync + 'static) {
    /// Resets the flag even on panic: the thread may run other tests later.
    struct Exploring;
    impl Drop for Exploring {
        fn drop(&mut self) {
            EXPLORING.set(false);
        }
    }
    EXPLORING.set(true);
    let _exploring = Exploring;
    shuttle::check_random(test, interleavings);
}

/// A point where another thread may run.
pub(crate) fn step() {
    if EXPLORING.get() && !std::thread::panicking() {
        shuttle::thread::yield_now();
    }
}

macro_rules! atomics {
    ($($name:ident of $value:ty),*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name(atomic::$name);

        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }
        }

        impl Deref for $name {
            type Target = atomic::$name;

            fn deref(&self) -> &Self::Target {
                step();
                &self.0
            }
        }
    )*};
}

atomics!(AtomicBool of bool, AtomicU8 of u8, AtomicU64 of u64, AtomicUsize of usize);

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        step();
        self.0.try_lock()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        if !EXPLORING.get() {
            return self.0.lock();
        }
        loop {
            step();
            // Blocking would stop the one OS thread that all `shuttle` threads share, including the one that has the
            // lock.
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
    }
}
