//! How long an answer may be believed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How long an answer about an attached lease may be believed.
///
/// A detached lease is always believed for its ttl.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Belief {
    /// For the ttl, counted from the instant before the request was sent.
    #[default]
    Ttl,
    /// While this session lives, and for at most its silence limit without another answer.
    Session(Session),
    /// Until this process ends: no clock is involved.
    Process,
}

impl Belief {
    /// Returns whether the session that gave the answer has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Session(session) if session.has_ended())
    }
}

/// A session of a server that leases end with, shared by the backend and those leases.
///
/// A backend attaches the session that was current *before* it sent the
/// request. Once it calls [`end`](Self::end), every lease that was confirmed in
/// that session is lost, even while the backend is unreachable.
#[derive(Clone, Debug)]
pub struct Session(Arc<SessionState>);

#[derive(Debug)]
struct SessionState {
    silence_limit: Duration,
    ended: AtomicBool,
}

impl Session {
    /// Creates a live session that is believed for `silence_limit` after each answer.
    pub fn new(silence_limit: Duration) -> Self {
        Self(Arc::new(SessionState { silence_limit, ended: AtomicBool::new(false) }))
    }

    /// Ends the session. Send [`Hint::Missed`](crate::backend::Hint::Missed) next, so that `lost()` completes at once.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::SeqCst);
    }

    /// Returns whether the session has ended.
    pub fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::SeqCst)
    }

    /// Returns how long an answer is believed without another one.
    pub fn silence_limit(&self) -> Duration {
        self.0.silence_limit
    }
}
