//! Getting a lease: ask once, then wait to be told.
//!
//! An owned task does the asking. If the caller is gone when the answer comes,
//! the task gives the lease or the place back, so a dropped future leaves
//! nothing behind.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    Engine, Guard,
    backoff::Backoff,
    kept::{Hold, Kept, News},
    validity::Validity,
};
use crate::{
    Error, ErrorKind, Result,
    backend::Liveness,
    lease::{
        Brief, Busy, Claim, Decision, Grant, HeldBy, Holder, LeaseId, LeaseKey, LeaseState, Lifetime, ListFilter,
        Metadata, Moment, Names, Outcome, Patience, Request, Resource, Ttl,
    },
    telemetry,
};

/// What a caller wants, before it has an id.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) resource: Resource,
    pub(crate) claim: Claim,
    pub(crate) ttl: Ttl,
    pub(crate) wait: Wait,
    pub(crate) lifetime: Lifetime,
    pub(crate) holder: Holder,
    pub(crate) note: Option<String>,
    pub(crate) metadata: Metadata,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) backoff: Backoff,
    pub(crate) max_tries: Option<u32>,
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: busy is an answer.
    No,
    /// So long, then it is an error.
    For(Duration),
    /// Until it is granted.
    Forever,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Asked {
    Acquired(Guard),
    Busy(Busy),
}

/// One caller's way to a lease.
struct Pursuit {
    engine: Arc<Engine>,
    ask: Ask,
    started: Moment,
    give_up_at: Moment,
}

/// How one id fared.
enum Turn {
    Over(Result<Asked>),
    /// The id is spent; another may be tried.
    Again,
}

impl Engine {
    /// Asks for a lease and waits as long as the caller is willing to.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no place in a queue behind.
    pub(crate) async fn acquire(self: &Arc<Self>, ask: Ask) -> Result<Asked> {
        let (caller, answer) = oneshot::channel();
        let started = self.clock.now();
        let give_up_at = match ask.wait {
            Wait::For(length) => started.after(length),
            Wait::No | Wait::Forever => Moment::NEVER,
        };
        let pursuit = Pursuit { engine: Arc::clone(self), ask, started, give_up_at };
        self.run(Box::pin(pursuit.run(caller)));
        let failed = || Error::unanswered("the backend failed before it answered");
        answer.await.unwrap_or_else(|_| Err(failed()))
    }
}

impl Pursuit {
    async fn run(self, mut caller: oneshot::Sender<Result<Asked>>) {
        let clock = &self.engine.clock;
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let outcome = loop {
            if self.engine.is_closed() || caller.is_closed() {
                break Err(Error::closed());
            }
            match self.try_one_id(&mut caller).await {
                Turn::Over(outcome) => break outcome,
                Turn::Again if clock.now() >= self.give_up_at => break Err(self.wait_elapsed().await),
                Turn::Again => clock.sleep_until(clock.now().after(backoff.pause())).await,
            }
        };
        if let Err(Ok(Asked::Acquired(guard))) = caller.send(outcome) {
            guard.abandon(Outcome::Cancelled);
        }
    }

    async fn try_one_id(&self, caller: &mut oneshot::Sender<Result<Asked>>) -> Turn {
        let (request, kept) = self.prepare();
        self.engine.keeper.expect(&kept);
        let (sent, decision) = match self.ask_until_answered(&request, caller).await {
            Ok(answered) => answered,
            Err(error) => {
                self.engine.keeper.forget(&kept);
                if error.outcome_unknown() {
                    self.engine.give_back(&kept, Outcome::Cancelled);
                }
                return Turn::Over(Err(error));
            }
        };
        match decision {
            Decision::Granted(grant) => self.believe(&kept, grant, sent),
            Decision::Queued(place) => {
                kept.answered(sent, &place);
                let again = self.engine.keeper.ask_again_at(&kept, sent, place.ask_again_in);
                self.engine.keeper.keep(&kept, again);
                self.wait_for_turn(&kept, caller).await
            }
            Decision::Busy(busy) => {
                self.engine.keeper.forget(&kept);
                Turn::Over(Ok(Asked::Busy(busy)))
            }
            Decision::WrongShape { in_force } => {
                self.engine.keeper.forget(&kept);
                let (resource, asked) = (&self.ask.resource, self.ask.claim.shape());
                Turn::Over(Err(Error::wrong_shape(resource, self.engine.kind, asked, in_force)))
            }
        }
    }

