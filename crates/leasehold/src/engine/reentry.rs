//! Re-entrant locks: callers with the same holder share one lease.

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

/// The re-entrant leases of one instance.
#[derive(Debug, Default)]
pub(crate) struct Reentries(Mutex<HashMap<(Resource, Holder), Arc<EntryGate>>>);

/// Lets the callers of one holder enter one at a time, and stores the lease that later callers join.
type EntryGate = tokio::sync::Mutex<Weak<LocalLease>>;

impl Reentries {
    /// Joins the lease of this holder, or acquires one.
    pub(crate) async fn enter(&self, engine: &Arc<Engine>, mut options: AcquireOptions<'_>) -> Result<Attempt> {
        // In a forked child, the gate may be locked by a task that exists only in the parent.
        engine.check_usable()?;
        let gate = self.gate(&options);
        let give_up_at = match options.wait {
            Wait::For(length) => engine.clock.now().after(length),
            Wait::No => engine.clock.now(),
            Wait::Forever => Moment::NEVER,
        };
        let mut entered = if let Ok(entered) = gate.try_lock() {
            entered
        } else {
            // Another task of this holder is entering. Look up the holders now, so that the answer can name them.
            let mut holders = engine.spawn_find_holders(options.resource);
            tokio::select! {
                biased;
                entered = gate.lock() => entered,
                () = engine.sleep_until(give_up_at), if give_up_at != Moment::NEVER => {
                    return give_up_entering(engine, &options, &mut holders).await;
                }
            }
        };
        if let Some(guard) = Guard::join(engine, &entered)
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
            let limit = if options.wait == Wait::No { give_up_at.after(TRY_LIMIT) } else { give_up_at };
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
            options.wait = Wait::For(give_up_at.since(engine.clock.now()).max(Duration::from_millis(1)));
        }
        let attempt = engine.acquire(&options).await?;
        if let Attempt::Acquired(guard) = &attempt {
            *entered = guard.weak_lease();
        }
        Ok(attempt)
    }

    /// The gate of this resource and holder; gates that nobody uses are removed.
    fn gate(&self, options: &AcquireOptions<'_>) -> Arc<EntryGate> {
        let mut gates = self.0.lock();
        gates.retain(|_, gate| {
            Arc::strong_count(gate) > 1 || gate.try_lock().is_ok_and(|lease| lease.strong_count() > 0)
        });
        Arc::clone(gates.entry((options.resource.clone(), options.holder.clone())).or_default())
    }
}

/// The answer to a caller that gave up while another task of the same holder was entering.
async fn give_up_entering(
    engine: &Arc<Engine>,
    options: &AcquireOptions<'_>,
    holders: &mut oneshot::Receiver<Busy>,
) -> Result<Attempt> {
    match options.wait {
        Wait::For(length) => {
            let busy = holders.try_recv().unwrap_or_default();
            Err(Error::wait_elapsed(options.resource, engine.kind, Brief(length), busy))
        }
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
