//! The connections of an instance: a main one for renewals and other calls that never block, others opened when needed.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use super::{Connection, Connector, LazyConnection, Parameter, Reply};
use crate::{
    Result,
    backends::postgres::{errors::Failure, liveness::Listener, options::LivenessOption, statements::Statement},
    lease::{LeaseId, Moment, Standing, Ttl},
};

/// Chooses the connection of a call, so that no renewal queues behind a call that waits for a lock.
#[derive(Debug)]
pub(in crate::backends::postgres) struct ConnectionRouter {
    pub(in crate::backends::postgres) connector: Arc<Connector>,
    listener: Option<Arc<Listener>>,
    /// The main connection if the listening one cannot be used: there is none, or leases are bound to its session.
    separate_main: LazyConnection,
    /// For calls that may wait for a lock.
    blocking: LazyConnection,
    /// For calls that may take long, and which no lease waits for.
    slow: LazyConnection,
    /// The leases that this instance holds or waits for, and when they end unless they are renewed.
    live: Mutex<HashMap<LeaseId, Moment>>,
}

impl ConnectionRouter {
    pub(in crate::backends::postgres) fn new(
        connector: &Arc<Connector>,
        listener: Option<Arc<Listener>>,
        separate_main: LazyConnection,
    ) -> Arc<Self> {
        let [blocking, slow] = [(), ()].map(|()| LazyConnection::new(Arc::clone(connector)));
        Arc::new(Self {
            connector: Arc::clone(connector),
            listener,
            separate_main,
            blocking,
            slow,
            live: Mutex::default(),
        })
    }

    /// The connection for calls that never block.
    pub(in crate::backends::postgres) async fn main(&self) -> Result<Arc<Connection>, Failure> {
        match &self.listener {
            Some(listener) if self.connector.options.liveness == LivenessOption::Ttl => listener.connection().await,
            _ => self.separate_main.get().await,
        }
    }

    /// The main connection, if this instance has no live lease that is not in `exempt`: a call that is blocked or slow
    /// would delay the grants and renewals of the others.
    pub(in crate::backends::postgres) async fn main_if_only(
        &self,
        exempt: &[LeaseId],
    ) -> Option<Result<Arc<Connection>, Failure>> {
        let now = self.connector.options.clock.now();
        let free = self.live.lock().iter().all(|(id, until)| *until <= now || exempt.contains(id));
        if free { Some(self.main().await) } else { None }
    }

    /// Sends a call that never blocks.
    pub(in crate::backends::postgres) async fn call(
        &self,
        statement: Statement,
        parameters: &[Parameter<'_>],
    ) -> Result<Reply, Failure> {
        Reply::from(&*self.main().await?, statement, parameters).await
    }

    /// Sends a call that may wait for a lock; it may delay the leases in `exempt`, and no others.
    pub(in crate::backends::postgres) async fn call_blocking(
        &self,
        exempt: &[LeaseId],
        statement: Statement,
        parameters: &[Parameter<'_>],
    ) -> Result<Reply, Failure> {
        self.call_by(&self.blocking, exempt, statement, parameters).await
    }

    /// Sends a call that may take long.
    pub(in crate::backends::postgres) async fn call_slow(
        &self,
        statement: Statement,
        parameters: &[Parameter<'_>],
    ) -> Result<Reply, Failure> {
        self.call_by(&self.slow, &[], statement, parameters).await
    }

    async fn call_by(
        &self,
        other: &LazyConnection,
        exempt: &[LeaseId],
        statement: Statement,
        parameters: &[Parameter<'_>],
    ) -> Result<Reply, Failure> {
        let connection = match self.main_if_only(exempt).await {
            Some(main) => main?,
            None => other.get().await?,
        };
        Reply::from(&connection, statement, parameters).await
    }

    /// Records whether this instance holds the lease or waits for it. Waiters are renewed too, so a grant by push needs
    /// no record of its own.
    pub(in crate::backends::postgres) fn record_standing(&self, id: LeaseId, standing: &Standing, ttl: Ttl) {
        match standing {
            Standing::Holding(_) | Standing::Waiting(_) => {
                let until = self.connector.options.clock.now().after(ttl.get());
                self.live.lock().insert(id, until);
            }
            Standing::Gone => self.forget(id),
            Standing::Unknown => {}
        }
    }

    /// Records that this instance neither holds the lease nor waits for it.
    pub(in crate::backends::postgres) fn forget(&self, id: LeaseId) {
        self.live.lock().remove(&id);
    }

    /// Closes connections unused since the previous `close_unused`, and forgets leases that ended without an answer.
    pub(in crate::backends::postgres) async fn close_unused(&self) {
        let now = self.connector.options.clock.now();
        self.live.lock().retain(|_, until| *until > now);
        self.blocking.close_unused().await;
        self.slow.close_unused().await;
    }
}
