//! The races of workers and their queue.

use std::{
    sync::Barrier,
    task::{Context, Waker},
    thread,
};

use leasehold_testkit::postgres::Postgres;
use tokio::{task::yield_now, time::timeout};

use super::{
    worker::{IDLE, try_increment},
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

async fn start(server: &Postgres) -> Arc<WorkerPool> {
    let limit = Duration::from_secs(10);
    let options = PostgresOptions::from_url(&server.url(), "default", Arc::new(SystemClock), limit).unwrap();
    install(options.clone(), None).await.unwrap();
    let connector = Connector::new(options).unwrap();
    let connection = connector.connect().await.unwrap();
    let router = ConnectionRouter::new(&connector, None, LazyConnection::with(Arc::clone(&connector), connection));
    let instance = InstanceParams { namespace: String::from("default"), history: b'a'.cast_signed(), channel: None };
    WorkerPool::start(router, instance, HintSender::new(), Arc::default())
}

fn request(id: LeaseId) -> Request {
    Request::new(LeaseKey::new(Resource::new("x").unwrap(), id), Claim::EXCLUSIVE, Holder::unique())
        .ttl(Ttl::DEFAULT)
        .patience(Patience::Try)
        .lifetime(Lifetime::Detached)
}

/// 1. A worker that was idle for long finds nothing. 2. A new job counts the leaving worker as busy. 3. It leaves.
#[tokio::test]
async fn a_job_that_comes_while_a_spare_worker_leaves_is_taken_by_the_one_that_stays() {
    let server = Postgres::start();
    let pool = start(&server).await;
    while pool.idle.load(Ordering::SeqCst) == 0 {
        yield_now().await;
    }
    // The one that leaves, as it is after its last look at the queue: neither idle nor gone.
    pool.workers.fetch_add(1, Ordering::SeqCst);
    let request = request(LeaseId::random());
    let calling = pool.acquire(&request, None);
    tokio::pin!(calling);
    let early = timeout(Duration::from_millis(100), &mut calling).await;
    assert!(early.is_err(), "the job woke a worker: the wrong interleaving");
    assert!(pool.leave_if_spare());
    let answer = timeout(IDLE / 3, calling).await.expect("the job is taken before the other worker times out, too");
    assert!(matches!(answer.unwrap().value, Decision::Granted(_)));
    assert!(!pool.leave_if_spare(), "the last one stays");
    pool.close();
}

/// Others wait for what it frees.
#[tokio::test]
async fn a_release_does_not_wait_for_a_busy_worker() {
    let server = Postgres::start();
    let pool = start(&server).await;
    while pool.idle.load(Ordering::SeqCst) == 0 {
        yield_now().await;
    }
    // A busy one.
    pool.workers.fetch_add(1, Ordering::SeqCst);
    let key = LeaseKey::new(Resource::new("x").unwrap(), LeaseId::random());
    let released = timeout(IDLE / 3, pool.release(&key, &Outcome::Completed)).await.expect("the idle worker sends it");
    assert_eq!(released.unwrap().value, Released::Gone);
    pool.close();
}

/// 1. A request waits for a worker. 2. It is abandoned and released. 3. The worker takes both.
#[tokio::test]
async fn a_request_that_was_abandoned_before_it_was_sent_is_not_executed() {
    let server = Postgres::start();
    let pool = start(&server).await;
    let abandoned = request(LeaseId::random());
    let mut acquiring = Box::pin(pool.acquire(&abandoned, None));
    assert!(acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(acquiring);
    assert_eq!(pool.release(&abandoned.key, &Outcome::Cancelled).await.unwrap().value, Released::Gone);
    let next = pool.acquire(&request(LeaseId::random()), None).await.unwrap().value;
    assert!(matches!(next, Decision::Granted(_)), "{next:?}");
    pool.close();
}

#[test]
fn several_who_increment_at_once_stay_within_the_limit() {
    const AT_ONCE: usize = 4;
    let start = Barrier::new(AT_ONCE);
    let counts: Vec<AtomicUsize> = (0..20_000).map(|_| AtomicUsize::new(1)).collect();
    let counted: usize = thread::scope(|scope| {
        let count = || {
            start.wait();
            counts.iter().filter(|count| try_increment(count, 2)).count()
        };
        let threads = [(); AT_ONCE].map(|()| scope.spawn(count));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(counts.iter().all(|count| count.load(Ordering::SeqCst) == 2), "more than there may be");
    assert_eq!(counted, counts.len());
}
