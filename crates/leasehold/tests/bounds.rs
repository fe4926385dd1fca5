//! Compiles only while public types and the futures of public calls can move between threads.

use std::time::Duration;

use leasehold::{
    All, Attempt, Builder, Candidate, DetachedLease, Election, Error, ErrorKind, Guard, Guards, Leader, Lease,
    LeaseHealth, Leasehold, Lock, Loss, Observer,
    backend::{
        Answer, Backend, Backoff, Belief, Coalescer, CollectedEffects, Decision, EventHub, EventStream, Finding,
        Guarantees, Hint, HintDelivery, HintSender, Hints, Incarnation, Lifetime, Liveness, Missed, OpenOptions,
        Operation, Patience, Performed, Reach, Renewal, Request, RunTable, Selection, Session, Severity, UrlOptions,
        model,
    },
    blocking,
    clock::{ManualClock, SystemClock},
    event_loop::{EventLoop, WaitingBatches},
    lease::{
        Busy, Claim, EndedLease, Ending, Event, EventKind, Evicted, Family, Fence, Grant, HeldBy, HistoryFilter,
        HistoryPage, Holder, LeaseHandle, LeaseId, LeaseKey, LeasePage, LeaseRecord, LeaseState, ListFilter, Mode,
        Moment, Names, Outcome, Problem, QueuePosition, Released, Resource, RunRecord, RunReport, Shape, SkippedRun,
        Standing, Timestamp, Ttl,
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
    DetachedLease,
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
    Backoff, Belief, Box<dyn Backend>, Coalescer<u8, u8>, CollectedEffects, EventHub, Finding, Guarantees, Hint,
    HintDelivery, HintSender, Hints, Incarnation, Lifetime, Liveness, Missed, OpenOptions, Operation, Patience,
    Performed, Reach, RunTable, Selection, Session, Severity, UrlOptions,
);
assert_send_and_sync!(
    Answer<Decision>,
    Busy,
    Claim,
    EndedLease,
    Ending,
    Event,
    EventKind,
    Evicted,
    Family,
    Fence,
    Grant,
    HeldBy,
    HistoryFilter,
    HistoryPage,
    Holder,
    LeaseHandle,
    LeaseId,
    LeaseKey,
    LeaseRecord,
    LeaseState,
    ListFilter,
    Mode,
    Moment,
    Names,
    Outcome,
    LeasePage,
    Problem,
    QueuePosition,
    Released,
    Renewal,
    Request,
    Resource,
    RunRecord,
    RunReport,
    SkippedRun,
    Shape,
    Standing,
    Timestamp,
    Ttl,
);
assert_send_and_sync!(ManualClock, SystemClock);
assert_send_and_sync!(WaitingBatches, EventLoop);
// Not `Context`: it borrows closures for the length of one call.
assert_send_and_sync!(
    model::Effects,
    model::Ended,
    model::Entry,
    model::EntryState,
    model::Expiry,
    model::Granted,
    model::Held,
    model::Presence,
    model::State,
);
#[cfg(all(feature = "file", target_os = "linux"))]
const _: () = {
    use leasehold::backends::file::{DefaultDirectory, FileBackend, FileOptions};
    assert_send_and_sync!(DefaultDirectory, FileBackend, FileOptions);
};
#[cfg(feature = "memory")]
const _: () = send_and_sync::<leasehold::backends::memory::MemoryBackend>();
#[cfg(feature = "postgres")]
const _: () = {
    use leasehold::backends::postgres::{
        FenceCheck, Installed, PostgresBackend, PostgresOptions,
        advisory::{Advisory, AdvisoryGuard, Key, Sharing},
    };
    assert_send_and_sync!(FenceCheck, Installed, PostgresBackend, PostgresOptions);
    assert_send_and_sync!(Advisory, AdvisoryGuard, Key, Sharing);
};
#[cfg(feature = "redis")]
const _: () = {
    use leasehold::backends::redis::{
        Address, ClientCertificate, Credentials, Durability, HistoryLevel, RedisBackend, RedisOptions, Tls, Topology,
    };
    assert_send_and_sync!(Address, Credentials, Durability, ClientCertificate, RedisBackend, RedisOptions);
    assert_send_and_sync!(HistoryLevel, Tls, Topology);
};
#[cfg(feature = "redlock")]
const _: () = {
    use leasehold::backends::redlock::{RedlockBackend, RedlockNode, RedlockOptions};
    assert_send_and_sync!(RedlockNode, RedlockBackend, RedlockOptions);
};
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

#[test]
fn every_public_type_is_listed_here() {
    let (api, here) = (include_str!("public_api.txt"), include_str!("bounds.rs"));
    let words: Vec<&str> = here.split(|letter: char| !letter.is_alphanumeric()).collect();
    let mut types = 0;
    for line in api.lines() {
        let Some((path, definition)) = line.split_once(": ") else { continue };
        if !["struct", "enum"].iter().any(|kind| definition.trim_start_matches("#[non_exhaustive] ").starts_with(kind))
        {
            continue;
        }
        let name = path.rsplit("::").next().unwrap_or(path);
        types += 1;
        assert!(words.contains(&name), "{path} is not in this file");
    }
    assert!(types > 100, "{types} types were found");
}
