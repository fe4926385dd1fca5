//! One lease that is held, or several that are held together.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use leasehold::{DetachedLease, Guard, Guards, Loss, Result, lease::Released};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{
    call::{Call, Value, block},
    errors,
    instance::{outcome, seconds},
    of_process::OfProcess,
};

enum Holding {
    One(Guard),
    All(Guards),
    /// It ends with its ttl if nobody releases it.
    Detached(DetachedLease),
}

struct Held {
    /// Sorted by name; never empty.
    leases: Vec<leasehold::Lease>,
    /// `None` once they are released.
    holding: Mutex<Option<Holding>>,
}

/// One lease that is held, or several that are held together. Dropping it releases them in the background, except for a
/// detached one.
#[pyclass(frozen, module = "leasehold._native")]
pub(crate) struct Lease(OfProcess<Held>);

impl Lease {
    pub(crate) fn one(guard: Guard) -> Self {
        Self::new(vec![guard.lease().clone()], Holding::One(guard))
    }

    pub(crate) fn all(guards: Guards) -> Self {
        Self::new(guards.iter().map(|guard| guard.lease().clone()).collect(), Holding::All(guards))
    }

    pub(crate) fn detached(detached: DetachedLease) -> Self {
        Self::new(vec![detached.lease.clone()], Holding::Detached(detached))
    }

    fn new(leases: Vec<leasehold::Lease>, holding: Holding) -> Self {
        Self(OfProcess::new(Held { leases, holding: Mutex::new(Some(holding)) }))
    }

    fn first(&self) -> PyResult<&leasehold::Lease> {
        self.0.get()?.leases.first().ok_or_else(|| errors::invalid("all() needs at least one name"))
    }
}

/// Completes with the first loss among these leases.
async fn first_loss(leases: Vec<leasehold::Lease>) -> Loss {
    if let [lease] = leases.as_slice() {
        return lease.lost().await;
    }
    let mut losses: Vec<Pin<Box<dyn Future<Output = Loss> + Send + '_>>> =
        leases.iter().map(|lease| Box::pin(lease.lost()) as _).collect();
    poll_fn(|context| {
        let lost = losses.iter_mut().find_map(|loss| match loss.as_mut().poll(context) {
            Poll::Ready(loss) => Some(loss),
            Poll::Pending => None,
        });
        lost.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

async fn give_back(holding: Option<Holding>, failure: Option<(String, String)>) -> Result<Value> {
    let outcome = outcome(failure);
    let released: Result<Released> = match holding {
        None => return Ok(Value::Nothing),
        Some(Holding::One(guard)) => guard.release_as(outcome).await,
        Some(Holding::All(guards)) => guards.release_as(outcome).await,
        Some(Holding::Detached(detached)) => detached.release_as(outcome).await,
    };
    Ok(Value::Flag(released? != Released::Gone))
}

#[pymethods]
impl Lease {
    /// The name, the fence and the handle of each lease, sorted by name.
    fn grants(&self) -> PyResult<Vec<(String, u64, String)>> {
        let describe = |lease: &leasehold::Lease| {
            (lease.resource().as_str().to_owned(), lease.fence().get(), lease.handle().to_string())
        };
        Ok(self.0.get()?.leases.iter().map(describe).collect())
    }

    fn holder(&self) -> PyResult<String> {
        Ok(self.first()?.holder().as_str().to_owned())
    }

    fn ttl(&self) -> PyResult<f64> {
        Ok(self.first()?.ttl().as_secs_f64())
    }

    /// How many seconds the leases stay valid without another renewal; infinite where they last as long as the process.
    fn remaining(&self) -> f64 {
        let Some(held) = self.0.if_own() else { return 0.0 };
        held.leases
            .iter()
            .filter_map(leasehold::Lease::remaining)
            .min()
            .map_or(f64::INFINITY, |left| left.as_secs_f64())
    }

    fn held(&self) -> bool {
        self.0.if_own().is_some_and(|held| held.leases.iter().all(|lease| lease.check().is_ok()))
    }

    /// Why the leases are not held, as a word and as a sentence; `None` while they are.
    fn loss(&self) -> Option<(&'static str, String)> {
        let Some(held) = self.0.if_own() else {
            let message = "the lock is held by the parent of this forked process, not by the child; connect again";
            return Some(("forked", String::from(message)));
        };
        let (lease, error) = held.leases.iter().find_map(|lease| Some((lease, lease.check().err()?)))?;
        let reason = lease.loss().map_or("gone", Loss::as_str);
        Some((reason, format!("{error:#}")))
    }

    /// A call that ends when a lease is lost or released, with the reason.
    fn lost(&self) -> PyResult<Call> {
        let leases = self.0.get()?.leases.clone();
        Ok(Call::new(async move { Ok(Value::Text(first_loss(leases).await.as_str().to_owned())) }))
    }

    fn renew(&self, ttl: f64) -> PyResult<Call> {
        let ttl: Duration = seconds("ttl", ttl)?;
        let leases = self.0.get()?.leases.clone();
        Ok(Call::new(async move {
            for lease in &leases {
                lease.renew(ttl).await?;
            }
            Ok(Value::Nothing)
        }))
    }

    /// A call that releases the leases; whether they were held until then, or nothing if they are released already.
    fn release(&self, failure: Option<(String, String)>) -> PyResult<Call> {
        let holding = self.0.get()?.holding.lock().take();
        Ok(Call::new(give_back(holding, failure)))
    }

    /// As `release`, on this thread.
    fn release_sync(&self, py: Python<'_>, failure: Option<(String, String)>) -> PyResult<Py<PyAny>> {
        let holding = self.0.get()?.holding.lock().take();
        block(py, give_back(holding, failure))
    }
}
