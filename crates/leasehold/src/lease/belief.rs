//! How long a client may rely on an answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How long a client may rely on an answer about an attached lease.
///
/// A client may always rely on a detached lease for its ttl.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Belief {
    /// For the ttl, counted from the instant before the request was sent.
    #[default]
    Ttl,
    /// As long as this session lives, but no longer than the session's silence limit or the ttl, whichever is shorter.
    ///
    /// The time is counted from the instant before the request was sent.
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

/// A session with a server. When the session ends, the leases that depend on it are lost.
///
/// A backend adds to its answer the session that was current *before* it sent the
/// request. Once the backend calls [`end`](Self::end), every lease that was confirmed in
/// that session is lost, even while the server is unreachable.
#[derive(Clone, Debug)]
pub struct Session(Arc<SessionState>);

#[derive(Debug)]
struct SessionState {
    silence_limit: Duration,
    ended: AtomicBool,
}

impl Session {
    /// Creates a session in which clients may rely on each answer for `silence_limit`.
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

    /// Returns how long a client may rely on the latest answer.
    pub fn silence_limit(&self) -> Duration {
        self.0.silence_limit
    }
}
