//! Compiles only while public types and the futures of public calls can move between threads.

use std::time::Duration;

use leasehold::{
    All, Attempt, Builder, Candidate, Detached, Election, Error, ErrorKind, Guard, Guards, Leader, Lease, LeaseHealth,
    Leasehold, Lock, Loss, Observer,
    backend::{
        Answer, Backend, Backoff, Belief, Coalescer, Decision, EventHub, EventStream, Finding, Guarantees, Hint,
        HintDelivery, HintSender, Hints, Missed, OpenOptions, Renewal, Request, Session, UrlOptions, model,
    },
    blocking,
    clock::{ManualClock, SystemClock},
    lease::{
        Busy, Claim, EndedLease, Event, Evicted, Fence, Grant, HistoryFilter, Holder, LeaseHandle, LeaseId, LeaseKey,
        LeaseRecord, ListFilter, Moment, Names, Outcome, Page, QueuePosition, Released, Resource, Standing, Timestamp,
        Ttl,
    },
};

const fn send<T: Send>() {}
const fn send_and_sync<T: Send + Sync + 'static>() {}

macro_rules! assert_send_and_sync {
    ($($type:ty),* $(,)?) => { $(const _: () = send_and_sync::<$type>();)* };
}

assert_send_and_sync!(
    All,
    Attempt,
    Builder,
    Candidate,
    Detached,
    Election,
    Error,
    ErrorKind,
    Guard,
    Guards,
    Leader,
    Lease,
    LeaseHealth,
    Leasehold,
    Loss,
    Lock,
);
assert_send_and_sync!(
    Backoff, Belief, Box<dyn Backend>, Coalescer<u8, u8>, EventHub, Finding, Guarantees, Hint, HintDelivery,
    HintSender, Hints, Missed, OpenOptions, Session, UrlOptions,
);
assert_send_and_sync!(
    Answer<Decision>,
    Busy,
    Claim,
    EndedLease,
    Event,
    Evicted,
    Fence,
    Grant,
    HistoryFilter,
    Holder,
    LeaseHandle,
    LeaseId,
    LeaseKey,
    LeaseRecord,
    ListFilter,
    Moment,
    Names,
    Outcome,
    Page,
    QueuePosition,
    Released,
    Renewal,
    Request,
    Resource,
    Standing,
    Timestamp,
    Ttl,
);
assert_send_and_sync!(ManualClock, SystemClock, model::State, model::Entry, model::Effects);
assert_send_and_sync!(blocking::Leasehold, blocking::Guard, blocking::Guards, blocking::Blocking<Lock>);

// A stream has one reader: it can be sent, not shared.
const _: () = send::<Observer>();
const _: () = send::<EventStream>();

fn assert_send<T: Send>(future: T) -> T {
    future
}

#[cfg(feature = "memory")]
#[tokio::test]
async fn the_future_of_every_call_can_be_sent_to_another_thread() -> leasehold::Result<()> {
    let locks = assert_send(Leasehold::connect("memory:bounds")).await?;
    let guard = assert_send(locks.mutex("m").acquire()).await?;
    assert_send(guard.renew(Duration::from_secs(30))).await?;
    drop(assert_send(guard.lost()));
    assert_send(guard.release()).await?;
    drop(assert_send(locks.mutex("m").try_acquire()).await?);
    assert_send(locks.write("w").acquire()).await?.release().await?;
    assert_send(locks.semaphore("s", 2).acquire()).await?.release().await?;
    assert_send(locks.all(["a", "b"]).acquire()).await?.release().await?;
    let election = locks.election("e");
    drop(assert_send(election.observe()).await?);
    let candidate = assert_send(election.start()).await?;
    assert_send(candidate.elected()).await?;
    assert_send(candidate.stop()).await?;
    assert_send(locks.close()).await
}
