//! What doctor sees: reach, clock, eviction, persistence, replicas, rights.

use super::RedisBackend;
use crate::{Result, backend::Finding, backend::Severity};

impl RedisBackend {
    pub(super) async fn findings(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::new(Severity::Info, "promises", "fences: yes")])
    }
}
