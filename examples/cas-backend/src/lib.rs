//! A leasehold backend outside of leasehold: one object per resource, replaced by compare-and-swap.
//!
//! Each operation loads the object, runs the rule of [`leasehold::backend::model`] on
//! it, and writes it back if nobody else did meanwhile; otherwise it starts
//! again. Leases, queues, fences, semaphores, elections, history and events
//! all follow from that.
//!
//! ```
//! # async fn example() -> leasehold::Result<()> {
//! leasehold::backends::register("cas", cas_backend::open)?;
//! let locks = leasehold::Leasehold::connect("cas:jobs").await?;
//! let guard = locks.mutex("order:42").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! # leasehold::blocking::wait(example()).unwrap();
//! ```

mod bucket;

use std::{collections::VecDeque, sync::Arc};

use async_trait::async_trait;
use leasehold::{
    Error, Fence, Outcome, Resource, Result,
    backend::{
        Answer, Backend, CollectedEffects, Decision, EventStream, Finding, Guarantees, HintSender, Hints, Incarnation,
        Inspect, Liveness, OpenOptions, Opening, Reach, Renewal, Request, Selection, Severity, UrlOptions,
        model::{Context, Effects, Expiry, Presence, State},
        publish,
    },
    lease::{EndedLease, Evicted, HistoryFilter, LeaseId, LeaseKey, LeasePage, ListFilter, Names, Released, Standing},
};
use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;

/// Opens `cas:BUCKET`; `?history=N` remembers N ended leases of each resource instead of 100.
///
/// Give it to [`leasehold::backends::register`].
pub fn open(url: &str, options: &OpenOptions) -> Opening {
    let opened = UrlOptions::parse(url).and_then(|mut url| {
        let history = url.take("history", "a number of ended leases")?.unwrap_or(100);
        let bucket = Bucket::named(format!("{}/{}", url.path(), options.namespace), &options.clock);
        url.finish(&["history"])?;
        Ok(Arc::new(CasBackend { bucket, hints: HintSender::new(), history }) as _)
    });
    Box::pin(async { opened })
}

/// One instance on a bucket.
#[derive(Debug)]
struct CasBackend {
    bucket: Arc<Bucket>,
    hints: HintSender,
    history: usize,
}

/// What is in an object: all there is to know about a resource, and how its last leases ended.
#[derive(Default, Serialize, Deserialize)]
struct Content {
    state: State,
    history: VecDeque<EndedLease>,
}

impl CasBackend {
    /// Loads, runs the rule, writes if nobody else did meanwhile; then notifies.
    ///
    /// A write that is refused means that another one succeeded, so one of those who contend always gets on.
    async fn operate<T>(
        &self,
        resource: &Resource,
        callers: &[LeaseId],
        rule: impl Fn(&mut State, &Context<'_>, &mut Effects) -> T,
    ) -> Result<T> {
        loop {
            let object = self.bucket.get(resource).await;
            let mut record = decode(resource, &object.bytes)?;
            let mut collected = CollectedEffects::new(&self.bucket.events);
            let answer = {
                // The clock is the bucket's: those of its clients differ.
                let (now, wall) = (self.bucket.clock.now(), self.bucket.clock.wall());
                let context = Context { now, wall, presence: &|_| Presence::Present };
                let mut effects = Effects::default();
                let answer = rule(&mut record.state, &context, &mut effects);
                publish(resource, &record.state, &mut effects, callers, &context, &mut collected);
                answer
            };
            record.history.extend(collected.ended.iter().map(|(_, ended)| ended.clone()));
            let too_many = record.history.len().saturating_sub(self.history);
            record.history.drain(..too_many);
            let bytes = serde_json::to_vec(&record).expect("every state can be written as JSON");
            if bytes == object.bytes || self.bucket.put_if(resource, object.version, bytes).await {
                self.notify(&collected);
                return Ok(answer);
            }
        }
    }

    /// Sends hints while no lock is held: whoever is woken uses the store next.
    fn notify(&self, collected: &CollectedEffects) {
        for (id, hint) in &collected.hints {
            let instance = self.bucket.routes.lock().get(id).cloned();
            instance.inspect(|instance| instance.send(hint.clone()));
        }
        for (id, _) in &collected.ended {
            self.bucket.routes.lock().remove(id);
        }
        collected.events.iter().for_each(|event| self.bucket.events.send(event));
    }
}

fn decode(resource: &Resource, bytes: &[u8]) -> Result<Content> {
    if bytes.is_empty() {
        return Ok(Content::default());
    }
    let unreadable = |error| Error::unavailable("its object cannot be read").about(resource).caused_by(error);
    serde_json::from_slice(bytes).map_err(unreadable)
}

fn answer<T>(value: T) -> Answer<T> {
    // A bucket never loses its objects, so it has one incarnation.
    Answer::new(value, Incarnation(1))
}

#[async_trait]
impl Backend for CasBackend {
    fn guarantees(&self) -> Guarantees {
        Guarantees::new("cas", Reach::Process, Liveness::Ttl)
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    async fn acquire(&self, request: &Request) -> Result<Answer<Decision>> {
        let LeaseKey { resource, id, .. } = &request.key;
        // Before the request: a hint may arrive before the answer that it belongs to.
        self.bucket.routes.lock().insert(*id, self.hints.clone());
        let rule = |state: &mut State, context: &Context<'_>, effects: &mut Effects| {
            state.acquire(request, Expiry::ByClock, context, effects)
        };
        let decision = self.operate(resource, &[*id], rule).await?;
        if matches!(decision, Decision::Busy(_) | Decision::WrongShape { .. }) {
            self.bucket.routes.lock().remove(id);
        }
        Ok(answer(decision))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let mut standings = Vec::with_capacity(renewals.len());
        for renewal in renewals {
            let LeaseKey { resource, id, .. } = &renewal.key;
            let rule = |state: &mut State, context: &Context<'_>, effects: &mut Effects| {
                state.renew(renewal, context, effects)
            };
            standings.push(self.operate(resource, &[*id], rule).await.unwrap_or(Standing::Unknown));
        }
        Ok(answer(standings))
    }

    async fn release(&self, key: &LeaseKey, outcome: &Outcome) -> Result<Answer<Released>> {
        self.operate(&key.resource, &[key.id], |state, context, effects| {
            state.release(key.id, outcome, context, effects)
        })
        .await
        .map(answer)
    }
}

#[async_trait]
impl Inspect for CasBackend {
    async fn list(&self, filter: &ListFilter) -> Result<LeasePage> {
        let Selection { names, next, .. } = filter.select(self.bucket.names().await);
        let mut leases = Vec::new();
        for name in &names {
            let records = self.operate(name, &[], |state, context, effects| {
                state.settle(context, effects);
                state.records(name, context)
            });
            leases.extend(records.await?);
        }
        Ok(LeasePage::new(leases, next))
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Vec<EndedLease>> {
        let mut found = Vec::new();
        for name in self.bucket.names().await {
            let record = decode(&name, &self.bucket.get(&name).await.bytes)?;
            found.extend(record.history.into_iter().rev());
        }
        Ok(filter.select(found))
    }

    async fn watch(&self, names: Names) -> Result<EventStream> {
        Ok(self.bucket.events.watch(names))
    }

    async fn evict(&self, resource: &Resource, expected: Fence, reason: &str) -> Result<Evicted> {
        self.operate(resource, &[], |state, context, effects| state.evict(expected, reason, context, effects)).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::new(Severity::Info, "liveness", "a holder that died keeps its lease for one ttl")])
    }
}
