//! A connection that is opened on first use, reopened after it broke, and closed when unused.

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
        errors::{Failure, FailureKind},
        statements::Statement,
    },
    lease::Incarnation,
};

/// A connection that is opened on first use.
#[derive(Debug)]
pub(in crate::backends::postgres) struct LazyConnection {
    connector: Arc<Connector>,
    connection: Mutex<Option<Arc<Connection>>>,
    used: AtomicBool,
}

impl LazyConnection {
    pub(in crate::backends::postgres) fn new(connector: Arc<Connector>) -> Self {
        Self { connector, connection: Mutex::new(None), used: AtomicBool::new(false) }
    }

    pub(in crate::backends::postgres) fn with(connector: Arc<Connector>, connection: Connection) -> Self {
        let connection = Mutex::new(Some(Arc::new(connection)));
        Self { connector, connection, used: AtomicBool::new(false) }
    }

    /// The connection, which is opened first if there is none or it broke.
    pub(in crate::backends::postgres) async fn get(&self) -> Result<Arc<Connection>, Failure> {
        self.used.store(true, Ordering::SeqCst);
        let mut current = self.connection.lock().await;
        if let Some(open) = current.as_ref().filter(|open| !open.is_closed()) {
            return Ok(Arc::clone(open));
        }
        let new = Arc::new(self.connector.connect().await?);
        *current = Some(Arc::clone(&new));
        Ok(new)
    }

    /// Closes the connection if it was unused since the previous `close_unused`.
    pub(in crate::backends::postgres) async fn close_unused(&self) {
        if !self.used.swap(false, Ordering::SeqCst) {
            *self.connection.lock().await = None;
        }
    }
}

/// Rows, and the incarnation of the server that sent them.
#[derive(Debug)]
pub(in crate::backends::postgres) struct Reply {
    pub(in crate::backends::postgres) rows: Vec<Row>,
    pub(in crate::backends::postgres) incarnation: Incarnation,
}

impl Reply {
    /// Sends the statement. Closes the connection if it is not answered, so that a late reply cannot be matched to
    /// another statement.
    pub(in crate::backends::postgres) async fn from(
        connection: &Connection,
        statement: Statement,
        parameters: &[Parameter<'_>],
    ) -> Result<Self, Failure> {
        let answer = connection.call(statement, parameters).await;
        if matches!(&answer, Err(failure) if failure.kind == FailureKind::Unanswered) {
            connection.close();
        }
        Ok(Self { rows: answer?, incarnation: connection.server_info.incarnation })
    }
}
