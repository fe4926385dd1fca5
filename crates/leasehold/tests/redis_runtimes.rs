//! One instance used from several runtimes, of which some are blocked, end, or have no I/O of their own.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::mpsc, thread, time::Duration};

use leasehold::{
    Leasehold,
    clock::{Clock, SystemClock},
};
use leasehold_testkit::redis::Server;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

/// How long a call may take beside a runtime that does not read: far less than that runtime is blocked.
const SOON: Duration = Duration::from_secs(1);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn pair(locks: &Leasehold, name: &str) {
    locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
}

/// Asserts that calls go on at once.
async fn assert_goes_on(locks: &Leasehold, name: &str) {
    for _ in 0..20 {
        let began = SystemClock.now();
        pair(locks, name).await;
        let took = SystemClock.now().since(began);
        assert!(took < SOON, "a pair took {took:?}");
    }
}

/// Asserts that calls go on here while `there`, on a thread of its own, blocks its runtime after it has sent.
fn assert_goes_on_beside(there: impl FnOnce(&Leasehold, mpsc::Sender<()>) + Send + 'static) {
    let server = Server::start();
    let here = runtime();
    let locks = here.block_on(Leasehold::connect(&server.url())).unwrap();
    let (blocked, is_blocked) = mpsc::channel();
    let shared = locks.clone();
    let there = thread::spawn(move || there(&shared, blocked));
    is_blocked.recv().unwrap();
    here.block_on(assert_goes_on(&locks, "here"));
    there.join().unwrap();
    here.block_on(locks.close()).unwrap();
}

#[test]
fn a_runtime_that_blocks_after_a_call_does_not_hold_up_callers_elsewhere() {
    assert_goes_on_beside(|locks, blocked| {
        runtime().block_on(async {
            pair(locks, "there").await;
            blocked.send(()).unwrap();
            thread::sleep(4 * SOON);
            pair(locks, "there").await;
        });
    });
}

#[test]
fn a_runtime_that_blocks_among_several_calls_does_not_hold_up_callers_elsewhere() {
    assert_goes_on_beside(|locks, blocked| {
        let one = |task: usize| {
            let (locks, blocked) = (locks.clone(), blocked.clone());
            async move {
                for turn in 0..100 {
                    let guard = locks.mutex(format!("there-{task}")).acquire().await.unwrap();
                    if (task, turn) == (0, 50) {
                        // The others were answered with it, and their next calls wait for it.
                        blocked.send(()).unwrap();
                        thread::sleep(4 * SOON);
                    }
                    guard.release().await.unwrap();
                }
            }
        };
        runtime().block_on(async {
            let mut tasks: JoinSet<()> = (0..8).map(one).collect();
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
        });
    });
}

#[test]
fn a_runtime_that_ends_after_a_call_leaves_the_connection_to_others() {
    let server = Server::start();
    let here = runtime();
    let locks = here.block_on(Leasehold::connect(&server.url())).unwrap();
    for turn in 0..10 {
        let there = runtime();
        there.block_on(pair(&locks, "there"));
        let name = format!("left-{turn}");
        let guard = there.block_on(locks.mutex(&name).acquire()).unwrap();
        drop(there);
        here.block_on(async {
            assert_goes_on(&locks, "here").await;
            guard.release().await.unwrap();
        });
    }
    here.block_on(locks.close()).unwrap();
}

#[test]
fn a_runtime_that_is_shut_down_beside_calls_ends_and_leaves_the_connection_to_others() {
    let server = Server::start();
    let here = runtime();
    let locks = here.block_on(Leasehold::connect(&server.url())).unwrap();
    let there = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (busy, handle) = (locks.clone(), there.handle().clone());
    // It keeps the sockets of the runtime open while the runtime no longer takes tasks.
    there.spawn(async move {
        begun.send(()).unwrap();
        thread::sleep(SOON);
    });
    has_begun.recv().unwrap();
    let calling = there.spawn_blocking(move || {
        for _ in 0..50 {
            handle.block_on(pair(&busy, "there"));
            thread::sleep(SOON / 50);
        }
    });
    there.shutdown_background();
    here.block_on(assert_goes_on(&locks, "here"));
    here.block_on(calling).unwrap();
    here.block_on(assert_goes_on(&locks, "here"));
    here.block_on(locks.close()).unwrap();
}

#[test]
fn a_runtime_without_io_can_call_too() {
    let server = Server::start();
    let without_io = Builder::new_current_thread().enable_time().build().unwrap();
    without_io.block_on(async {
        let locks = Leasehold::connect(&server.url()).await.unwrap();
        // The first call finds out by a panic, and printing its backtrace may take a second.
        pair(&locks, "here").await;
        assert_goes_on(&locks, "here").await;
        locks.close().await.unwrap();
    });
}

#[test]
fn a_grant_reaches_a_waiter_whose_runtime_only_waits() {
    let server = Server::start();
    let (here, there) = (runtime(), runtime());
    let holds = here.block_on(Leasehold::connect(&server.url())).unwrap();
    let waits = there.block_on(Leasehold::connect(&server.url())).unwrap();
    let guard = here.block_on(holds.mutex("handed-on").acquire()).unwrap();
    let waiting = thread::spawn(move || {
        let granted = there.block_on(waits.mutex("handed-on").wait(20 * SOON).acquire()).unwrap();
        there.block_on(granted.release()).unwrap();
        SystemClock.now()
    });
    // Long enough for the waiter's runtime to have given up reading.
    thread::sleep(SOON / 5);
    let released = SystemClock.now();
    here.block_on(guard.release()).unwrap();
    let took = waiting.join().unwrap().since(released);
    assert!(took < SOON, "granted after {took:?}");
}

