//! Who may enter a lock again, because the same holder is in already.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    Error, ErrorKind, Result,
    engine::{Ask, Asked, Engine, Guard, Kept, Wait},
    lease::{Brief, Busy, Holder, Moment, Resource},
};

/// The re-entrant leases of one instance.
#[derive(Debug, Default)]
pub(crate) struct Reentries(Mutex<HashMap<(Resource, Holder), Arc<Door>>>);

/// One entry at a time; who is in already is let in again.
type Door = tokio::sync::Mutex<Weak<Kept>>;

impl Reentries {
    /// Joins the holder's lease, or gets one.
    pub(crate) async fn enter(&self, engine: &Arc<Engine>, mut ask: Ask) -> Result<Asked> {
        let door = self.door(&ask);
        let give_up = match ask.wait {
            Wait::For(length) => engine.clock.now().after(length),
            Wait::No => engine.clock.now(),
            Wait::Forever => Moment::NEVER,
        };
        let mut inside = tokio::select! {
            biased;
            inside = door.lock() => inside,
            () = engine.sleep_until(give_up), if give_up != Moment::NEVER => return match ask.wait {
                Wait::For(length) => {
                    Err(Error::wait_elapsed(&ask.resource, engine.kind, Brief(length), Busy::default()))
                }
                Wait::No | Wait::Forever => Ok(Asked::Busy(Busy::default())),
            },
        };
        if let Some(guard) = Guard::join(engine, &inside)
            && guard.check().is_ok()
        {
            if guard.claim().shape() != ask.claim.shape() || guard.claim().units() < ask.claim.units() {
                return Err(Error::unsupported(format!(
                    "{} is held as {} by this holder and cannot be entered again as {}: release it first",
                    ask.resource,
                    guard.mode(),
                    ask.claim.mode()
                ))
                .about(&ask.resource));
            }
            match guard.renew(ask.ttl.get()).await {
                Ok(()) => return Ok(Asked::Acquired(guard)),
                // Lost a moment ago, like one that was lost before: get another.
                Err(error) if error.kind() == ErrorKind::Lost => drop(guard),
                Err(error) => return Err(error),
            }
        }
        if let Wait::For(_) = ask.wait {
            ask.wait = Wait::For(give_up.since(engine.clock.now()).max(Duration::from_millis(1)));
        }
        let asked = engine.acquire(ask).await?;
        if let Asked::Acquired(guard) = &asked {
            *inside = guard.shareable();
        }
        Ok(asked)
    }

    /// The door of this resource and holder; doors nobody stands at are taken away.
    fn door(&self, ask: &Ask) -> Arc<Door> {
        let mut doors = self.0.lock();
        doors.retain(|_, door| {
            Arc::strong_count(door) > 1 || door.try_lock().is_ok_and(|inside| inside.strong_count() > 0)
        });
        Arc::clone(doors.entry((ask.resource.clone(), ask.holder.clone())).or_default())
    }
}