    /// A new id, as the backend and as our loops see it.
    fn prepare(&self) -> (Request, Arc<Kept>) {
        let ask = &self.ask;
        let key = LeaseKey { resource: ask.resource.clone(), id: LeaseId::random() };
        let request = Request {
            key: key.clone(),
            claim: ask.claim,
            ttl: ask.ttl,
            patience: if ask.wait == Wait::No { Patience::Try } else { Patience::Queue },
            max_waiters: None,
            lifetime: ask.lifetime,
            holder: ask.holder.clone(),
            note: ask.note.clone(),
            metadata: ask.metadata.clone(),
            fence_floor: None,
        };
        let clocked = self.engine.liveness != Liveness::Process || ask.lifetime == Lifetime::Detached;
        let longest = match ask.lifetime {
            Lifetime::Attached => self.engine.liveness.longest_ttl(),
            Lifetime::Detached => Ttl::MAX,
        };
        (request, Kept::new(key, ask, clocked, longest))
    }

    /// Asks, and asks again with the same id while nobody can say what became of it.
    async fn ask_until_answered(
        &self,
        request: &Request,
        caller: &oneshot::Sender<Result<Asked>>,
    ) -> Result<(Moment, Decision)> {
        let clock = &self.engine.clock;
        let asking_ends = self.give_up_at.min(clock.now().after(self.ask.ttl.get()));
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut maybe_done = false;
        loop {
            let sent = clock.now();
            let answer = tokio::select! {
                biased;
                answer = self.engine.backend.acquire(request) => answer,
                () = self.engine.closed() => Err(Error::closed().maybe_done()),
                () = clock.sleep_until(asking_ends) => Err(Error::unanswered(format!(
                    "{} on {}: the request was not answered in time",
                    self.ask.resource, self.engine.kind
                ))),
            };
            match answer {
                Ok(answer) => {
                    self.engine.keeper.answered_by(answer.incarnation);
                    return Ok((sent, answer.value));
                }
                Err(error) => {
                    maybe_done |= error.outcome_unknown();
                    let settled = !error.outcome_unknown() || error.kind() == ErrorKind::Closed;
                    if settled || clock.now() >= asking_ends || caller.is_closed() {
                        let error = error.about(&self.ask.resource);
                        return Err(if maybe_done { error.maybe_done() } else { error });
                    }
                    clock.sleep_until(clock.now().after(backoff.pause())).await;
                }
            }
        }
    }

    /// Turns a grant that a request sent at `from` proved into a guard, if it can still be believed.
    fn believe(&self, kept: &Arc<Kept>, grant: Grant, from: Moment) -> Turn {
        let clock = &self.engine.clock;
        let now = clock.now();
        let deadline = kept.deadline(from, self.ask.ttl);
        if now >= deadline || self.engine.keeper.is_severed(kept, from) {
            self.engine.keeper.forget(kept);
            self.engine.give_back(kept, Outcome::Cancelled);
            return match self.ask.wait {
                Wait::No => Turn::Over(Err(self.too_late())),
                Wait::For(_) | Wait::Forever => Turn::Again,
            };
        }
        let ends_at = self.ask.max_hold.map_or(Moment::NEVER, |length| now.after(length));
        let waited = now.since(self.started);
        kept.begin(Hold { grant, from, waited, validity: Validity::until(deadline, ends_at) });
        match self.ask.lifetime {
            Lifetime::Attached if !self.engine.keeper.keep(kept, kept.renew_at(from)) => return Turn::Again,
            Lifetime::Attached => {}
            Lifetime::Detached => self.engine.keeper.forget(kept),
        }
        let guard = Guard::new(Arc::clone(&self.engine), Arc::clone(kept));
        if let Some(hold) = kept.hold() {
            telemetry::acquired(kept, hold);
        }
        Turn::Over(Ok(Asked::Acquired(guard)))
    }

