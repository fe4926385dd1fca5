//! A lease this process waits for or holds, as its loops share it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Ask, backoff::Backoff, margin, renew_every, validity::Validity};
use crate::{
    backend::Liveness,
    lease::{Claim, Fence, Grant, Holder, LeaseKey, Metadata, Moment, Place, Renewal, Timestamp, Ttl, micros},
};

/// How long a holder that no clock ends may go without asking: an eviction whose hint was lost is found then.
const HOLDERS_SILENCE: Duration = Duration::from_secs(10);
/// The same for a waiter, of whom there may be hundreds: a grant whose hint was lost is found then.
const WAITERS_SILENCE: Duration = Duration::from_secs(60);

/// A lease this process waits for or holds.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) key: LeaseKey,
    pub(crate) holder: Holder,
    pub(crate) note: Option<String>,
    /// Whether a clock ends it; if not, its process or nothing does.
    pub(crate) clocked: bool,
    ttl_micros: AtomicU64,
    longest: Ttl,
    terms: Mutex<Terms>,
    waiting: Mutex<Waiting>,
    heard: Notify,
    hold: OnceLock<Hold>,
    pub(crate) evicted: AtomicBool,
    /// Guards that share it: more than one only where it is re-entrant.
    pub(crate) guards: AtomicUsize,
}

/// What may change during the life of a lease.
#[derive(Clone, Debug)]
struct Terms {
    claim: Claim,
    metadata: Metadata,
}

/// What a lease has once it holds.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) grant: Grant,
    /// When the request was sent that proved it.
    pub(crate) from: Moment,
    pub(crate) waited: Duration,
    pub(crate) validity: Validity,
}

/// What has been heard of a lease that waits.
#[derive(Debug)]
struct Waiting {
    /// When the last ask or renewal was sent that was answered.
    proved: Option<Moment>,
    /// The newest fence told by an answer: a hint that is not above it is stale.
    last_fence: Fence,
    /// The fence of a pushed grant. It may come before the answer it belongs to.
    hint: Option<Fence>,
    news: Option<News>,
    backoff: Backoff,
    tries: u32,
}

/// What a waiter has to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It holds; belief counts from `from`.
    Granted { grant: Grant, from: Moment, pushed: bool },
    /// Its place is gone.
    Gone,
}

impl Kept {
    /// `longest` is the longest belief in one answer, whatever ttl is asked for.
    pub(crate) fn new(key: LeaseKey, ask: &Ask, clocked: bool, longest: Ttl) -> Arc<Self> {
        Arc::new(Self {
            key,
            holder: ask.holder.clone(),
            note: ask.note.clone(),
            clocked,
            ttl_micros: AtomicU64::new(micros(ask.ttl.get())),
            longest,
            terms: Mutex::new(Terms { claim: ask.claim, metadata: ask.metadata.clone() }),
            waiting: Mutex::new(Waiting {
                proved: None,
                last_fence: Fence::default(),
                hint: None,
                news: None,
                backoff: ask.backoff,
                tries: 0,
            }),
            heard: Notify::new(),
            hold: OnceLock::new(),
            evicted: AtomicBool::new(false),
            guards: AtomicUsize::new(0),
        })
    }

    pub(crate) fn ttl(&self) -> Ttl {
        let micros = Duration::from_micros(self.ttl_micros.load(Ordering::SeqCst));
        Ttl::new(micros).unwrap_or(Ttl::MIN).min(self.longest)
    }

    /// Whether it ends with a connection, whatever ttl was asked for.
    pub(crate) fn lives_by_connection(&self) -> bool {
        self.longest == Liveness::Connection.longest_ttl()
    }

    pub(crate) fn claim(&self) -> Claim {
        self.terms.lock().claim
    }

    pub(crate) fn metadata(&self) -> Metadata {
        self.terms.lock().metadata.clone()
    }

    /// Claims less from now on. What is given up is given up before the backend is asked to.
    pub(crate) fn downgrade(&self, claim: Claim) {
        self.terms.lock().claim = claim;
    }

    /// Remembers what a renewal changed at the backend.
    pub(crate) fn apply(&self, renewal: &Renewal) {
        self.ttl_micros.store(micros(renewal.ttl.get()), Ordering::SeqCst);
        if let Some(metadata) = &renewal.metadata {
            self.terms.lock().metadata.clone_from(metadata);
        }
    }

    pub(crate) fn renewal(&self) -> Renewal {
        Renewal::new(self.key.clone(), self.ttl())
    }

    /// The end of belief in what a request for `ttl`, sent at `sent`, proved.
    pub(crate) fn deadline(&self, sent: Moment, ttl: Ttl) -> Moment {
        let ttl = ttl.min(self.longest);
        if self.clocked { sent.after(ttl.get().saturating_sub(margin(ttl))) } else { Moment::NEVER }
    }