/// An event loop that is no tokio runtime.
#[cfg(target_os = "linux")]
mod event_loops {
    use std::{
        os::fd::AsFd,
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::{Context, Poll, Wake, Waker},
        thread::ThreadId,
    };

    use leasehold::event_loop::EventLoop;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Counts who wakes a call: the thread of the event loop, which only looks at its descriptor, or another one.
    struct Woken {
        event_loop: ThreadId,
        here: AtomicU32,
        elsewhere: AtomicU32,
        unparks: thread::Thread,
    }

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            let is_here = thread::current().id() == self.event_loop;
            (if is_here { &self.here } else { &self.elsewhere }).fetch_add(1, Ordering::SeqCst);
            self.unparks.unpark();
        }
    }

    impl Woken {
        fn new() -> Arc<Self> {
            let (event_loop, unparks) = (thread::current().id(), thread::current());
            Arc::new(Self { event_loop, here: AtomicU32::new(0), elsewhere: AtomicU32::new(0), unparks })
        }

        fn count(&self) -> u32 {
            self.here.load(Ordering::SeqCst) + self.elsewhere.load(Ordering::SeqCst)
        }
    }

    /// Runs a future on this thread. If it is not woken within a millisecond, it waits for what other threads read.
    fn run<T>(event_loop: &EventLoop, woken: &Arc<Woken>, future: impl Future<Output = T>) -> T {
        let (mut future, waker) = (pin!(future), Waker::from(Arc::clone(woken)));
        loop {
            let before = woken.count();
            if let Poll::Ready(done) = event_loop.poll_here(|| future.as_mut().poll(&mut Context::from_waker(&waker))) {
                return done;
            }
            while woken.count() == before {
                let soon = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let ready = poll(&mut [PollFd::new(&event_loop.as_fd(), PollFlags::IN)], Some(&soon)).unwrap();
                if ready == 0 {
                    thread::park_timeout(Duration::from_millis(1));
                } else {
                    drop(event_loop.read());
                }
            }
        }
    }

    #[test]
    fn an_event_loop_reads_the_answers_to_its_own_calls() {
        let server = Server::start();
        let locks = runtime().block_on(Leasehold::connect(&server.url())).unwrap();
        let (event_loop, woken) = (EventLoop::new().unwrap(), Woken::new());
        for _ in 0..200 {
            run(&event_loop, &woken, pair(&locks, "here"));
        }
        let (here, elsewhere) = (woken.here.load(Ordering::SeqCst), woken.elsewhere.load(Ordering::SeqCst));
        assert!(here > elsewhere, "woken {here} times by this thread, {elsewhere} times by others");
        run(&event_loop, &woken, locks.close()).unwrap();
    }

    #[test]
    fn an_event_loop_that_blocks_during_a_call_holds_nobody_up() {
        assert_goes_on_beside(|locks, blocked| {
            let (event_loop, woken) = (EventLoop::new().unwrap(), Woken::new());
            for _ in 0..20 {
                run(&event_loop, &woken, pair(locks, "there"));
            }
            let mut under_way = Box::pin(pair(locks, "there"));
            let begun = event_loop
                .poll_here(|| under_way.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&woken)))));
            assert!(begun.is_pending());
            blocked.send(()).unwrap();
            thread::sleep(4 * SOON);
            run(&event_loop, &woken, under_way);
        });
    }

    #[test]
    fn an_event_loop_that_ends_leaves_the_connection_to_others() {
        let server = Server::start();
        let here = runtime();
        let locks = here.block_on(Leasehold::connect(&server.url())).unwrap();
        for turn in 0..10 {
            let (event_loop, woken) = (EventLoop::new().unwrap(), Woken::new());
            run(&event_loop, &woken, pair(&locks, "there"));
            let guard = run(&event_loop, &woken, locks.mutex(format!("left-{turn}")).acquire()).unwrap();
            drop(event_loop);
            here.block_on(async {
                assert_goes_on(&locks, "here").await;
                guard.release().await.unwrap();
            });
        }
        here.block_on(locks.close()).unwrap();
    }

    #[test]
    fn a_server_that_is_gone_does_not_keep_an_event_loop_busy() {
        let server = Server::start();
        let (event_loop, woken) = (EventLoop::new().unwrap(), Woken::new());
        let connect = async { Leasehold::connect(&server.url()).await.unwrap() };
        let locks = run(&event_loop, &woken, connect);
        run(&event_loop, &woken, pair(&locks, "here"));
        drop(server);
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_readable = || poll(&mut [PollFd::new(&event_loop.as_fd(), PollFlags::IN)], Some(&nothing)).unwrap() == 1;
        // The end of the connection may be reported, but not again and again.
        thread::sleep(SOON / 5);
        drop(event_loop.read());
        thread::sleep(SOON / 5);
        assert!(!is_readable(), "the event loop would be woken again and again");
        drop(locks);
    }
}
