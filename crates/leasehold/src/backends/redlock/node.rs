//! One node: opened once it can be, left alone while it hangs, and counted once its memory is old enough.

use std::{
    fmt,
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::Notify, time};

use crate::{
    Error, ErrorKind, Result,
    backend::{Backend, Backoff, OpenOptions},
    backends,
    clock::Clock,
    lease::{Answer, Brief, Grant, Incarnation, LeaseId, LeaseKey, Moment, Renewal, Resource, Timestamp, Ttl, rounded},
};

/// The longest pause before a node that cannot be opened, or that hangs, is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// One of the nodes.
pub(super) struct Node {
    pub(super) name: String,
    backend: OnceLock<Arc<dyn Backend>>,
    clock: Arc<dyn Clock>,
    quarantine: Duration,
    runtime: Handle,
    state: Mutex<NodeState>,
    /// Wakes whoever waits for the outcome of an attempt to open it.
    attempted: Arc<Notify>,
}

#[derive(Debug)]
struct NodeState {
    reachability: Reachability,
    incarnation: Option<Incarnation>,
    /// Earlier incarnations, and when each was replaced. Their answers may still be on their way.
    replaced: Vec<(Incarnation, Moment)>,
    /// The incarnation whose memory was seen to be old enough.
    old_enough: Option<Incarnation>,
    /// By how many microseconds its wall clock is ahead of ours.
    ahead: Option<i64>,
}

/// What the last attempt to reach a node came to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reachability {
    Answers,
    /// The last call failed.
    Fails,
    /// The last call was not answered in time; a probe is under way.
    Hangs,
    /// Not opened yet, with the reason once an attempt has failed.
    Unopened(Option<(ErrorKind, String)>),
}

/// Why a node's vote does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abstention {
    /// It is the same server as one before it in the list.
    Duplicate,
    /// Its memory is too young: it counts after this long.
    Young(Duration),
    /// It does not report how old its memory is.
    AgeUnknown,
}

impl fmt::Display for Abstention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate => f.write_str("is the same server as one before it"),
            Self::Young(left) => {
                write!(
                    f,
                    "began with an empty memory a short time ago and votes in {}",
                    Brief((*left).max(MILLISECOND))
                )
            }
            Self::AgeUnknown => {
                f.write_str("does not report how old its memory is; allow INFO to its user: ACL SETUSER <user> +info")
            }
        }
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

impl Node {
    /// A node that is there already, or that [`open`](Self::open) will reach.
    pub(super) fn new(
        name: String,
        backend: Option<Arc<dyn Backend>>,
        clock: Arc<dyn Clock>,
        quarantine: Duration,
        runtime: Handle,
        attempted: Arc<Notify>,
    ) -> Self {
        let reachability = if backend.is_some() { Reachability::Answers } else { Reachability::Unopened(None) };
        let state = NodeState { reachability, incarnation: None, replaced: Vec::new(), old_enough: None, ahead: None };
        let backend = backend.map_or_else(OnceLock::new, OnceLock::from);
        Self { name, backend, clock, quarantine, runtime, state: Mutex::new(state), attempted }
    }

    pub(super) fn backend(&self) -> Result<&Arc<dyn Backend>> {
        self.backend.get().ok_or_else(|| {
            let reason = match &self.state.lock().reachability {
                Reachability::Unopened(Some((_, reason))) => reason.clone(),
                _ => String::from("could not be reached yet"),
            };
            Error::unavailable(reason)
        })
    }

    /// Tries to open it until that succeeds.
    pub(super) async fn open(&self, url: &str, options: &OpenOptions) -> Arc<dyn Backend> {
        let mut backoff = Backoff::new(LONGEST_PAUSE / 10, LONGEST_PAUSE);
        loop {
            let limit = options.connect_limit;
            let opened = match time::timeout(limit, backends::open(url, options)).await {
                Ok(opened) => opened,
                Err(_) => Err(Error::unavailable(format!("did not answer within {:?}", rounded(limit)))),
            };
            match opened {
                Ok(backend) => {
                    let _first = self.backend.set(Arc::clone(&backend));
                    self.state.lock().reachability = Reachability::Answers;
                    self.attempted.notify_waiters();
                    return backend;
                }
                Err(error) => {
                    self.state.lock().reachability = Reachability::Unopened(Some((error.kind(), error.to_string())));
                    self.attempted.notify_waiters();
                }
            }
            time::sleep(backoff.pause()).await;
        }
    }

