//! What a backend's author supplies: places to try it on.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::backend::Backend;

/// A fresh, empty place, and instances on it.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// Another instance on the same place, as another process would open it.
    async fn instance(&self) -> Arc<dyn Backend>;

    /// Whether the place goes by the clock it was made with; `false` where a server has its own.
    fn keeps_to_clock(&self) -> bool {
        false
    }
}