    async fn wait_for_turn(&self, kept: &Arc<Kept>, caller: &mut oneshot::Sender<Result<Asked>>) -> Turn {
        let clock = &self.engine.clock;
        loop {
            let heard = kept.heard();
            match kept.news(clock.wall()) {
                Some(News::Gone) => return Turn::Again,
                Some(News::Granted { grant, from, pushed }) => {
                    let is_severed = self.engine.keeper.is_severed(kept, from);
                    let believable = kept.clocked && clock.now() < kept.deadline(from, self.ask.ttl) && !is_severed;
                    if !pushed || believable {
                        return self.believe(kept, grant, from);
                    }
                    // A renewal tells: where no clock ends the lease, the hand-off is provisional until one confirms
                    // it; elsewhere nothing was answered for too long to believe a push, or by this connection.
                    kept.disregard_hint();
                    self.engine.keeper.hurry(kept.key.id);
                }
                None => {}
            }
            let tried_enough = self.ask.max_tries.is_some_and(|most| !self.engine.pushes && kept.tries() >= most);
            if tried_enough {
                return self.leave(kept, Outcome::GaveUp, self.wait_elapsed()).await;
            }
            tokio::select! {
                biased;
                () = caller.closed() => return self.leave(kept, Outcome::Cancelled, async { Error::closed() }).await,
                () = self.engine.closed() => {
                    return self.leave(kept, Outcome::Cancelled, async { Error::closed() }).await;
                }
                () = clock.sleep_until(self.give_up_at), if self.give_up_at != Moment::NEVER => {
                    return self.leave(kept, Outcome::GaveUp, self.wait_elapsed()).await;
                }
                () = heard => {}
            }
        }
    }

    async fn leave(&self, kept: &Arc<Kept>, outcome: Outcome, error: impl Future<Output = Error>) -> Turn {
        self.engine.keeper.forget(kept);
        self.engine.give_back(kept, outcome);
        Turn::Over(Err(error.await))
    }

    async fn wait_elapsed(&self) -> Error {
        let waited = self.engine.clock.now().since(self.started);
        let busy = self.who_holds().await;
        Error::wait_elapsed(&self.ask.resource, self.engine.kind, Brief(waited), busy)
    }

    /// Who holds the resource now, as far as the backend says within a second.
    async fn who_holds(&self) -> Busy {
        let filter = ListFilter::new(Names::Exactly(self.ask.resource.clone()));
        let limit = self.engine.clock.now().after(Duration::from_secs(1));
        let page = tokio::select! {
            biased;
            page = self.engine.backend.list(&filter) => page.unwrap_or_default(),
            () = self.engine.clock.sleep_until(limit) => return Busy::default(),
        };
        let mut busy = Busy::default();
        for record in page.leases {
            let (mode, holder, note) = (record.claim.mode(), record.holder, record.note);
            match record.state {
                LeaseState::Holding { fence, held_for, .. } => {
                    busy.holders.push(HeldBy { holder, note, mode, fence, held_for });
                }
                LeaseState::Waiting { .. } => busy.waiting += 1,
            }
        }
        busy
    }

    fn too_late(&self) -> Error {
        Error::unanswered(format!(
            "{} on {}: the answer took longer than the lease lives",
            self.ask.resource, self.engine.kind
        ))
        .about(&self.ask.resource)
    }
}
