//! All clients of the same nodes agree on `longest_ttl`, or find out.
//!
//! A node that lost its memory stays silent for the longest ttl that anyone
//! uses. So everyone holds one lease more on each node: a permit of a semaphore
//! whose capacity is `longest_ttl` in milliseconds. Another capacity is refused,
//! like every resource that is used in two shapes. All who agree share one lease
//! id, and the lease outlives every other lease of theirs.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::nodes::Nodes;
use crate::{
    Error, Result,
    backend::Backend,
    lease::{Brief, Claim, Decision, Holder, LeaseId, LeaseKey, Lifetime, Moment, Patience, Request, Resource, Ttl},
};

/// The name of the semaphore; no list of `redlock:` shows it.
pub(super) const NAME: &str = "leasehold:redlock:longest_ttl";

/// How soon to ask again while another instance uses the nodes with another `longest_ttl`.
const RECHECK_AFTER: Duration = Duration::from_secs(1);

/// Whether the others were seen to agree, and until when that may be believed.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    state: Mutex<LastCheck>,
    /// Held by the caller that asks the nodes; callers that have not seen agreement wait.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LastCheck {
    ask_again_at: Moment,
    seen: Seen,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Seen {
    #[default]
    Nothing,
    Agree,
    /// Others use this one.
    Disagree(Duration),
}

impl Agreement {
    /// Fails while others use these nodes with another `longest_ttl`.
    pub(super) async fn check(&self, nodes: &Nodes) -> Result<()> {
        let LastCheck { ask_again_at, seen } = *self.state.lock();
        if nodes.clock().now() >= ask_again_at {
            // One asks. The others go on with what was seen before, if anything was.
            let asking = match seen {
                Seen::Agree => self.asking.try_lock().ok(),
                Seen::Nothing | Seen::Disagree(_) => Some(self.asking.lock().await),
            };
            if asking.is_some() && self.state.lock().ask_again_at == ask_again_at {
                self.ask_nodes(nodes).await?;
            }
        }
        let ours = nodes.options().longest_ttl;
        match self.state.lock().seen {
            Seen::Nothing | Seen::Agree => Ok(()),
            Seen::Disagree(theirs) => Err(Error::invalid_config(format!(
                "redlock: others use these nodes with longest_ttl={}, this instance has {}: a node that lost its memory \
                 would vote too early for one of them; set the same everywhere",
                Brief(theirs),
                Brief(ours)
            ))),
        }
    }

    /// Requests the lease of this `longest_ttl` on all nodes and records their answers.
    async fn ask_nodes(&self, nodes: &Nodes) -> Result<()> {
        let longest = nodes.options().longest_ttl;
        let request = request(longest)?;
        let answers = nodes
            .ask_each(0..nodes.len(), |backend: Arc<dyn Backend>| {
                let request = &request;
                async move { backend.acquire(request).await }
            })
            .await;
        let (mut agree, mut theirs) = (0, None);
        for (_, answer) in answers {
            match answer {
                Ok(Decision::WrongShape { in_force }) => {
                    theirs = Some(Duration::from_millis(u64::from(in_force.capacity - 1)));
                }
                Ok(_) => agree += 1,
                Err(_) => {}
            }
        }
        let now = nodes.clock().now();
        *self.state.lock() = match theirs {
            Some(theirs) => LastCheck { ask_again_at: now.after(RECHECK_AFTER), seen: Seen::Disagree(theirs) },
            None if agree >= nodes.majority() => {
                LastCheck { ask_again_at: now.after(request.ttl.get() / 4), seen: Seen::Agree }
            }
            // The request that follows reports the same failures.
            None => LastCheck { ask_again_at: now, seen: Seen::Nothing },
        };
        Ok(())
    }
}

/// The request of all who have this `longest_ttl`.
fn request(longest: Duration) -> Result<Request> {
    // One more, because a capacity of zero is none.
    let capacity = u32::try_from(longest.as_millis()).ok().and_then(|millis| millis.checked_add(1));
    let too_long = || Error::invalid_config(format!("longest_ttl {longest:?} is too long: 24 days at most"));
    let claim = Claim::permits(1, capacity.ok_or_else(too_long)?).map_err(|_| too_long())?;
    let id = LeaseId::from_u128(0x6c68_7265_646c_6f63_0000_0000_0000_0000 | u128::from(claim.capacity()));
    // Renewed after a quarter, it outlives every lease that was granted since by half a longest ttl.
    let life = if longest.is_zero() { Ttl::DEFAULT.get() } else { longest * 2 };
    Ok(Request::new(LeaseKey::new(Resource::new(NAME)?, id), claim, Holder::new("redlock")?)
        .ttl(Ttl::new(life)?)
        .patience(Patience::Try)
        .lifetime(Lifetime::Detached)
        .note(format!("longest_ttl={}", Brief(longest))))
}
