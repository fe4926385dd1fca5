//! Refuses to wait for a lock that an ancestor process holds, because that wait would never end.

use leasehold::{
    Fence, Lease, Leasehold, Resource,
    lease::{Claim, LeaseState, ListFilter, Mode, Names},
};
use serde_json::{Value, json};

use super::lock_request::{LockRequest, WaitLimit};
use crate::{
    error::{CommandError, Result},
    variables::Environment,
};

/// A lock under which we were started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AncestorLock {
    /// Its name.
    pub(crate) lock: String,
    /// The fence of the lease.
    pub(crate) fence: Fence,
    mode: String,
}

impl AncestorLock {
    /// The lock of this lease.
    pub(crate) fn of(lease: &Lease) -> Self {
        Self { lock: lease.resource().to_string(), fence: lease.fence(), mode: lease.mode().to_string() }
    }

    /// The text of `LEASEHOLD_LOCK_STACK`, outermost first: JSON, since a name may hold any separator.
    pub(crate) fn stack(outers: &[Self]) -> String {
        let entries: Vec<Value> = outers
            .iter()
            .map(|outer| json!({"lock": outer.lock, "mode": outer.mode, "fence": outer.fence.get()}))
            .collect();
        Value::from(entries).to_string()
    }

    /// The locks under which we were started, outermost first.
    pub(crate) fn all(env: Environment<'_>) -> Vec<Self> {
        let text = |name| env(name).and_then(|value| value.into_string().ok());
        let stack = text("LEASEHOLD_LOCK_STACK").and_then(|stack| serde_json::from_str::<Vec<Value>>(&stack).ok());
        if let Some(stack) = stack {
            return stack.iter().filter_map(Self::from_json).collect();
        }
        let innermost = || {
            Some(Self {
                lock: text("LEASEHOLD_LOCK")?,
                fence: Fence::new(text("LEASEHOLD_FENCE")?.parse().ok()?),
                mode: text("LEASEHOLD_MODE").unwrap_or_default(),
            })
        };
        innermost().into_iter().collect()
    }

    fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            lock: value.get("lock")?.as_str()?.to_owned(),
            fence: Fence::new(value.get("fence")?.as_u64()?),
            mode: value.get("mode").and_then(Value::as_str).unwrap_or_default().to_owned(),
        })
    }
}

/// The outer lock of this name, if its lease is still alive on this backend.
///
/// The environment may be old (a daemon outlives the run that started it) or
/// of another backend, so the fence decides and not the name.
pub(crate) async fn held_outside(
    locks: &Leasehold,
    resource: &Resource,
    outers: &[AncestorLock],
) -> Result<Option<AncestorLock>> {
    let namesakes: Vec<&AncestorLock> = outers.iter().filter(|outer| outer.lock == resource.as_str()).collect();
    if namesakes.is_empty() {
        return Ok(None);
    }
    let page = locks.list(&ListFilter::new(Names::Exactly(resource.clone()))).await?;
    let held = page.leases.iter().filter_map(|lease| match lease.state {
        LeaseState::Holding { fence, .. } => Some(fence),
        LeaseState::Waiting { .. } => None,
    });
    let held: Vec<Fence> = held.collect();
    Ok(namesakes.into_iter().find(|outer| held.contains(&outer.fence)).cloned())
}

/// Refuses a lock that our ancestors hold, unless it can be shared and the wait is bounded.
pub(crate) async fn refuse(locks: &Leasehold, request: &LockRequest, outers: &[AncestorLock]) -> Result<()> {
    match held_outside(locks, &request.resource, outers).await? {
        Some(outer) if can_share(request.claim, &outer) && request.wait != WaitLimit::Forever => Ok(()),
        Some(outer) => Err(would_never_end(&request.resource, &outer)),
        None => Ok(()),
    }
}

/// Returns whether this reader can share its ancestor's lock. It gets the lock at once or never, because a waiting
/// writer goes first.
pub(crate) fn can_share(claim: Claim, outer: &AncestorLock) -> bool {
    claim.mode() == Mode::Shared && outer.mode == Mode::Shared.as_str()
}

/// Why a lock that our ancestors hold is refused.
pub(crate) fn would_never_end(resource: &Resource, outer: &AncestorLock) -> CommandError {
    CommandError::usage(format!(
        "{resource} is held by the run that started this one (fence {}): waiting for it would never end",
        outer.fence
    ))
    .hint("use another name, or `run --reentrant` to run under the lock that is already held")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn outer(lock: &str, fence: u64) -> AncestorLock {
        AncestorLock { lock: lock.into(), fence: Fence::new(fence), mode: "exclusive".into() }
    }

    #[test]
    fn the_stack_keeps_every_name_apart() {
        let outers = [outer("a,b", 1), outer("[\"x\"]", 2), outer("a", (1 << 53) - 1), outer("ü'\"\\", 4)];
        let text = AncestorLock::stack(&outers);
        let env = |name: &str| (name == "LEASEHOLD_LOCK_STACK").then(|| OsString::from(&text));
        assert_eq!(AncestorLock::all(&env), outers);
    }

    #[test]
    fn without_a_stack_the_innermost_lock_is_known() {
        let env = |name: &str| match name {
            "LEASEHOLD_LOCK" => Some(OsString::from("x")),
            "LEASEHOLD_FENCE" => Some(OsString::from("7")),
            "LEASEHOLD_MODE" => Some(OsString::from("exclusive")),
            _ => None,
        };
        assert_eq!(AncestorLock::all(&env), [outer("x", 7)]);
        assert_eq!(AncestorLock::all(&|_| None), []);
        assert_eq!(AncestorLock::all(&|name| (name == "LEASEHOLD_LOCK_STACK").then(|| OsString::from("junk"))), []);
    }
}
