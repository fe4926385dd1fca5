//! A value of which a forked child makes its own.

use std::{
    fmt, ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::generation;

/// A value for each process: a forked child does not see its parent's and makes its own.
///
/// Unlike a [`OnceLock`](std::sync::OnceLock), it has no state in which others wait for the thread that makes the value:
/// that thread does not exist in a child that was forked meanwhile. Two threads may thus make a value at the same time;
/// one of the two values is dropped. A child leaks the value of its parent.
///
/// Call [`watch`](crate::watch) before the first use, as for [`generation`].
///
/// ```
/// use std::sync::Mutex;
/// use leasehold_fork::PerProcess;
///
/// static COUNT: PerProcess<Mutex<u32>> = PerProcess::new();
///
/// leasehold_fork::watch()?;
/// *COUNT.get_or_insert_with(Mutex::default).lock().unwrap() += 1;
/// assert_eq!(*COUNT.get().unwrap().lock().unwrap(), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct PerProcess<T: 'static> {
    newest: AtomicPtr<Made<T>>,
}

/// A value and the process that made it.
struct Made<T> {
    generation: u32,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Creates one without a value.
    pub const fn new() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns this process's value, if there is one.
    pub fn get(&'static self) -> Option<&'static T> {
        Self::made(self.newest.load(Ordering::Acquire))
            .filter(|made| made.generation == generation())
            .map(|made| &made.value)
    }

    /// Returns this process's value; if there is none, makes it.
    pub fn get_or_insert_with(&'static self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(value) = self.get() {
            return value;
        }
        let new = Box::into_raw(Box::new(Made { generation: generation(), value: make() }));
        let mut newest = self.newest.load(Ordering::Acquire);
        loop {
            if let Some(made) = Self::made(newest).filter(|made| made.generation == generation()) {
                // SAFETY: another thread was faster, so that nothing has this pointer but this function.
                drop(unsafe { Box::from_raw(new) });
                return &made.value;
            }
            match self.newest.compare_exchange(newest, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_inherited) => break,
                Err(other) => newest = other,
            }
        }
        // SAFETY: as for `made`, which this pointer is stored for now.
        unsafe { &(*new).value }
    }

    fn made(pointer: *mut Made<T>) -> Option<&'static Made<T>> {
        // SAFETY: the pointer is null or comes from the `Box` in `get_or_insert_with`; once it is stored, nobody frees it
        // or changes it through a `&mut`. The `Acquire` of whoever loaded it pairs with the exchange there.
        unsafe { pointer.as_ref() }
    }
}

impl<T: Send + Sync + 'static> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}
