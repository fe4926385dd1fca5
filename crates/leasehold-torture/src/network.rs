//! The network of a server backend: private servers, and a proxy between each of them and each worker process.

use std::io;

use leasehold_testkit::{Dice, Flow, Proxy};

use crate::{
    args::BackendChoice,
    history::Failover,
    instant::{Micros, millis, now},
    servers::{Pair, Replacement, Servers},
};

/// Private servers and the ways to them.
#[derive(Debug)]
pub(crate) struct Network {
    servers: Servers,
    /// One to each server for each place in the fleet.
    proxies: Vec<Vec<Proxy>>,
    pairs: Vec<Pair>,
    /// When every master was the one that we know.
    seen: Micros,
    /// A master that is being replaced.
    replacement: Option<Replacement>,
}

impl Network {
    /// Starts the servers of a backend that has some.
    pub(crate) fn start(backend: BackendChoice) -> Option<Self> {
        let servers = Servers::start(backend)?;
        Some(Self { pairs: servers.pairs(), servers, proxies: Vec::new(), seen: now(), replacement: None })
    }

    /// The servers' own URL, past every proxy.
    pub(crate) fn url(&self) -> String {
        self.servers.url(&self.servers.ports())
    }

    /// New ways to the servers for the next process in this place. The former ones are cut.
    pub(crate) fn connect(&mut self, index: usize) -> String {
        let ports = self.servers.ports();
        let proxies: Vec<Proxy> = ports.iter().map(|port| Proxy::to(*port)).collect();
        let ways: Vec<u16> = proxies.iter().map(Proxy::port).collect();
        // Where a server or a sentinel names another server, the worker gets there by a proxy, too.
        let renumbered: Vec<(u16, u16)> = ports.into_iter().zip(ways.iter().copied()).collect();
        for proxy in &proxies {
            proxy.renumber(renumbered.clone());
        }
        if index < self.proxies.len() {
            self.proxies[index] = proxies;
        } else {
            self.proxies.push(proxies);
        }
        self.servers.url(&ways)
    }

    /// Disturbs the ways of one worker: to all servers, or to one of several. Returns what was done, and for how long it
    /// should last.
    pub(crate) fn disturb(&self, index: usize, dice: &mut Dice) -> (&'static str, Micros) {
        let proxies = &self.proxies[index];
        let disturbed =
            if dice.percent(30) { &proxies[..] } else { std::slice::from_ref(&proxies[dice.index(proxies.len())]) };
        let (kind, delay) = (dice.below(6), 20 + dice.below(200));
        let mut what = "network";
        for proxy in disturbed {
            what = disturb(proxy, kind, delay);
        }
        (what, millis(100) + dice.below(millis(2400)))
    }

    /// Cuts the ways of one worker, those to all servers or that to one of a quorum. Returns for how long it should last:
    /// most often for less than the ttl.
    pub(crate) fn cut(&self, index: usize, dice: &mut Dice) -> Micros {
        let proxies = &self.proxies[index];
        if self.servers.is_quorum() && dice.percent(50) {
            proxies[dice.index(proxies.len())].cut();
        } else {
            for proxy in proxies {
                proxy.cut();
            }
        }
        if dice.percent(5) { millis(1500) } else { dice.below(millis(150)) }
    }

    /// Lets everything pass again on the ways of one worker.
    pub(crate) fn mend(&self, index: usize) {
        for proxy in &self.proxies[index] {
            proxy.slow_down(0);
            proxy.mend();
        }
    }

    /// Begins to replace a master, where there is one and none is being replaced. Returns what was done.
    pub(crate) fn fail_over(&mut self, dice: &mut Dice) -> Option<&'static str> {
        if self.replacement.is_some() || self.pairs.is_empty() {
            return None;
        }
        let pair = self.pairs[dice.index(self.pairs.len())];
        let (what, replacement) = self.servers.replace(pair, dice)?;
        self.replacement = Some(replacement);
        Some(what)
    }

    /// Looks for a failover that nobody asked for. Returns whether there is one.
    pub(crate) fn finds_failover(&mut self) -> bool {
        if self.replacement.is_some() {
            return false;
        }
        let looked = now();
        self.replacement = self.servers.replaced_unasked(&self.pairs, self.seen);
        self.seen = looked;
        self.replacement.is_some()
    }

    /// Looks how far a failover has come. Returns it when it is over.
    pub(crate) fn follow_failover(&mut self) -> io::Result<Option<Failover>> {
        let Some(replacement) = &mut self.replacement else { return Ok(None) };
        let Some(over) = self.servers.follow(replacement)? else { return Ok(None) };
        let Pair { master, replica } = replacement.pair;
        for pair in self.pairs.iter_mut().filter(|pair| pair.master == master) {
            *pair = Pair { master: replica, replica: master };
        }
        self.replacement = None;
        self.seen = now();
        Ok(Some(over))
    }

    /// Whether a master is being replaced.
    pub(crate) fn is_failing_over(&self) -> bool {
        self.replacement.is_some()
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
