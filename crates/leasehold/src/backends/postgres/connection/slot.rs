//! A connection that is made when it is needed, made again when it broke, and closed when nobody needs it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Mutex;
use tokio_postgres::Row;

use super::{Connection, Connector, Parameter};
use crate::{
    Result,
    backends::postgres::{
        calls::Call,
        errors::{Failure, Kind},
    },
    lease::Incarnation,
};

/// Room for one connection.
#[derive(Debug)]
pub(in crate::backends::postgres) struct Slot {
    connector: Arc<Connector>,
    connection: Mutex<Option<Arc<Connection>>>,
    used: AtomicBool,
}

impl Slot {
    pub(in crate::backends::postgres) fn new(connector: Arc<Connector>) -> Self {
        Self { connector, connection: Mutex::new(None), used: AtomicBool::new(false) }
    }

    pub(in crate::backends::postgres) fn with(connector: Arc<Connector>, connection: Connection) -> Self {
        let connection = Mutex::new(Some(Arc::new(connection)));
        Self { connector, connection, used: AtomicBool::new(false) }
    }

    pub(in crate::backends::postgres) async fn get(&self) -> Result<Arc<Connection>, Failure> {
        self.used.store(true, Ordering::SeqCst);
        let mut slot = self.connection.lock().await;
        if let Some(known) = slot.as_ref().filter(|known| !known.is_closed()) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(self.connector.connect().await?);
        *slot = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Asks once; on a connection that had broken before, on a new one.
    pub(in crate::backends::postgres) async fn ask(
        &self,
        call: Call,
        parameters: &[Parameter<'_>],
    ) -> Result<Reply, Failure> {
        Reply::from(&*self.get().await?, call, parameters).await
    }

    /// Closes the connection if it was not used since this was called last.
    pub(in crate::backends::postgres) async fn close_unused(&self) {
        if !self.used.swap(false, Ordering::SeqCst) {
            *self.connection.lock().await = None;
        }
    }
}

/// Rows, and which life of the server they come from.
#[derive(Debug)]
pub(in crate::backends::postgres) struct Reply {
    pub(in crate::backends::postgres) rows: Vec<Row>,
    pub(in crate::backends::postgres) incarnation: Incarnation,
}

impl Reply {
    /// Asks on this connection, and leaves it when it does not answer: a late answer must not be taken for another's.
    pub(in crate::backends::postgres) async fn from(
        connection: &Connection,
        call: Call,
        parameters: &[Parameter<'_>],
    ) -> Result<Self, Failure> {
        let answer = connection.ask(call, parameters).await;
        if matches!(&answer, Err(failure) if failure.kind == Kind::Unanswered) {
            connection.close();
        }
        Ok(Self { rows: answer?, incarnation: connection.greeting.incarnation })
    }
}