    /// Why no attempt can open it: the URL would have to be another one.
    pub(super) fn misconfigured(&self) -> Option<String> {
        match &self.state.lock().reachability {
            Reachability::Unopened(Some((ErrorKind::InvalidConfig, reason))) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Whether it was opened; `None` before the first attempt has ended.
    pub(super) fn was_opened(&self) -> Option<bool> {
        match &self.state.lock().reachability {
            Reachability::Unopened(reason) => reason.is_some().then_some(false),
            _ => Some(true),
        }
    }

    /// Waits for one answer, within the limit.
    pub(super) async fn answer_within<T>(
        self: &Arc<Self>,
        limit: Duration,
        call: impl Future<Output = Result<Answer<T>>> + Send,
    ) -> Result<T> {
        tokio::select! {
            biased;
            answer = call => self.on_answer(answer),
            () = self.clock.sleep_until(self.clock.now().after(limit)) => Err(self.on_timeout(limit)),
        }
    }

    /// Notes what an answer says about the node.
    ///
    /// Answers are noted when their calls are polled, in any order: one from a memory that the node has lost since is no
    /// longer true, and must not give the vote back to the node.
    pub(super) fn on_answer<T>(&self, answer: Result<Answer<T>>) -> Result<T> {
        let Answer { value, incarnation, .. } = self.on_result(answer)?;
        let mut state = self.state.lock();
        if state.incarnation == Some(incarnation) {
            return Ok(value);
        }
        let now = self.clock.now();
        // What a memory held that was lost longer ago is over, and the node may vote again.
        state.replaced.retain(|(_, at)| now.since(*at) < self.quarantine);
        if state.replaced.iter().any(|(replaced, _)| *replaced == incarnation) {
            return Err(Error::unanswered("lost its memory after it answered"));
        }
        if let Some(replaced) = state.incarnation.replace(incarnation) {
            state.replaced.push((replaced, now));
            tracing::warn!(node = self.name, "lost its memory or was replaced; it does not vote for a while");
        }
        Ok(value)
    }

    /// The same for calls that were made together.
    pub(super) fn on_answers<T>(&self, answers: Vec<Result<Answer<T>>>) -> Vec<Result<T>> {
        answers.into_iter().map(|answer| self.on_answer(answer)).collect()
    }

    /// Notes whether a call succeeded.
    pub(super) fn on_result<T>(&self, result: Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        if !matches!(state.reachability, Reachability::Unopened(_)) {
            state.reachability = if result.is_ok() { Reachability::Answers } else { Reachability::Fails };
        }
        result
    }

    /// Leaves the node alone until it answers a probe.
    pub(super) fn on_timeout(self: &Arc<Self>, limit: Duration) -> Error {
        let before = std::mem::replace(&mut self.state.lock().reachability, Reachability::Hangs);
        if before != Reachability::Hangs {
            self.runtime.spawn(Arc::clone(self).probe());
        }
        Error::unanswered(format!("no answer within {limit:?}"))
    }

    /// Asks about a lease that nobody has until that is answered, or until another call was.
    async fn probe(self: Arc<Self>) {
        let mut backoff = Backoff::new(LONGEST_PAUSE / 10, LONGEST_PAUSE);
        while self.is_unreachable() {
            let Ok(backend) = self.backend() else { return };
            let Some(renewal) = probe_renewal() else { return };
            if let Ok(answer) = time::timeout(LONGEST_PAUSE, backend.renew(&[renewal])).await {
                // Whether it succeeded or failed, it no longer hangs.
                let _noted = self.on_answer(answer);
                return;
            }
            time::sleep(backoff.pause()).await;
        }
    }

    /// Whether calls to it are futile: it hangs, or was not opened yet.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self.state.lock().reachability, Reachability::Hangs | Reachability::Unopened(_))
    }

    /// Whether the last call succeeded.
    pub(super) fn answers(&self) -> bool {
        self.state.lock().reachability == Reachability::Answers
    }

    /// Compares clocks by a grant that the node made on being asked at `asked_at`.
    pub(super) fn compare_clocks(&self, grant: &Grant, asked_at: Timestamp) {
        let micros = |time: Timestamp| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        self.state.lock().ahead = Some(micros(grant.acquired_at).saturating_sub(micros(asked_at)));
    }

    /// By how many microseconds its wall clock is ahead of ours, as far as was seen.
    pub(super) fn ahead(&self) -> Option<i64> {
        self.state.lock().ahead
    }

    pub(super) fn incarnation(&self) -> Option<Incarnation> {
        self.state.lock().incarnation
    }

    /// Why its yes does not count: a node that may have forgotten a lease or a fence has no vote
    /// until everything it may have forgotten is over.
    pub(super) fn abstains(&self) -> Option<Abstention> {
        if self.quarantine.is_zero() {
            return None;
        }
        let incarnation = self.incarnation();
        if incarnation.is_some() && self.state.lock().old_enough == incarnation {
            return None;
        }
        let Some(age) = self.backend.get().and_then(|backend| backend.age()) else {
            return Some(Abstention::AgeUnknown);
        };
        let left = self.quarantine.saturating_sub(age);
        if !left.is_zero() {
            return Some(Abstention::Young(left));
        }
        let mut state = self.state.lock();
        // An answer of another incarnation may have come since the age was read.
        if state.incarnation == incarnation {
            state.old_enough = incarnation;
        }
        None
    }
}

/// A renewal of a lease that nobody has: every node answers it, and it changes nothing.
pub(super) fn probe_renewal() -> Option<Renewal> {
    let id = LeaseId::random();
    let resource = Resource::new(format!("leasehold:probe:{id}")).ok()?;
    Some(Renewal::new(LeaseKey::new(resource, id), Ttl::DEFAULT))
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("name", &self.name).field("state", &*self.state.lock()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use leasehold_testkit::redis::Server;

    use super::*;
    use crate::clock::SystemClock;
    #[cfg(feature = "memory")]
    use crate::{backends::memory::MemoryBackend, clock::ManualClock};

    #[cfg(feature = "memory")]
    const QUARANTINE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn an_answer_from_before_a_flush_does_not_give_the_vote_back() {
        let server = Server::start();
        let backend = backends::open(&server.url(), &OpenOptions::new()).await.unwrap();
        let quarantine = Duration::from_secs(2);
        let (name, node) = (String::from("a"), Arc::clone(&backend));
        let node = Node::new(name, Some(node), Arc::new(SystemClock), quarantine, Handle::current(), Arc::default());
        let ask = async || backend.renew(&[probe_renewal().unwrap()]).await;
        time::sleep(quarantine).await;
        node.on_answer(ask().await).unwrap();
        assert_eq!(node.abstains(), None);

        // Answered, and not looked at before others have learned of the flush.
        let answered_before = ask().await;
        server.command(&["FLUSHALL"]);
        node.on_answer(ask().await).unwrap();
        assert!(matches!(node.abstains(), Some(Abstention::Young(_))), "{:?}", node.abstains());
        let outdated = node.on_answer(answered_before);
        assert!(matches!(node.abstains(), Some(Abstention::Young(_))), "{:?}", node.abstains());
        assert!(outdated.unwrap_err().outcome_unknown());
        node.on_answer(ask().await).expect("the memory it has now answers");
    }

    #[cfg(feature = "memory")]
    #[tokio::test]
    async fn a_node_with_a_young_memory_does_not_vote() {
        let clock = ManualClock::new();
        let backend = Arc::new(MemoryBackend::private(Arc::new(clock.clone())));
        let node = Node::new(
            String::from("a"),
            Some(backend),
            Arc::new(clock.clone()),
            QUARANTINE,
            Handle::current(),
            Arc::default(),
        );
        assert_eq!(node.abstains(), Some(Abstention::Young(QUARANTINE)));
        clock.advance(QUARANTINE);
        assert_eq!(node.abstains(), None);
    }
}
