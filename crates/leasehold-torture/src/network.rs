//! The network of a server backend: a private server, and a proxy between it and each worker process.

use leasehold_testkit::{Flow, Proxy, redis::Server};

use crate::{
    dice::Dice,
    instant::{Micros, millis},
};

/// A private server and the ways to it.
#[derive(Debug)]
pub(crate) struct Network {
    server: Server,
    /// One for each place in the fleet.
    proxies: Vec<Proxy>,
}

impl Network {
    /// Starts a server.
    pub(crate) fn start() -> Self {
        Self { server: Server::start(), proxies: Vec::new() }
    }

    /// The server's own URL, past every proxy.
    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// A new way to the server for the next process in this place. The former one is cut.
    pub(crate) fn connect(&mut self, index: usize) -> String {
        let proxy = Proxy::to(self.server.port());
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        if index < self.proxies.len() {
            self.proxies[index] = proxy;
        } else {
            self.proxies.push(proxy);
        }
        url
    }

    /// Disturbs the way of one worker. Returns what was done, and for how long it should last.
    pub(crate) fn disturb(&self, index: usize, dice: &mut Dice) -> (&'static str, Micros) {
        let proxy = &self.proxies[index];
        let what = match dice.below(6) {
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
                proxy.slow_down(20 + dice.below(200));
                "network, slow"
            }
        };
        (what, millis(100) + dice.below(millis(2400)))
    }

    /// Lets everything pass again on the way of one worker.
    pub(crate) fn mend(&self, index: usize) {
        self.proxies[index].slow_down(0);
        self.proxies[index].mend();
    }
}
