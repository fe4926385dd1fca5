//! A cluster of three masters, each with one replica.

use std::{thread, time::Duration};

use super::Server;

const MASTERS: usize = 3;

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
            let (first, last) = (16_384 * at / MASTERS, 16_384 * (at + 1) / MASTERS - 1);
            master.ask(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
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

    /// The URL of some of its servers.
    pub fn url(&self) -> String {
        let servers: Vec<String> =
            self.servers[..2].iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redis+cluster://{}", servers.join(","))
    }

    /// The port of the server that has this slot, as some server that runs tells it.
    pub fn owner(&self, slot: u16) -> u16 {
        let slots = self.servers.iter().find(|server| server.process.is_some()).expect("one runs");
        let slots = slots.ask(&["CLUSTER", "SLOTS"]);
        for range in slots.parts() {
            let number = |at: usize| range.parts()[at].to_string().parse::<u16>().expect("a number");
            if (number(0)..=number(1)).contains(&slot) {
                return range.parts()[2].parts()[1].to_string().parse().expect("a port");
            }
        }
        panic!("nobody has slot {slot}");
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
