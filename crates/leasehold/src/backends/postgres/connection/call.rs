//! Calls on one connection, each with a limit on its answer.

use std::{
    future::{Future as _, poll_fn},
    mem,
    pin::pin,
    sync::atomic::Ordering,
    time::Duration,
};

use tokio::time::timeout;
use tokio_postgres::{
    Error, Row,
    error::SqlState,
    types::{ToSql, Type},
};

use super::{Connection, Connector, Parameter};
use crate::{
    Result,
    backends::postgres::{
        errors::{Failure, FailureKind, WRONG_ISOLATION},
        statements::Statement,
    },
};

/// A call unanswered for this long fails and is cancelled; the functions themselves wait for locks far shorter.
const CALL_LIMIT: Duration = Duration::from_secs(5);

impl Connection {
    pub(in crate::backends::postgres) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Ends the connection, whoever else has it.
    pub(in crate::backends::postgres) fn close(&self) {
        self.driver.abort();
    }

    /// Sends the statement and waits for its answer, within `CALL_LIMIT`.
    pub(in crate::backends::postgres) async fn call(
        &self,
        statement: Statement,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Failure> {
        let answer = timeout(CALL_LIMIT, async {
            let was_explicit = self.explicit_transaction.load(Ordering::SeqCst);
            match self.call_once(statement, parameters).await {
                // The session's defaults changed since they were read.
                Err(error) if needs_explicit_transaction(&error) && !was_explicit => {
                    self.explicit_transaction.store(true, Ordering::SeqCst);
                    self.call_once(statement, parameters).await
                }
                answer => answer,
            }
        });
        self.check_answer(answer.await.ok(), CALL_LIMIT)
    }

    async fn call_once(&self, statement: Statement, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        let text = self.connector.text(statement);
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        let plain = async {
            // Preparing costs a round trip, so prepare on the second use.
            if self.connector.is_transaction_pooled()
                || !self.used_once[statement as usize].swap(true, Ordering::Relaxed)
            {
                return self.client.query_typed(text, parameters).await;
            }
            let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
            let prepare = || self.client.prepare_typed(text, &types);
            let prepared = self.prepared[statement as usize].get_or_try_init(prepare).await?;
            self.client.query(prepared, &values).await
        };
        if !self.explicit_transaction.load(Ordering::SeqCst) || matches!(statement, Statement::Vacuum) {
            return plain.await;
        }
        self.in_transaction(statement, parameters).await
    }

    /// Runs the statement in an explicit READ COMMITTED READ WRITE transaction.
    ///
    /// The first poll sends `begin`, the statement and `commit`, so no transaction stays open if the caller leaves.
    /// Only this poll holds `sending`, which keeps statements of others out of the transaction.
    async fn in_transaction(&self, statement: Statement, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        let mut sending = pin!(async {
            tokio::join!(
                biased;
                self.client.batch_execute("begin isolation level read committed read write"),
                self.client.query_typed(self.connector.text(statement), parameters),
                self.client.batch_execute("commit"),
            )
        });
        let mut is_sent = false;
        let (begun, rows, ended) = poll_fn(|context| {
            let _sending_alone = (!mem::replace(&mut is_sent, true)).then(|| self.sending.lock());
            sending.as_mut().poll(context)
        })
        .await;
        begun?;
        let rows = rows?;
        ended?;
        Ok(rows)
    }

    /// Runs statements that take no parameters, within `CALL_LIMIT`.
    pub(in crate::backends::postgres) async fn execute(&self, text: &str) -> Result<(), Failure> {
        self.execute_within(text, CALL_LIMIT).await
    }

    /// Runs statements that take no parameters, within a limit.
    pub(in crate::backends::postgres) async fn execute_within(
        &self,
        text: &str,
        limit: Duration,
    ) -> Result<(), Failure> {
        self.check_answer(timeout(limit, self.client.batch_execute(text)).await.ok(), limit)
    }

    fn check_answer<T>(&self, answer: Option<Result<T, Error>>, limit: Duration) -> Result<T, Failure> {
        let Connector { address, options, .. } = &*self.connector;
        if let Some(answer) = answer {
            return answer.map_err(|error| Failure::calling(address, options, &error));
        }
        self.cancel();
        Err(Failure::new(FailureKind::Unanswered, format!("postgres at {address} did not answer within {limit:?}")))
    }

    /// Asks the server to cancel the running statement, so that it does not take effect after its caller gave up.
    fn cancel(&self) {
        let (token, tls) = (self.client.cancel_token(), self.connector.tls.0.clone());
        self.connector.runtime.spawn(async move {
            let _lost = timeout(CALL_LIMIT, token.cancel_query(tls)).await;
        });
    }
}

/// Whether the session's default isolation or read-only mode is in the way.
fn needs_explicit_transaction(error: &Error) -> bool {
    error.code().is_some_and(|code| *code == SqlState::READ_ONLY_SQL_TRANSACTION || code.code() == WRONG_ISOLATION)
}
