//! The races of workers and their queue.

use std::{
    sync::Barrier,
    task::{Context, Waker},
    thread,
};

use leasehold_testkit::postgres::Postgres;
use tokio::{task::yield_now, time::timeout};

use super::{
    worker::{IDLE, count_one_more},
    *,
};
use crate::{
    backends::postgres::{
        PostgresOptions,
        connection::{Connector, LazyConnection},
        install,
    },
    clock::SystemClock,
    lease::{Claim, Holder, LeaseId, Lifetime, Outcome, Ttl},
};

async fn start(server: &Postgres) -> Arc<Ops> {
    let limit = Duration::from_secs(10);
    let options = PostgresOptions::from_url(&server.url(), "default", Arc::new(SystemClock), limit).unwrap();
    install(options.clone(), None).await.unwrap();
    let connector = Connector::new(options).unwrap();
    let connection = connector.connect().await.unwrap();
    let router = ConnectionRouter::new(&connector, None, LazyConnection::with(Arc::clone(&connector), connection));
    let instance = InstanceParams { namespace: String::from("default"), history: b'a'.cast_signed(), channel: None };
    Ops::start(router, instance, HintSender::new(), Arc::default())
}

fn request(id: LeaseId) -> Request {
    Request::new(LeaseKey::new(Resource::new("x").unwrap(), id), Claim::EXCLUSIVE, Holder::unique())
        .ttl(Ttl::DEFAULT)
        .patience(Patience::Try)
        .lifetime(Lifetime::Detached)
}

/// 1. A worker that was idle for long finds nothing. 2. A call comes and takes it for one under way. 3. It leaves.
#[tokio::test]
async fn a_call_that_comes_while_a_spare_worker_leaves_is_taken_by_the_one_that_stays() {
    let server = Postgres::start();
    let ops = start(&server).await;
    while ops.idle.load(Ordering::SeqCst) == 0 {
        yield_now().await;
    }
    // The one that leaves, as it is after its last look at the queue: neither idle nor gone.
    ops.workers.fetch_add(1, Ordering::SeqCst);
    let request = request(LeaseId::random());
    let calling = ops.acquire(&request, None);
    tokio::pin!(calling);
    let early = timeout(Duration::from_millis(100), &mut calling).await;
    assert!(early.is_err(), "the call woke a worker: this is not the moment that is meant");
    assert!(ops.leave_if_spare());
    let answer = timeout(IDLE / 3, calling).await.expect("the call is taken before the other worker tires, too");
    assert!(matches!(answer.unwrap().value, Decision::Granted(_)));
    assert!(!ops.leave_if_spare(), "the last one stays");
    ops.close();
}

/// Others wait for what it frees.
#[tokio::test]
async fn a_release_does_not_wait_for_a_call_under_way() {
    let server = Postgres::start();
    let ops = start(&server).await;
    while ops.idle.load(Ordering::SeqCst) == 0 {
        yield_now().await;
    }
    // One that is under way.
    ops.workers.fetch_add(1, Ordering::SeqCst);
    let key = LeaseKey::new(Resource::new("x").unwrap(), LeaseId::random());
    let released = timeout(IDLE / 3, ops.release(&key, &Outcome::Completed)).await.expect("the idle worker sends it");
    assert_eq!(released.unwrap().value, Released::Gone);
    ops.close();
}

/// 1. A request waits for a worker. 2. It is given up and released. 3. The worker takes both.
#[tokio::test]
async fn a_request_that_was_given_up_before_it_was_sent_is_not_executed() {
    let server = Postgres::start();
    let ops = start(&server).await;
    let given_up = request(LeaseId::random());
    let mut acquiring = Box::pin(ops.acquire(&given_up, None));
    assert!(acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(acquiring);
    assert_eq!(ops.release(&given_up.key, &Outcome::Cancelled).await.unwrap().value, Released::Gone);
    let next = ops.acquire(&request(LeaseId::random()), None).await.unwrap().value;
    assert!(matches!(next, Decision::Granted(_)), "{next:?}");
    ops.close();
}

#[test]
fn several_who_count_at_once_stay_within_the_limit() {
    const AT_ONCE: usize = 4;
    let start = Barrier::new(AT_ONCE);
    let counts: Vec<AtomicUsize> = (0..20_000).map(|_| AtomicUsize::new(1)).collect();
    let counted: usize = thread::scope(|scope| {
        let count = || {
            start.wait();
            counts.iter().filter(|count| count_one_more(count, 2)).count()
        };
        let threads = [(); AT_ONCE].map(|()| scope.spawn(count));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(counts.iter().all(|count| count.load(Ordering::SeqCst) == 2), "more than there may be");
    assert_eq!(counted, counts.len());
}
