//! The suite on the file backend.

#![cfg(target_os = "linux")]

use std::sync::Arc;

use leasehold::{
    backend::Backend,
    backends::file::{FileBackend, FileOptions},
    clock::Clock,
};
use leasehold_conformance::{Fixture, check};
use tempfile::TempDir;

struct Files {
    root: TempDir,
    clock: Arc<dyn Clock>,
}

#[async_trait::async_trait]
impl Fixture for Files {
    async fn instance(&self) -> Arc<dyn Backend> {
        let url = format!("file://{}", self.root.path().display());
        let options = FileOptions::from_url(&url, "suite", Arc::clone(&self.clock)).expect("a good URL");
        Arc::new(FileBackend::open(options).await.expect("an empty directory"))
    }

    fn keeps_to_clock(&self) -> bool {
        true
    }
}

#[test]
fn file() {
    check(async |clock| Files { root: TempDir::new().expect("a temporary directory"), clock });
}
