//! A backend that panics fails the call that it answered, and no other.
#![cfg(feature = "memory")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "scripted/mod.rs"]
mod scripted;

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    thread,
    time::Duration,
};

use leasehold::{
    ErrorKind, Leasehold, Lock, Result, backends::memory::MemoryBackend, clock::SystemClock, lease::Outcome,
};
use leasehold_conformance::BackendCall;
use tokio::{sync::Notify, time};

use crate::scripted::Scripted;

/// Renewals come soon.
const SHORT: Duration = Duration::from_secs(10);
/// No lease of a test ends by itself.
const LONG: Duration = Duration::from_secs(3600);
/// What must come, comes within this, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns true for the first of these calls only.
fn first(chosen: BackendCall) -> impl Fn(BackendCall) -> bool + Clone + Send + Sync + 'static {
    let had = Arc::new(AtomicBool::new(false));
    move |call| call == chosen && !had.swap(true, Ordering::SeqCst)
}

fn scripted() -> Arc<Scripted> {
    Scripted::new(MemoryBackend::private(Arc::new(SystemClock)))
}

/// The first of these calls panics on the library's I/O thread, where no caller sees the panic.
fn panics_before(chosen: BackendCall) -> Arc<Scripted> {
    let backend = scripted();
    let is_first = first(chosen);
    backend.before_calls(move |call| {
        let panics = is_first(call);
        async move {
            if panics {
                let on_io_thread = || thread::current().name() == Some("leasehold-io");
                poll_fn(|_| if on_io_thread() { Poll::Ready(()) } else { Poll::Pending }).await;
                panic!("as the test wants it");
            }
        }
    });
    backend
}

/// The first of these calls panics once it was carried out.
fn panics_after(backend: &Scripted, chosen: BackendCall) {
    let is_first = first(chosen);
    backend.after_calls(move |call| assert!(!is_first(call), "as the test wants it"));
}

fn locks(backend: Arc<Scripted>) -> Leasehold {
    Leasehold::builder().open(backend).unwrap()
}

