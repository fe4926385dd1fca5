//! What can be chosen about a quorum.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    Error, Result,
    backend::Backend,
    clock::{Clock, SystemClock},
    lease::{Resource, Ttl},
    model::FENCE_LEAD,
};

/// One of the backends a quorum is made of, and what errors call it.
#[derive(Clone, Debug)]
pub struct Member {
    pub(super) name: String,
    pub(super) backend: Arc<dyn Backend>,
}

impl Member {
    /// A backend under this name, such as its host and port.
    pub fn new(name: impl Into<String>, backend: Arc<dyn Backend>) -> Self {
        Self { name: name.into(), backend }
    }
}

/// What can be chosen about a quorum.
#[derive(Clone)]
#[must_use = "options do nothing until a quorum is made with them"]
pub struct QuorumOptions {
    pub(super) node_limit: Duration,
    pub(super) longest_ttl: Duration,
    pub(super) clock: Arc<dyn Clock>,
}

impl QuorumOptions {
    /// What nothing else is said about.
    pub fn new() -> Self {
        Self {
            node_limit: Duration::from_millis(50),
            longest_ttl: Duration::from_secs(60),
            clock: Arc::new(SystemClock),
        }
    }

    /// How long one node may take to answer; 50 ms by default.
    ///
    /// Long enough for a healthy node, short against the ttl: one that hangs
    /// costs this much now and then.
    pub fn node_limit(mut self, limit: Duration) -> Self {
        self.node_limit = limit;
        self
    }

    /// The longest ttl that anyone uses on these nodes; 60 s by default.
    ///
    /// A longer one is refused, and a node that may have lost its memory does
    /// not vote for so long (at least for 11 s, so that its clock has passed
    /// every fence it may have forgotten). The default leaves room over the
    /// 30 s that a lease has by default, and keeps a restarted node out for a
    /// minute. All who use the nodes must agree on it.
    ///
    /// Zero lets every node vote at once and refuses no ttl: right only for
    /// nodes that lose nothing when they are restarted.
    pub fn longest_ttl(mut self, longest: Duration) -> Self {
        self.longest_ttl = longest;
        self
    }

    /// Where time comes from; the machine's clocks by default.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    pub(super) fn check(&self, members: usize) -> Result<()> {
        if members < 3 || members.is_multiple_of(2) {
            return Err(Error::invalid_config(format!(
                "a quorum needs 3, 5, 7 … independent nodes, not {members}: an even one more tolerates no more failures"
            )));
        }
        if self.node_limit < Duration::from_millis(1) {
            return Err(Error::invalid_config(format!("node_limit {:?} is too short: 1ms or more", self.node_limit)));
        }
        Ok(())
    }

    pub(super) fn check_ttl(&self, ttl: Ttl, resource: &Resource) -> Result<()> {
        if self.longest_ttl.is_zero() || ttl.get() <= self.longest_ttl {
            return Ok(());
        }
        Err(Error::invalid_config(format!(
            "{resource} on redlock: ttl {:?} is above longest_ttl {:?}, for which a restarted node is kept from voting; \
             shorten it, or raise longest_ttl wherever these nodes are used",
            ttl.get(),
            self.longest_ttl
        ))
        .about(resource))
    }

    /// How long a node that may have forgotten does not vote.
    pub(super) fn quarantine(&self) -> Duration {
        /// No fence is further ahead of its node's clock than this, give or take the grants of one instant.
        const FENCES_PASSED: Duration = FENCE_LEAD.saturating_add(Duration::from_secs(1));
        if self.longest_ttl.is_zero() { Duration::ZERO } else { self.longest_ttl.max(FENCES_PASSED) }
    }
}

impl Default for QuorumOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for QuorumOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumOptions")
            .field("node_limit", &self.node_limit)
            .field("longest_ttl", &self.longest_ttl)
            .finish_non_exhaustive()
    }
}
