//! The suite on the memory backend.

use std::sync::Arc;

use leasehold::{backend::Backend, backends::memory::MemoryBackend};
use leasehold_conformance::{Fixture, check};

struct Memory(MemoryBackend);

#[async_trait::async_trait]
impl Fixture for Memory {
    async fn instance(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.sibling())
    }

    fn keeps_to_clock(&self) -> bool {
        true
    }
}

#[test]
fn memory() {
    check(async |clock| Memory(MemoryBackend::private(clock)));
}
