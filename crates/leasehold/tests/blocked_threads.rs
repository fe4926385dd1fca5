//! Rule 10: whatever blocks, a lease that runs out is lost at its deadline, and others are renewed.
//!
//! The tests block threads of the library until they have seen what they wait
//! for, so no figure depends on how busy the machine is. They share those
//! threads, which is why they have a process of their own.
#![cfg(feature = "memory")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "events/mod.rs"]
mod events;
#[path = "scripted/mod.rs"]
mod scripted;

use std::{
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    thread,
    time::Duration,
};

use leasehold::{
    ErrorKind, Guard, Leasehold, Loss, backend::Backend, backends::memory::MemoryBackend, clock::SystemClock,
};
use leasehold_conformance::{BackendCall, Faulty};
use parking_lot::{Condvar, Mutex};
use tokio::{task::JoinSet, time};

use crate::scripted::Scripted;

const TTL: Duration = Duration::from_secs(1);
/// What must come, comes within this, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(30);

/// Blocks whoever arrives until the test opens it, or fails to within a minute.
#[derive(Default)]
struct Barrier {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    open: bool,
    arrived: bool,
}

impl Barrier {
    fn block(&self) {
        let mut state = self.state.lock();
        state.arrived = true;
        self.changed.notify_all();
        self.changed.wait_while_for(&mut state, |state| !state.open, LIMIT * 2);
    }

    /// Waits until someone is blocked.
    async fn blocks(&self) {
        soon("it blocks", async || self.state.lock().arrived).await;
    }

    fn open(&self) {
        self.state.lock().open = true;
        self.changed.notify_all();
    }
}

/// Opens the barrier however the test ends, so that other tests of the process go on.
struct Opener(Arc<Barrier>);

impl Drop for Opener {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// The threads that these tests block are the process's: one test at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn barrier() -> (Arc<Barrier>, Opener) {
    let barrier = Arc::new(Barrier::default());
    (Arc::clone(&barrier), Opener(barrier))
}

