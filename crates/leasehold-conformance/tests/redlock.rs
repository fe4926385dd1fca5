//! The suite on a quorum of five memory nodes.

use std::{sync::Arc, time::Duration};

use leasehold::{
    backend::Backend,
    backends::{
        memory::MemoryBackend,
        redlock::{RedlockBackend, RedlockNode, RedlockOptions},
    },
    clock::Clock,
};
use leasehold_conformance::{Fixture, check};

struct Nodes {
    nodes: Vec<MemoryBackend>,
    clock: Arc<dyn Clock>,
}

#[async_trait::async_trait]
impl Fixture for Nodes {
    async fn instance(&self) -> Arc<dyn Backend> {
        let node =
            |(at, node): (usize, &MemoryBackend)| RedlockNode::new(format!("node-{at}"), Arc::new(node.sibling()));
        // These nodes live as long as the trial does: there is nothing to wait for before they vote.
        let options = RedlockOptions::new()
            .longest_ttl(Duration::ZERO)
            .node_limit(Duration::from_secs(5))
            .clock(Arc::clone(&self.clock));
        let quorum = RedlockBackend::new(self.nodes.iter().enumerate().map(node).collect(), options);
        Arc::new(quorum.expect("five nodes make a quorum"))
    }

    fn keeps_to_clock(&self) -> bool {
        true
    }
}

#[test]
fn redlock() {
    check(async |clock| Nodes { nodes: (0..5).map(|_| MemoryBackend::private(Arc::clone(&clock))).collect(), clock });
}
