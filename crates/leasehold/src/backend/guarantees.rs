//! What a backend promises, as plain data.

use std::time::Duration;

use crate::setters_macro::setters;

/// What a backend promises.
///
/// [`Guarantees::new`] describes a backend that pushes grants, serves waiters
/// in order, issues fences and forgets its leases when it restarts. Each of
/// the other methods changes one promise; `fifo` and `fences` have no method and
/// are set as fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one line of the promises table")]
#[non_exhaustive]
pub struct Guarantees {
    /// The backend in one word: `memory`, `file`, `redis`.
    pub kind: &'static str,
    /// Who can contend for one resource.
    pub reach: Reach,
    /// What ends the lease of a holder that died.
    pub liveness: Liveness,
    /// Whether waiters are served in order.
    pub fifo: bool,
    /// Whether grants are pushed to waiters; otherwise the engine polls.
    pub pushes: bool,
    /// Whether each grant of a resource has a higher fence than every earlier one, as long as the backend keeps its
    /// data.
    pub fences: bool,
    /// Whether a lease outlives a restart of the backend.
    pub survives_restart: bool,
    /// Whether skipped and successful runs are recorded; see [`Inspect::record_runs`](super::Inspect::record_runs).
    pub records_runs: bool,
    /// The maximum number of renewals in one call.
    pub renew_batch: usize,
    /// How long an attached lease stays valid after the backend's last answer, even if its ttl is longer; `None` if
    /// there is no such limit.
    pub silence_limit: Option<Duration>,
}

impl Guarantees {
    /// Creates the default promises for a backend of this kind, reach and liveness.
    pub const fn new(kind: &'static str, reach: Reach, liveness: Liveness) -> Self {
        Self {
            kind,
            reach,
            liveness,
            fifo: true,
            pushes: true,
            fences: true,
            survives_restart: false,
            records_runs: false,
            renew_batch: 256,
            silence_limit: None,
        }
    }

    setters! {
        /// Sets whether grants are pushed; `true` by default.
        pub const fn pushes(mut self, pushes: bool) -> Self => pushes;

        /// Sets whether a lease outlives a restart of the backend; `false` by default.
        pub const fn survives_restart(mut self, survives: bool) -> Self => survives;

        /// Says whether the backend records the jobs that were skipped or succeeded; `false` by default.
        pub const fn records_runs(mut self, records: bool) -> Self => records;

        /// Sets the maximum number of renewals in one call; 256 by default.
        pub const fn renew_batch(mut self, most: usize) -> Self => most;

        /// Sets how long an attached lease stays valid after the backend's last answer. No such limit by default.
        pub const fn silence_limit(mut self, limit: Option<Duration>) -> Self => limit;
    }
}

/// Who can contend for one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reach {
    /// Tasks of one process.
    Process,
    /// Processes of one machine.
    Machine,
    /// Machines that reach one server.
    Network,
}

/// What ends the lease of a holder that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Its ttl runs out.
    Ttl,
    /// The kernel reports that the process is gone; no clock is involved.
    Process,
    /// The server reports that the connection is gone; no clock is involved.
    Connection,
}
