//! The network of a server backend: private servers, and a proxy between each of them and each worker process.

use leasehold_testkit::{Flow, Proxy, redis::Server};

use crate::{
    dice::Dice,
    instant::{Micros, millis},
};

/// Private servers and the ways to them.
#[derive(Debug)]
pub(crate) struct Network {
    servers: Vec<Server>,
    /// One to each server for each place in the fleet.
    proxies: Vec<Vec<Proxy>>,
}

impl Network {
    /// Starts one server, or those of a quorum.
    pub(crate) fn start(servers: usize) -> Self {
        Self { servers: (0..servers).map(|_| Server::start()).collect(), proxies: Vec::new() }
    }

    /// The servers' own URL, past every proxy.
    pub(crate) fn url(&self) -> String {
        url(self.servers.iter().map(Server::port))
    }

    /// New ways to the servers for the next process in this place. The former ones are cut.
    pub(crate) fn connect(&mut self, index: usize) -> String {
        let proxies: Vec<Proxy> = self.servers.iter().map(|server| Proxy::to(server.port())).collect();
        let url = url(proxies.iter().map(Proxy::port));
        if index < self.proxies.len() {
            self.proxies[index] = proxies;
        } else {
            self.proxies.push(proxies);
        }
        url
    }

    /// Disturbs the ways of one worker: to all servers, or to one of several. Returns what was done, and for how long it
    /// should last.
    pub(crate) fn disturb(&self, index: usize, dice: &mut Dice) -> (&'static str, Micros) {
        let proxies = &self.proxies[index];
        let disturbed =
            if dice.percent(30) { &proxies[..] } else { std::slice::from_ref(&proxies[dice.index(proxies.len())]) };
        let (kind, delay) = (dice.below(6), 20 + dice.below(200));
        let mut what = "";
        for proxy in disturbed {
            what = disturb(proxy, kind, delay);
        }
        (what, millis(100) + dice.below(millis(2400)))
    }

    /// Lets everything pass again on the ways of one worker.
    pub(crate) fn mend(&self, index: usize) {
        for proxy in &self.proxies[index] {
            proxy.slow_down(0);
            proxy.mend();
        }
    }
}

/// The servers lose nothing here, so that each of a quorum votes at once.
fn url(ports: impl Iterator<Item = u16>) -> String {
    let hosts: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    match hosts.as_slice() {
        [host] => format!("redis://{host}"),
        hosts => format!("redlock://{}?longest_ttl=0", hosts.join(",")),
    }
}

fn disturb(proxy: &Proxy, kind: u64, delay: u64) -> &'static str {
    match kind {
        0 => {
            proxy.cut();
            "network, cut"
        }
        1 => {
            proxy.cut_clients();
            "network, half-open"
        }
        2 => {
            proxy.to_server(Flow::Hold);
            "network, requests held back"
        }
        3 => {
            proxy.to_client(Flow::Hold);
            "network, answers held back"
        }
        4 => {
            proxy.to_client(Flow::Swallow);
            "network, answers lost"
        }
        _ => {
            proxy.slow_down(delay);
            "network, slow"
        }
    }
}
