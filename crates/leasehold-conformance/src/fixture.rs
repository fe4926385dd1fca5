//! What a backend's author supplies: empty storage, and instances that use it.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::backend::Backend;

/// Fresh, empty storage of a backend, and instances that use it.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// Opens another instance on the same storage, as another process would.
    async fn instance(&self) -> Arc<dyn Backend>;

    /// Returns whether the backend reads the clock that the fixture was made with; `false` if a server has its own.
    fn keeps_to_clock(&self) -> bool {
        false
    }
}