async fn soon(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let come_true = async {
        while !holds().await {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    time::timeout(LIMIT, come_true).await.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"));
}

fn memory() -> MemoryBackend {
    MemoryBackend::private(Arc::new(SystemClock))
}

fn locks(backend: Arc<dyn Backend>) -> Leasehold {
    Leasehold::builder().open(backend).unwrap()
}

/// A lease that nobody can renew: it must be lost at its deadline.
async fn cut_off(name: &str, ttl: Duration) -> Guard {
    let faulty = Faulty::new(Arc::new(memory()));
    let guard = locks(Arc::clone(&faulty) as _).mutex(name).ttl(ttl).acquire().await.unwrap();
    faulty.cut();
    guard
}

async fn lost(guard: &Guard) -> Loss {
    time::timeout(LIMIT, guard.lost()).await.expect("a blocked thread delayed the loss")
}

/// A backend whose chosen call blocks the library's I/O thread.
fn blocking(chosen: BackendCall, barrier: Arc<Barrier>) -> Arc<Scripted> {
    let backend = Scripted::new(memory());
    backend.before_calls(move |call| {
        let barrier = Arc::clone(&barrier);
        async move {
            if call != chosen {
                return;
            }
            // Pending on the caller's thread, so that the call moves to the I/O thread and blocks it there.
            let on_io_thread = || thread::current().name() == Some("leasehold-io");
            poll_fn(|_| if on_io_thread() { Poll::Ready(()) } else { Poll::Pending }).await;
            barrier.block();
        }
    });
    backend
}

/// Makes an instance block the I/O thread by this call; it goes on until the barrier opens.
async fn block_io_thread(call: BackendCall) -> (Opener, JoinSet<()>) {
    let (barrier, opener) = barrier();
    let locks = locks(blocking(call, Arc::clone(&barrier)));
    let blocking = JoinSet::from_iter([async move {
        let guard = locks.mutex("r").acquire().await.unwrap();
        if call == BackendCall::Renew {
            guard.renew(TTL).await.unwrap();
        }
        guard.release().await.unwrap();
    }]);
    barrier.blocks().await;
    (opener, blocking)
}

#[tokio::test]
async fn a_call_that_blocks_the_io_thread_delays_no_loss_and_no_check() {
    let _alone = ALONE.lock().await;
    for call in [BackendCall::Acquire, BackendCall::Renew, BackendCall::Release] {
        let long = locks(Arc::new(memory())).mutex("long").acquire().await.unwrap();
        let short = cut_off("short", TTL).await;
        let (opener, blocking) = block_io_thread(call).await;
        assert_eq!(lost(&short).await, Loss::RenewTimeout, "{call:?}");
        assert!(short.check().is_err());
        long.check().unwrap();
        drop(opener);
        blocking.join_all().await;
    }
}

#[tokio::test]
async fn what_was_held_too_long_is_given_back_though_the_io_thread_was_blocked_meanwhile() {
    let _alone = ALONE.lock().await;
    let memory = memory();
    let truth = locks(Arc::new(memory.sibling()));
    // It would not run out within the test: only a release frees it.
    let lock = locks(Arc::new(memory)).mutex("r").ttl(LIMIT * 100).max_hold(TTL);
    let guard = lock.acquire().await.unwrap();
    let (opener, blocking) = block_io_thread(BackendCall::Release).await;
    assert_eq!(lost(&guard).await, Loss::MaxHold);
    drop(opener);
    soon("it is given back", async || truth.mutex("r").try_acquire().await.unwrap().is_some()).await;
    blocking.join_all().await;
}

#[tokio::test]
async fn a_callback_that_sleeps_delays_neither_losses_nor_renewals_of_others() {
    let _alone = ALONE.lock().await;
    let (barrier, opener) = barrier();
    let called = Arc::clone(&barrier);
    let election = locks(Arc::new(memory())).election("leader:r").on_elected(move |_| called.block());
    let candidate = election.start().await.unwrap();
    barrier.blocks().await;
    let short = cut_off("short", TTL).await;
    let faulty = Faulty::new(Arc::new(memory()));
    let renewed = locks(Arc::clone(&faulty) as _).mutex("renewed").ttl(TTL).acquire().await.unwrap();
    assert_eq!(lost(&short).await, Loss::RenewTimeout);
    soon("others are renewed", async || faulty.count(BackendCall::Renew) > 0).await;
    drop((renewed, opener));
    candidate.stop().await.unwrap();
}

/// Where the subscriber blocks: at the events about this resource.
static NOISY: Mutex<Option<Arc<Barrier>>> = Mutex::new(None);

#[tokio::test]
async fn a_subscriber_that_blocks_delays_no_loss() {
    let _alone = ALONE.lock().await;
    let (barrier, opener) = barrier();
    *NOISY.lock() = Some(Arc::clone(&barrier));
    tracing::subscriber::set_global_default(events::Events(|target, fields| {
        let noisy = NOISY.lock().clone();
        let chosen = matches!(target, "leasehold::lost" | "leasehold::renew") && fields.contains("noisy");
        if let Some(barrier) = noisy.filter(|_| chosen) {
            barrier.block();
        }
    }))
    .unwrap();
    let noisy = cut_off("noisy", TTL).await;
    let quiet = cut_off("quiet", TTL * 2).await;
    barrier.blocks().await;
    assert_eq!(lost(&noisy).await, Loss::RenewTimeout);
    assert!(noisy.check().is_err());
    assert_eq!(lost(&quiet).await, Loss::RenewTimeout);
    drop(opener);
}

#[tokio::test]
async fn a_caller_that_blocks_while_it_polls_its_call_delays_no_renewal() {
    let _alone = ALONE.lock().await;
    let (barrier, opener) = barrier();
    let backend = Scripted::new(memory());
    let blocked = Arc::clone(&barrier);
    backend.before_calls(move |_| {
        let (barrier, mut is_polled_again) = (Arc::clone(&blocked), false);
        poll_fn(move |context| {
            if is_polled_again {
                barrier.block();
                return Poll::Ready(());
            }
            is_polled_again = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
    });
    let locks_of_caller = locks(backend);
    let caller = thread::spawn(move || {
        // A short ttl: the library soon tries to take the call over.
        let lock = locks_of_caller.mutex("r").ttl(TTL / 10);
        drop(leasehold::blocking::wait(lock.acquire()));
    });
    barrier.blocks().await;
    time::sleep(TTL / 5).await;
    let faulty = Faulty::new(Arc::new(memory()));
    let renewed = locks(Arc::clone(&faulty) as _).mutex("renewed").ttl(TTL).acquire().await.unwrap();
    soon("others are renewed", async || faulty.count(BackendCall::Renew) > 1).await;
    renewed.check().unwrap();
    drop(opener);
    caller.join().unwrap();
}

#[tokio::test]
async fn an_explicit_renewal_that_hangs_ends_soon_however_long_the_ttl() {
    let _alone = ALONE.lock().await;
    let backend = Scripted::new(memory());
    let sent = Arc::new(AtomicUsize::new(0));
    let renewals = Arc::clone(&sent);
    backend.before_calls(move |call| {
        let renewals = Arc::clone(&renewals);
        async move {
            if call == BackendCall::Renew {
                renewals.fetch_add(1, Ordering::SeqCst);
                pending::<()>().await;
            }
        }
    });
    let locks = locks(backend);
    let guard = locks.mutex("r").acquire().await.unwrap();
    let renewed = time::timeout(LIMIT, guard.renew(LIMIT * 1000)).await.expect("a third of that ttl is hours away");
    assert_eq!(renewed.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    let (lease, before) = (guard.lease().clone(), sent.load(Ordering::SeqCst));
    let renewing = JoinSet::from_iter([async move { lease.renew(LIMIT * 1000).await }]);
    soon("it is sent", async || sent.load(Ordering::SeqCst) > before).await;
    time::timeout(LIMIT, locks.close()).await.expect("nobody waits for it").unwrap();
    let ended = renewing.join_all().await.remove(0).unwrap_err();
    assert_eq!((ended.kind(), ended.outcome_unknown()), (ErrorKind::Closed, true), "{ended}");
}
