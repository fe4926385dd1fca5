//! What an acquire returned: one lease, or several that are held together.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use leasehold::{DetachedLease, Guard, Guards, Lease, Loss, Outcome, Result, lease::Released};

pub(crate) struct Held {
    /// Sorted by name.
    pub(crate) leases: Vec<Lease>,
    pub(crate) guards: OneOrAll,
}

pub(crate) enum OneOrAll {
    One(Guard),
    All(Guards),
    /// It ends with its ttl if nobody releases it.
    Detached(DetachedLease),
}

impl From<Guard> for Held {
    fn from(guard: Guard) -> Self {
        Self { leases: vec![guard.lease().clone()], guards: OneOrAll::One(guard) }
    }
}

impl From<Guards> for Held {
    fn from(guards: Guards) -> Self {
        Self { leases: guards.iter().map(|guard| guard.lease().clone()).collect(), guards: OneOrAll::All(guards) }
    }
}

impl From<DetachedLease> for Held {
    fn from(detached: DetachedLease) -> Self {
        Self { leases: vec![detached.lease.clone()], guards: OneOrAll::Detached(detached) }
    }
}

impl Held {
    /// Why the first of the leases that were lost was lost; computed now, also if no other code could run for long.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.leases.iter().find_map(|lease| match lease.check() {
            Ok(()) => None,
            Err(_) => Some(lease.loss().unwrap_or(Loss::Gone)),
        })
    }

    /// How long all of the leases stay valid without a renewal; `None` if they last as long as the process.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.leases.iter().filter_map(Lease::remaining).min()
    }

    /// Completes when one of the leases is lost.
    pub(crate) fn lost(&self) -> impl Future<Output = Loss> + use<> {
        let leases = self.leases.clone();
        async move {
            if let [lease] = leases.as_slice() {
                return lease.lost().await;
            }
            let mut losses: Vec<Pin<Box<dyn Future<Output = Loss> + '_>>> =
                leases.iter().map(|lease| Box::pin(lease.lost()) as _).collect();
            poll_fn(|context| {
                for loss in &mut losses {
                    if let Poll::Ready(loss) = loss.as_mut().poll(context) {
                        return Poll::Ready(loss);
                    }
                }
                Poll::Pending
            })
            .await
        }
    }

    /// Releases the leases; returns why one of them had been lost before.
    pub(crate) async fn release(self, outcome: Outcome) -> Result<Option<Loss>> {
        let released = match self.guards {
            OneOrAll::One(guard) => guard.release_as(outcome).await?,
            OneOrAll::All(guards) => guards.release_as(outcome).await?,
            OneOrAll::Detached(detached) => detached.release_as(outcome).await?,
        };
        let lost = |lease: &Lease| lease.loss().filter(|loss| *loss != Loss::Released);
        Ok((released == Released::Gone).then(|| self.leases.iter().find_map(lost).unwrap_or(Loss::Gone)))
    }
}
