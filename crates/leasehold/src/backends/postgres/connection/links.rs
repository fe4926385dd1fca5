//! The connections of an instance: one that listens, renews and does whatever waits for nobody, others while they are needed.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;

use super::{Connection, Connector, Parameter, Reply, Slot};
use crate::{
    Result,
    backends::postgres::{calls::Call, errors::Failure, liveness::Listener, options::Life},
    lease::{LeaseId, Standing},
};

/// Chooses the connection of a call, so that no call that waits for a lock stands before a renewal.
#[derive(Debug)]
pub(in crate::backends::postgres) struct Links {
    pub(in crate::backends::postgres) connector: Arc<Connector>,
    listener: Option<Arc<Listener>>,
    /// Renews where the listening connection cannot: there is none, or leases end with it.
    renews: Slot,
    /// For what may have to wait for a lock.
    aside: Slot,
    /// For what may take a while, and which no lease waits for.
    looks: Slot,
    /// The leases that this instance holds and renews.
    held: Mutex<HashSet<LeaseId>>,
}

impl Links {
    pub(in crate::backends::postgres) fn new(
        connector: &Arc<Connector>,
        listener: Option<Arc<Listener>>,
        renews: Slot,
    ) -> Arc<Self> {
        let [aside, looks] = [(), ()].map(|()| Slot::new(Arc::clone(connector)));
        Arc::new(Self { connector: Arc::clone(connector), listener, renews, aside, looks, held: Mutex::default() })
    }

    /// The connection for what waits for nobody.
    pub(in crate::backends::postgres) async fn main(&self) -> Result<Arc<Connection>, Failure> {
        match &self.listener {
            Some(listener) if self.connector.options.life == Life::Ttl => listener.connection().await,
            _ => self.renews.get().await,
        }
    }

    /// The same for what may wait for a lock, while no lease is held but these.
    pub(in crate::backends::postgres) async fn main_for(
        &self,
        about: &[LeaseId],
    ) -> Option<Result<Arc<Connection>, Failure>> {
        let free = self.held.lock().iter().all(|id| about.contains(id));
        if free { Some(self.main().await) } else { None }
    }

    /// Asks what waits for nobody.
    pub(in crate::backends::postgres) async fn ask(
        &self,
        call: Call,
        parameters: &[Parameter<'_>],
    ) -> Result<Reply, Failure> {
        Reply::from(&*self.main().await?, call, parameters).await
    }

    /// Asks what may have to wait for a lock.
    pub(in crate::backends::postgres) async fn ask_aside(
        &self,
        call: Call,
        parameters: &[Parameter<'_>],
    ) -> Result<Reply, Failure> {
        match self.main_for(&[]).await {
            Some(main) => Reply::from(&*main?, call, parameters).await,
            None => self.aside.ask(call, parameters).await,
        }
    }

    /// Asks what may take a while.
    pub(in crate::backends::postgres) async fn look(
        &self,
        call: Call,
        parameters: &[Parameter<'_>],
    ) -> Result<Reply, Failure> {
        match self.main_for(&[]).await {
            Some(main) => Reply::from(&*main?, call, parameters).await,
            None => self.looks.ask(call, parameters).await,
        }
    }

    /// A lease of this instance stands like this.
    pub(in crate::backends::postgres) fn note(&self, id: LeaseId, standing: &Standing) {
        match standing {
            Standing::Holding(_) => drop(self.held.lock().insert(id)),
            Standing::Waiting(_) | Standing::Gone => self.forget(id),
            Standing::Unknown => {}
        }
    }

    /// A lease is not this instance's any more.
    pub(in crate::backends::postgres) fn forget(&self, id: LeaseId) {
        self.held.lock().remove(&id);
    }

    /// Closes connections that nobody used since this was called last.
    pub(in crate::backends::postgres) async fn close_unused(&self) {
        self.aside.close_unused().await;
        self.looks.close_unused().await;
    }
}