    /// When to renew what was proved at `sent`: a third of the ttl later, a
    /// little less by a part that differs from lease to lease.
    pub(crate) fn renew_at(&self, sent: Moment) -> Moment {
        let every = match (self.clocked, self.hold()) {
            (true, _) => renew_every(self.ttl()),
            // Nothing runs out: a renewal only finds what a lost hint did not tell.
            (false, Some(_)) => renew_every(self.ttl()).min(HOLDERS_SILENCE),
            // A short ttl is a wish to hear soon.
            (false, None) if renew_every(self.ttl()) < HOLDERS_SILENCE => renew_every(self.ttl()),
            (false, None) => WAITERS_SILENCE,
        };
        let part = u32::try_from(self.key.id.as_u128() & 0xff).unwrap_or(0);
        sent.after(every.saturating_sub(every / 10 * part / 255))
    }

    pub(crate) fn hold(&self) -> Option<&Hold> {
        self.hold.get()
    }

    /// Begins to hold.
    pub(crate) fn begin(&self, hold: Hold) {
        let _first = self.hold.set(hold);
    }

    /// A push says that it holds.
    pub(crate) fn hinted(&self, fence: Fence) {
        self.waiting.lock().hint = Some(fence);
        self.heard.notify_waiters();
    }

    /// An ask or a renewal sent at `sent` was answered: it waits.
    pub(crate) fn answered(&self, sent: Moment, place: &Place) {
        let mut waiting = self.waiting.lock();
        waiting.proved = waiting.proved.max(Some(sent));
        waiting.last_fence = waiting.last_fence.max(place.last_fence);
        waiting.tries += 1;
        drop(waiting);
        self.heard.notify_waiters();
    }

    pub(crate) fn tell(&self, news: News) {
        self.waiting.lock().news = Some(news);
        self.heard.notify_waiters();
    }

    /// What there is to act on, if anything.
    ///
    /// A pushed grant has an unknown age: it counts from the last request that
    /// was answered, and one whose fence was seen before belongs to the past.
    pub(crate) fn news(&self, wall: Timestamp) -> Option<News> {
        let waiting = self.waiting.lock();
        waiting.news.or_else(|| {
            let fence = waiting.hint.filter(|fence| *fence > waiting.last_fence)?;
            Some(News::Granted { grant: Grant { fence, acquired_at: wall }, from: waiting.proved?, pushed: true })
        })
    }

    /// Drops a hint that came too late to be believed.
    pub(crate) fn disregard_hint(&self) {
        self.waiting.lock().hint = None;
    }

    pub(crate) fn heard(&self) -> tokio::sync::futures::Notified<'_> {
        self.heard.notified()
    }

    /// How often it was answered that it waits.
    pub(crate) fn tries(&self) -> u32 {
        self.waiting.lock().tries
    }

    /// The pause before the next ask, where nothing pushes.
    pub(crate) fn pause(&self) -> Duration {
        self.waiting.lock().backoff.pause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::Wait,
        lease::{LeaseId, Lifetime, Resource},
    };

    fn kept() -> Arc<Kept> {
        let key = LeaseKey { resource: Resource::new("r").unwrap(), id: LeaseId::random() };
        let ask = Ask {
            resource: key.resource.clone(),
            claim: Claim::EXCLUSIVE,
            ttl: Ttl::DEFAULT,
            wait: Wait::Forever,
            lifetime: Lifetime::Attached,
            holder: Holder::unique(),
            note: None,
            metadata: Metadata::new(),
            max_hold: None,
            backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(1)),
            max_tries: None,
        };
        Kept::new(key, &ask, true, Ttl::MAX)
    }

    fn place(last_fence: u64) -> Place {
        Place { ahead: 0, last_fence: Fence::new(last_fence), ask_again_in: None }
    }

    fn at(micros: u64) -> Moment {
        Moment::from_micros(micros)
    }

    fn from(kept: &Kept) -> Option<Moment> {
        match kept.news(Timestamp::default())? {
            News::Granted { from, .. } => Some(from),
            News::Gone => None,
        }
    }

    #[test]
    fn a_hint_before_its_reply_is_kept_and_counts_from_the_ask() {
        let kept = kept();
        kept.hinted(Fence::new(8));
        assert_eq!(from(&kept), None, "nothing was answered yet");
        kept.answered(at(70), &place(7));
        assert_eq!(from(&kept), Some(at(70)));
    }

    #[test]
    fn a_pushed_grant_counts_from_the_last_answered_request() {
        let kept = kept();
        kept.answered(at(70), &place(7));
        kept.answered(at(90), &place(7));
        kept.hinted(Fence::new(8));
        assert_eq!(from(&kept), Some(at(90)));
    }

    #[test]
    fn a_hint_with_a_fence_seen_before_is_stale() {
        let kept = kept();
        kept.answered(at(70), &place(7));
        kept.hinted(Fence::new(7));
        assert_eq!(from(&kept), None);
    }

    #[test]
    fn belief_is_counted_from_sending_less_the_margin() {
        let kept = kept();
        let sent = at(1_000_000);
        assert_eq!(kept.deadline(sent, Ttl::DEFAULT).since(sent), Duration::from_millis(29_400));
    }

    #[test]
    fn renewal_leaves_two_more_chances() {
        let kept = kept();
        let interval = kept.renew_at(at(0)).since(at(0));
        assert!(interval <= Duration::from_secs(10) && interval >= Duration::from_secs(9), "{interval:?}");
    }
}
