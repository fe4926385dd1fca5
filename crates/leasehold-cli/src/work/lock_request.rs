//! The lock, or locks, that a command requests, checked before anything is touched.

use std::{collections::BTreeSet, time::Duration};

use leasehold::{
    Guard, Holder, Leasehold, Lock, Metadata, Resource, Ttl,
    clock::{Clock, SystemClock},
    lease::{Claim, Mode, Moment},
};

use crate::{
    args::AskArgs,
    exit::{CommandError, Result},
};

/// One lease, or several, to be asked for.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    /// The lock that was named first.
    pub(crate) resource: Resource,
    /// All of them, in the order in which they are taken: sorted, so that two who want the same never deadlock.
    pub(crate) all: BTreeSet<Resource>,
    /// How much of each.
    pub(crate) claim: Claim,
    /// The length of the lease.
    pub(crate) ttl: Ttl,
    /// How long to wait.
    pub(crate) wait: WaitLimit,
    /// Since when: the time in which the server was not there counts.
    pub(crate) began: Moment,
    /// Who asks, if chosen.
    pub(crate) holder: Option<Holder>,
    /// One line for people.
    pub(crate) note: Option<String>,
    /// More for programs.
    pub(crate) metadata: Metadata,
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// Not at all.
    Try,
    /// At most this long.
    For(Duration),
    /// Until it is granted.
    Forever,
}

impl WaitLimit {
    /// What the flags say.
    pub(crate) fn of(args: &AskArgs) -> Self {
        match args.wait {
            _ if args.nonblock => Self::Try,
            Some(Duration::ZERO) => Self::Try,
            Some(wait) => Self::For(wait),
            None => Self::Forever,
        }
    }
}

/// The lock's name, checked.
pub(crate) fn resource(name: &str) -> Result<Resource> {
    Resource::new(name).map_err(CommandError::from)
}

/// A ttl given by flag.
pub(crate) fn ttl(given: Option<Duration>, config: Option<Duration>, usual: Ttl) -> Result<Ttl> {
    match (given, config) {
        (Some(ttl), _) => Ttl::new(ttl).map_err(|error| CommandError::by_flag("--ttl", error)),
        (None, Some(ttl)) => Ttl::new(ttl).map_err(CommandError::from),
        (None, None) => Ok(usual),
    }
}

/// How much is asked for.
pub(crate) fn claim(args: &AskArgs) -> Result<Claim> {
    match args.limit {
        Some(limit) => Claim::permits(args.permits, limit).map_err(|error| CommandError::by_flag("-j", error)),
        None if args.shared => Ok(Claim::SHARED),
        None => Ok(Claim::EXCLUSIVE),
    }
}

impl LockRequest {
    /// Gets all of them or none.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no place in a queue behind.
    pub(crate) async fn acquire(&self, locks: &Leasehold) -> leasehold::Result<Vec<Guard>> {
        let mut guards = Vec::new();
        for resource in &self.all {
            match self.lock(locks, resource).acquire().await {
                Ok(guard) => guards.push(guard),
                Err(error) => {
                    while let Some(guard) = guards.pop() {
                        guard.release().await?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(guards)
    }

    /// Makes the lock of this name, with the options from the command line and the rest of the wait.
    fn lock(&self, locks: &Leasehold, name: &Resource) -> Lock {
        let lock = match self.claim.mode() {
            Mode::Shared => locks.read(name.as_str()),
            Mode::Permit => locks.semaphore(name.as_str(), self.claim.capacity()).permits(self.claim.units()),
            _ => locks.mutex(name.as_str()),
        };
        let mut lock = lock.ttl(self.ttl.get()).metadata(self.metadata.clone());
        if let Some(note) = &self.note {
            lock = lock.note(note);
        }
        match self.wait_left() {
            Some(wait) => lock.wait(wait),
            None => lock.wait_forever(),
        }
    }

    /// How long to go on waiting; `None` is for ever.
    fn wait_left(&self) -> Option<Duration> {
        match self.wait {
            WaitLimit::Try => Some(Duration::ZERO),
            // Never nothing: who gives up has waited, and the history says so.
            WaitLimit::For(wait) => {
                Some(wait.saturating_sub(SystemClock.now().since(self.began)).max(Duration::from_millis(1)))
            }
            WaitLimit::Forever => None,
        }
    }

    /// Gets a lease that ends with its ttl.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no place in a queue behind.
    pub(crate) async fn acquire_detached(&self, locks: &Leasehold) -> leasehold::Result<leasehold::Detached> {
        self.lock(locks, &self.resource).acquire_detached().await
    }
}
