//! Without epoll the client library drives every connection by itself.

use std::{future::Future, sync::Arc, time::Duration};

use redis::{AsyncConnectionConfig, ConnectionInfo, RedisError, aio::MultiplexedConnection};
use tokio::sync::Notify;

use super::super::options::Address;

/// Has no values: on this system, the client library drives every connection.
pub(super) enum Drive {}

impl Drive {
    pub(super) fn end(&self) {
        match *self {}
    }

    pub(super) fn has_expired(&self) -> bool {
        match *self {}
    }

    #[expect(clippy::unused_async, reason = "it waits where there is epoll")]
    pub(super) async fn send<T>(&self, _limit: Duration, _sending: impl Future<Output = T>) -> T {
        match *self {}
    }
}

#[expect(clippy::unused_async, reason = "it waits where there is epoll")]
pub(super) async fn connect(
    _: &Address,
    _: &ConnectionInfo,
    _: &AsyncConnectionConfig,
    _: &Arc<Notify>,
) -> Result<Option<(MultiplexedConnection, Drive)>, RedisError> {
    Ok(None)
}
