//! Leases shared by the callers of one holder (`shared_by_holder`).

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{AcquireOptions, Attempt, Engine, Guard, LocalLease, Wait, acquire::TRY_LIMIT};
use crate::{
    Error, ErrorKind, Result,
    lease::{Brief, Busy, Holder, Moment, Resource},
};

/// The shared leases of one instance.
#[derive(Debug, Default)]
pub(crate) struct Reentries(Mutex<HashMap<(Resource, Holder), Arc<JoinGate>>>);

/// Admits the callers of one holder one at a time, and stores the lease that they share.
type JoinGate = tokio::sync::Mutex<Weak<LocalLease>>;

impl Reentries {
    /// Joins the lease of this holder, or acquires one.
    pub(crate) async fn join_or_acquire(
        &self,
        engine: &Arc<Engine>,
        mut options: AcquireOptions<'_>,
    ) -> Result<Attempt> {
        // In a forked child, the gate may be locked by a task that exists only in the parent.
        engine.check_usable()?;
        let gate = self.gate(&options);
        // When to stop waiting for other callers of this holder, and for the renewal of the lease that they share.
        let join_by = match options.wait {
            Wait::For(length) => engine.clock.now().after(length),
            Wait::No => engine.clock.now(),
            Wait::Forever => Moment::NEVER,
        };
        let mut shared_lease = if let Ok(shared_lease) = gate.try_lock() {
            shared_lease
        } else {
            // Another task of this holder is at the gate. Look up the holders now, so that the answer can name them.
            let mut holders = engine.spawn_find_holders(options.resource);
            tokio::select! {
                biased;
                shared_lease = gate.lock() => shared_lease,
                () = engine.sleep_until(join_by), if join_by != Moment::NEVER => {
                    return give_up_joining(engine, &options, &mut holders).await;
                }
            }
        };
        if let Some(guard) = Guard::join(engine, &shared_lease)
            && guard.check().is_ok()
        {
            if guard.claim().shape() != options.claim.shape() || guard.claim().units() < options.claim.units() {
                return Err(Error::unsupported(format!(
                    "{} is held as {} by this holder and cannot be entered again as {}: release it first",
                    options.resource,
                    guard.mode(),
                    options.claim.mode()
                ))
                .about(options.resource));
            }
            let limit = if options.wait == Wait::No { join_by.after(TRY_LIMIT) } else { join_by };
            let renewed = tokio::select! {
                biased;
                renewed = guard.renew(options.ttl.get()) => renewed,
                () = engine.sleep_until(limit), if limit != Moment::NEVER => {
                    Err(Error::unanswered("the renewal was not answered in time").about(options.resource))
                }
            };
            match renewed {
                Ok(()) => return Ok(Attempt::Acquired(guard)),
                // The lease was lost just now: acquire another one.
                Err(error) if error.kind() == ErrorKind::Lost => drop(guard),
                Err(error) => return Err(error),
            }
        }
        if let Wait::For(_) = options.wait {
            // With no time left at all, the request would end before its answer.
            options.wait = Wait::For(join_by.since(engine.clock.now()).max(Duration::from_millis(1)));
        }
        let attempt = engine.acquire(&options).await?;
        if let Attempt::Acquired(guard) = &attempt {
            *shared_lease = guard.weak_lease();
        }
        Ok(attempt)
    }

    /// The gate of this resource and holder; gates that nobody uses are removed.
    fn gate(&self, options: &AcquireOptions<'_>) -> Arc<JoinGate> {
        let mut gates = self.0.lock();
        gates.retain(|_, gate| {
            Arc::strong_count(gate) > 1 || gate.try_lock().is_ok_and(|lease| lease.strong_count() > 0)
        });
        Arc::clone(gates.entry((options.resource.clone(), options.holder.clone())).or_default())
    }
}

/// The answer to a caller that gave up while another task of the same holder was at the gate.
async fn give_up_joining(
    engine: &Arc<Engine>,
    options: &AcquireOptions<'_>,
    holders: &mut oneshot::Receiver<Busy>,
) -> Result<Attempt> {
    match options.wait {
        Wait::For(length) => {
            let busy = holders.try_recv().unwrap_or_default();
            Err(Error::wait_elapsed(options.resource, engine.backend_kind, Brief(length), busy))
        }
        // `Forever` does not get here.
        Wait::No | Wait::Forever => {
            let limit = engine.clock.now().after(Duration::from_secs(1));
            Ok(Attempt::Busy(tokio::select! {
                biased;
                busy = holders => busy.unwrap_or_default(),
                () = engine.sleep_until(limit) => Busy::default(),
            }))
        }
    }
}