/// Fails unless the lock is free soon, long before its ttl has passed, and no task is left.
async fn assert_nothing_is_left(locks: &Leasehold, lock: Lock) {
    let acquired = async {
        // Tries, since a scripted backend pushes no grants.
        loop {
            if let Some(guard) = lock.try_acquire().await.unwrap() {
                return guard;
            }
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    let guard = time::timeout(LIMIT, acquired).await.expect("the panic left a lease behind");
    guard.release().await.unwrap();
    time::timeout(LIMIT, locks.close()).await.expect("no task is left").unwrap();
}

/// Waits for the call on a thread of its own, which it panics on.
async fn panics_on_thread_of_caller<T>(call: impl Future<Output = Result<T>> + Send + 'static) {
    let caller = thread::spawn(move || drop(leasehold::blocking::wait(call)));
    let is_done = || async {
        while !caller.is_finished() {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    time::timeout(LIMIT, is_done()).await.expect("it does not hang");
    assert!(caller.join().is_err());
}

#[tokio::test]
async fn an_acquire_whose_task_panics_fails_and_leaves_nothing_behind() {
    let locks = locks(panics_before(BackendCall::Acquire));
    let lock = locks.mutex("r").ttl(LONG).wait_forever();
    // Closing, or a second, moves the request to the I/O thread.
    let failed = time::timeout(LIMIT, lock.acquire()).await.expect("it does not hang").unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::OutcomeUnknown);
    assert_nothing_is_left(&locks, lock).await;
}

#[tokio::test]
async fn a_lease_is_given_back_if_its_acquire_panics_after_the_grant() {
    for at_once in [false, true] {
        let backend = scripted();
        if at_once {
            backend.answer_at_once();
        }
        panics_after(&backend, BackendCall::Acquire);
        let locks = locks(backend);
        let lock = locks.mutex("r").ttl(LONG).wait_forever();
        let acquired = lock.clone();
        panics_on_thread_of_caller(async move { acquired.acquire().await }).await;
        assert_nothing_is_left(&locks, lock).await;
    }
}

#[tokio::test]
async fn a_release_whose_task_panics_fails_and_is_tried_again() {
    let locks = locks(panics_before(BackendCall::Release));
    let lock = locks.mutex("r").ttl(LONG).wait_forever();
    let guard = lock.acquire().await.unwrap();
    let failed = time::timeout(LIMIT, guard.release()).await.expect("it does not hang").unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::OutcomeUnknown);
    assert_nothing_is_left(&locks, lock).await;
}

#[tokio::test]
async fn a_release_that_panics_twice_is_tried_again() {
    let backend = scripted();
    let panics_left = Arc::new(AtomicUsize::new(2));
    backend.before_calls(move |call| {
        let panics_left = Arc::clone(&panics_left);
        async move {
            if call == BackendCall::Release {
                let left = panics_left.load(Ordering::SeqCst);
                panics_left.store(left.saturating_sub(1), Ordering::SeqCst);
                assert_eq!(left, 0, "as the test wants it");
            }
        }
    });
    let locks = locks(backend);
    let lock = locks.mutex("r").ttl(LONG);
    // A dropped guard is released on the I/O thread.
    drop(lock.acquire().await.unwrap());
    assert_nothing_is_left(&locks, lock).await;
}

#[tokio::test]
async fn a_lease_is_given_back_if_its_acquire_panics_after_the_caller_gave_up() {
    let backend = scripted();
    let given_up = Arc::new(Notify::new());
    let go_on = Arc::clone(&given_up);
    backend.before_calls(move |call| {
        let go_on = Arc::clone(&go_on);
        async move {
            if call == BackendCall::Acquire {
                go_on.notified().await;
            }
        }
    });
    let (has_panicked, is_first) = (Arc::new(AtomicBool::new(false)), first(BackendCall::Acquire));
    let panicked = Arc::clone(&has_panicked);
    backend.after_calls(move |call| {
        if is_first(call) {
            panicked.store(true, Ordering::SeqCst);
            panic!("as the test wants it");
        }
    });
    let locks = locks(Arc::clone(&backend));
    let lock = locks.mutex("r").ttl(LONG);
    let failed = time::timeout(LIMIT, lock.try_acquire()).await.expect("it does not hang").unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::OutcomeUnknown);
    // The library waits another second for its answer.
    given_up.notify_one();
    let panics = async {
        while !has_panicked.load(Ordering::SeqCst) {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    time::timeout(LIMIT, panics).await.expect("the request is carried out");
    backend.before_calls(async |_| ());
    assert_nothing_is_left(&locks, lock).await;
}

#[tokio::test]
async fn a_release_that_panics_at_once_is_tried_again() {
    let backend = scripted();
    backend.answer_at_once();
    panics_after(&backend, BackendCall::Release);
    let locks = locks(backend);
    let lock = locks.mutex("r").ttl(LONG).wait_forever();
    let guard = lock.acquire().await.unwrap();
    panics_on_thread_of_caller(guard.release()).await;
    assert_nothing_is_left(&locks, lock).await;
}

#[tokio::test]
async fn a_release_within_a_panic_of_the_caller_is_answered() {
    struct ReleasesWhenDropped(Option<leasehold::Guard>);

    impl Drop for ReleasesWhenDropped {
        fn drop(&mut self) {
            let released = leasehold::blocking::wait(self.0.take().unwrap().release_as(Outcome::Completed));
            *RELEASED.lock() = Some(released.is_ok());
        }
    }

    static RELEASED: parking_lot::Mutex<Option<bool>> = parking_lot::Mutex::new(None);
    let locks = locks(scripted());
    let lock = locks.mutex("r").ttl(LONG);
    let guard = lock.acquire().await.unwrap();
    let unwound = thread::spawn(move || {
        let _released_by_panic = ReleasesWhenDropped(Some(guard));
        panic!("as the test wants it");
    });
    assert!(unwound.join().is_err());
    assert_eq!(*RELEASED.lock(), Some(true));
    assert_nothing_is_left(&locks, lock).await;
}

#[tokio::test]
async fn an_explicit_renewal_that_panics_fails_and_the_lease_stays() {
    let locks = locks(panics_before(BackendCall::Renew));
    let guard = locks.mutex("r").ttl(LONG).acquire().await.unwrap();
    let failed = time::timeout(LIMIT, guard.renew(LONG)).await.expect("it does not hang").unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::OutcomeUnknown);
    guard.check().unwrap();
}

#[tokio::test]
async fn a_renewal_that_panics_is_sent_again() {
    let backend = panics_before(BackendCall::Renew);
    let locks = locks(Arc::clone(&backend));
    let guard = locks.mutex("r").ttl(SHORT).acquire().await.unwrap();
    let renewed = async {
        while backend.renewals() == 0 {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(LIMIT, renewed).await.expect("it is renewed after the panic");
    guard.check().unwrap();
}

#[tokio::test]
async fn a_candidate_whose_campaign_panics_campaigns_again() {
    let backend = scripted();
    panics_after(&backend, BackendCall::Acquire);
    let locks = locks(backend);
    let candidate = locks.election("leader").start().await.unwrap();
    time::timeout(LIMIT, candidate.elected()).await.expect("it does not hang").unwrap();
    time::timeout(LIMIT, candidate.stop()).await.expect("it does not hang").unwrap();
    time::timeout(LIMIT, locks.close()).await.expect("no task is left").unwrap();
}
