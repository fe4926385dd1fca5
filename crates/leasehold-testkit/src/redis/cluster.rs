//! A cluster of three masters, each with one replica.

use std::{thread, time::Duration};

use super::Server;

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

/// A cluster of three masters, each with one replica.
#[derive(Debug)]
pub struct Cluster {
    /// The masters first, then their replicas in the same order.
    pub servers: Vec<Server>,
}

impl Cluster {
    /// Starts six servers and waits until they agree.
    pub fn start() -> Self {
        let settings = [
            "--save",
            "",
            "--appendonly",
            "no",
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1500",
            "--cluster-replica-validity-factor",
            "0",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let servers: Vec<Server> = (0..2 * MASTERS).map(|_| Server::with(&settings)).collect();
        let cluster = Self { servers };
        cluster.join();
        cluster
    }

    fn join(&self) {
        let (masters, replicas) = self.servers.split_at(MASTERS);
        for (at, master) in masters.iter().enumerate() {
            let slots = SLOTS * at / MASTERS..SLOTS * (at + 1) / MASTERS;
            // One by one: Redis 6.2 knows no ranges.
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            master.command(
                &[&["CLUSTER", "ADDSLOTS"], &slots.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat(),
            );
            master.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        for server in &self.servers[1..] {
            self.servers[0].ask(&["CLUSTER", "MEET", "127.0.0.1", &server.port().to_string()]);
        }
        wait_until("all know all", || {
            let knows_all = |server: &Server| {
                let nodes = server.ask(&["CLUSTER", "NODES"]).to_string();
                nodes.lines().filter(|line| line.contains("connected") && !line.contains("handshake")).count()
                    == self.servers.len()
            };
            self.servers.iter().all(knows_all)
        });
        for (master, replica) in masters.iter().zip(replicas) {
            let id = master.ask(&["CLUSTER", "MYID"]).to_string();
            replica.ask(&["CLUSTER", "REPLICATE", &id]);
        }
        wait_until("the cluster is ready", || {
            let ready = |server: &Server| server.ask(&["CLUSTER", "INFO"]).to_string().contains("cluster_state:ok");
            let linked =
                |server: &Server| server.ask(&["INFO", "replication"]).to_string().contains("master_link_status:up");
            self.servers.iter().all(ready) && replicas.iter().all(linked)
        });
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        self.servers[0].ask(&["CLUSTER", "KEYSLOT", key]).to_string().parse().expect("a slot")
    }

    /// Moves a slot from one master to another as `redis-cli --cluster reshard` does, in steps: `between` is run when
    /// the move is announced, when half of the keys have moved, and when all of them have.
    pub async fn move_slot(&self, slot: u16, from: &Server, to: &Server, between: impl AsyncFn()) {
        let slot = slot.to_string();
        let (source, target) = (from.ask(&["CLUSTER", "MYID"]).to_string(), to.ask(&["CLUSTER", "MYID"]).to_string());
        to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
        between().await;
        let keys: Vec<String> = {
            let keys = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "10000"]);
            keys.parts().iter().map(ToString::to_string).collect()
        };
        let port = to.port().to_string();
        for half in [&keys[..keys.len() / 2], &keys[keys.len() / 2..]] {
            for key in half {
                from.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
            }
            between().await;
        }
        for server in [to, from] {
            server.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
        }
    }

    /// The URL of some of its servers.
    pub fn url(&self) -> String {
        let servers: Vec<String> =
            self.servers[..2].iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redis+cluster://{}", servers.join(","))
    }

    /// The port of the server that has this slot, according to some server that runs; `None` while it knows of nobody.
    pub fn owner(&self, slot: u16) -> Option<u16> {
        let slots = self.servers.iter().find(|server| server.process.is_some()).expect("one runs");
        let slots = slots.ask(&["CLUSTER", "SLOTS"]);
        for range in slots.parts() {
            let number = |at: usize| range.parts()[at].to_string().parse::<u16>().expect("a number");
            if (number(0)..=number(1)).contains(&slot) {
                return Some(range.parts()[2].parts()[1].to_string().parse().expect("a port"));
            }
        }
        None
    }
}

/// Waits for something that must come.
pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("waited in vain: {what}");
}
