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

use super::{Connection, Parameter};
use crate::{
    Result,
    backends::postgres::{
        calls::Call,
        errors::{Failure, Kind},
    },
};

/// A call that is not answered within this is given up, and its connection with it: the
/// functions themselves wait for locks far shorter.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// What an installation may take: it waits for others that install, and for nothing else.
const INSTALL_LIMIT: Duration = Duration::from_secs(300);

impl Connection {
    pub(in crate::backends::postgres) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Ends the connection, whoever else has it.
    pub(in crate::backends::postgres) fn close(&self) {
        self.driver.abort();
    }

    /// Asks and waits for the answer, but not for ever.
    pub(in crate::backends::postgres) async fn ask(
        &self,
        call: Call,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Failure> {
        let answer = timeout(CALL_LIMIT, async {
            let was_wrapped = self.wrapped.load(Ordering::SeqCst);
            match self.ask_once(call, parameters).await {
                // The defaults of this session are not what they were when it was greeted.
                Err(error) if is_unusual(&error) && !was_wrapped => {
                    self.wrapped.store(true, Ordering::SeqCst);
                    self.ask_once(call, parameters).await
                }
                answer => answer,
            }
        });
        self.judge(answer.await.ok(), CALL_LIMIT)
    }

    async fn ask_once(&self, call: Call, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        let text = self.connector.text(call);
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        let asks = async {
            // To prepare takes a round trip of its own, which pays from the second time on.
            if self.connector.is_lent() || !self.asked[call as usize].swap(true, Ordering::Relaxed) {
                return self.client.query_typed(text, parameters).await;
            }
            let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
            let prepare = || self.client.prepare_typed(text, &types);
            let statement = self.prepared[call as usize].get_or_try_init(prepare).await?;
            self.client.query(statement, &values).await
        };
        if !self.wrapped.load(Ordering::SeqCst) || matches!(call, Call::Vacuum) {
            return asks.await;
        }
        self.in_transaction(call, parameters).await
    }

    /// The call in a transaction of its own, where those of this session are not READ COMMITTED or not READ WRITE by default.
    ///
    /// The first poll sends all three, so that no transaction stays open when the caller leaves; and nothing else is sent
    /// between them, which would be part of the transaction.
    async fn in_transaction(&self, call: Call, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        let mut asking = pin!(async {
            tokio::join!(
                biased;
                self.client.batch_execute("begin isolation level read committed read write"),
                self.client.query_typed(self.connector.text(call), parameters),
                self.client.batch_execute("commit"),
            )
        });
        let mut is_sent = false;
        let (begun, rows, ended) = poll_fn(|context| {
            let _alone = (!mem::replace(&mut is_sent, true)).then(|| self.sending.lock());
            asking.as_mut().poll(context)
        })
        .await;
        begun?;
        let rows = rows?;
        ended?;
        Ok(rows)
    }

    /// Runs statements that take no parameters.
    pub(in crate::backends::postgres) async fn execute(&self, text: &str) -> Result<(), Failure> {
        self.judge(timeout(CALL_LIMIT, self.client.batch_execute(text)).await.ok(), CALL_LIMIT)
    }

    /// Installs: the same for what may take long.
    pub(in crate::backends::postgres) async fn install(&self, text: &str) -> Result<(), Failure> {
        self.judge(timeout(INSTALL_LIMIT, self.client.batch_execute(text)).await.ok(), INSTALL_LIMIT)
    }

    fn judge<T>(&self, answer: Option<Result<T, Error>>, limit: Duration) -> Result<T, Failure> {
        let place = &self.connector.place;
        if let Some(answer) = answer {
            return answer.map_err(|error| Failure::calling(place, &error));
        }
        self.cancel();
        Err(Failure::new(Kind::Unanswered, format!("postgres at {place} did not answer within {limit:?}")))
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
fn is_unusual(error: &Error) -> bool {
    error.code().is_some_and(|code| *code == SqlState::READ_ONLY_SQL_TRANSACTION || code.code() == "LH001")
}
