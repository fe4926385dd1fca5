//! The options of `redlock:`, in code or from its URL.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    Error, Result,
    backend::{Backend, OpenOptions, options::duration},
    clock::{Clock, SystemClock},
    lease::{Resource, Ttl},
    model::FENCE_LEAD,
    setters_macro::setters,
};

/// A node of [`RedlockBackend`](super::RedlockBackend): a backend, and its name in error messages.
#[derive(Clone, Debug)]
pub struct RedlockNode {
    pub(super) name: String,
    pub(super) source: Source,
}

/// Where a node's backend comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Backend(Arc<dyn Backend>),
    /// Opened in the background, again and again until it can be.
    Url(String, OpenOptions),
}

impl RedlockNode {
    /// Creates a node with this backend.
    ///
    /// Error messages show `name`, for example the host and port of the node.
    pub fn new(name: impl Into<String>, backend: Arc<dyn Backend>) -> Self {
        Self { name: name.into(), source: Source::Backend(backend) }
    }
}

/// The options of a [`RedlockBackend`](super::RedlockBackend).
#[derive(Clone)]
#[must_use = "options do nothing until a backend is created with them"]
pub struct RedlockOptions {
    pub(super) node_limit: Duration,
    pub(super) longest_ttl: Duration,
    pub(super) clock: Arc<dyn Clock>,
}

impl RedlockOptions {
    /// Creates the default options.
    ///
    /// Each node has 50 ms to answer, the longest ttl is 60 s, and the clocks are the machine's own.
    pub fn new() -> Self {
        Self {
            node_limit: Duration::from_millis(50),
            longest_ttl: Duration::from_secs(60),
            clock: Arc::new(SystemClock),
        }
    }

    setters! {
        /// Sets how long one node may take to answer; 50 ms by default.
        ///
        /// Make it long enough for a healthy node, but much shorter than the ttl. A node
        /// that exceeds it gets no more calls until it answers a probe.
        pub fn node_limit(mut self, limit: Duration) -> Self => limit;

        /// Sets the longest ttl that anyone uses on these nodes; 60 s by default.
        ///
        /// Requests with a longer ttl are refused. A node that lost its data has no vote
        /// for this long, and for at least 11 s, so that its clock has passed every
        /// fence that it may have lost. The default is above the default ttl of 30 s,
        /// and keeps a restarted node from voting for a minute. All clients of the
        /// nodes must use the same value; a client with a different value is refused.
        ///
        /// With zero, every node votes at once and no ttl is refused. Use zero only for
        /// nodes that lose nothing when they are restarted.
        pub fn longest_ttl(mut self, longest: Duration) -> Self => longest;

        /// Sets the clock; the machine's own by default.
        pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self => clock;
    }

    pub(super) fn check(&self, nodes: usize) -> Result<()> {
        if nodes < 3 || nodes.is_multiple_of(2) {
            let why = match nodes {
                0 | 1 => "for one server use redis://",
                2 => "of two, none may fail",
                _ => "an even number tolerates no more failures than one fewer",
            };
            let message = format!("redlock needs 3, 5, 7 … independent nodes, not {nodes}: {why}");
            return Err(Error::invalid_config(message));
        }
        if self.node_limit < Duration::from_millis(1) {
            return Err(Error::invalid_config(format!("node_limit {:?} is too short: 1ms or more", self.node_limit)));
        }
        Ok(())
    }

    pub(super) fn check_ttl(&self, ttl: Ttl, resource: &Resource) -> Result<()> {
        if self.longest_ttl.is_zero() || ttl.get() <= self.longest_ttl {
            return Ok(());
        }
        Err(Error::invalid_config(format!(
            "{resource} on redlock: ttl {:?} is above longest_ttl {:?}, for which a restarted node is kept from voting; \
             shorten it, or raise longest_ttl wherever these nodes are used",
            ttl.get(),
            self.longest_ttl
        ))
        .about(resource))
    }

    /// How old a node's memory must be for its vote to count.
    pub(super) fn quarantine(&self) -> Duration {
        /// No fence is further ahead of its node's clock than this, give or take the grants of one instant.
        const FENCES_PASSED: Duration = FENCE_LEAD.saturating_add(Duration::from_secs(1));
        if self.longest_ttl.is_zero() { Duration::ZERO } else { self.longest_ttl.max(FENCES_PASSED) }
    }
}

impl Default for RedlockOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RedlockOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockOptions")
            .field("node_limit", &self.node_limit)
            .field("longest_ttl", &self.longest_ttl)
            .finish_non_exhaustive()
    }
}

/// Reads `redlock://[user:password@]host[:port],host[:port],…[/db][?node_limit=50ms&longest_ttl=60s&tls=1&…]`.
///
/// User, password, database and all other parameters are those of each node's own `redis:` URL.
pub(super) fn parse(url: &str, open: &OpenOptions) -> Result<(Vec<RedlockNode>, RedlockOptions)> {
    let expected = "it reads redlock://host:port,host:port,host:port/0";
    let invalid = |why: &str| Error::invalid_config(format!("this redlock URL {why}; {expected}"));
    let rest = url.strip_prefix("redlock://").ok_or_else(|| invalid("names no nodes"))?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let (credentials, hosts) = match authority.rsplit_once('@') {
        Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
        None => (String::new(), authority),
    };

    let mut options = RedlockOptions::new().clock(Arc::clone(&open.clock));
    let mut scheme = "redis";
    let mut of_nodes = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match name {
            "node_limit" => options.node_limit = length(name, value)?,
            "longest_ttl" => options.longest_ttl = length(name, value)?,
            "tls" if value == "1" => scheme = "rediss",
            "tls" if value == "0" => scheme = "redis",
            "tls" => return Err(invalid("has a tls that is neither 0 nor 1")),
            _ => of_nodes.push(parameter),
        }
    }
    let query = if of_nodes.is_empty() { String::new() } else { format!("?{}", of_nodes.join("&")) };
    let node = |host: &str| RedlockNode {
        name: host.to_owned(),
        source: Source::Url(format!("{scheme}://{credentials}{host}/{database}{query}"), open.clone()),
    };
    let hosts: Vec<&str> = hosts.split(',').collect();
    if hosts.iter().any(|host| host.is_empty()) {
        return Err(invalid("has a node without a host"));
    }
    let mut different = hosts.clone();
    different.sort_unstable();
    different.dedup();
    if different.len() < hosts.len() {
        return Err(invalid("names a node twice, and its votes would count twice"));
    }
    options.check(hosts.len())?;
    Ok((hosts.into_iter().map(node).collect(), options))
}

fn length(name: &str, text: &str) -> Result<Duration> {
    let length = if text == "0" { Some(Duration::ZERO) } else { duration(text) };
    length.ok_or_else(|| Error::invalid_config(format!("{name}={text} cannot be used: write 50ms, 60s or 2m")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(url: &str) -> Vec<String> {
        let (nodes, _) = parse(url, &OpenOptions::new()).unwrap();
        let url = |node: RedlockNode| match node.source {
            Source::Url(url, _) => url,
            Source::Backend(_) => panic!("a URL names no backend"),
        };
        nodes.into_iter().map(url).collect()
    }

    #[test]
    fn each_node_gets_a_url_of_its_own() {
        assert_eq!(urls("redlock://a,b:7000,[::1]:7001"), ["redis://a/", "redis://b:7000/", "redis://[::1]:7001/"]);
        assert_eq!(
            urls("redlock://me:s%40e@a,b,c/2?tls=1&node_limit=20ms&password_env=P"),
            ["a", "b", "c"].map(|host| format!("rediss://me:s%40e@{host}/2?password_env=P"))
        );
    }

    #[test]
    fn limits_are_read_with_their_units() {
        let (_, options) = parse("redlock://a,b,c?node_limit=20ms&longest_ttl=2m", &OpenOptions::new()).unwrap();
        assert_eq!(options.node_limit, Duration::from_millis(20));
        assert_eq!(options.longest_ttl, Duration::from_secs(120));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_showing_a_password() {
        for url in [
            "redlock://me:secret@a,b",
            "redlock://me:secret@a,b,a",
            "redlock://me:secret@a,,b",
            "redlock:me:secret@a,b,c",
            "redlock://me:secret@a,b,c?tls=yes",
            "redlock://me:secret@a,b,c?node_limit=soon",
            "redlock://me:secret@a,b,c?node_limit=0",
        ] {
            let error = parse(url, &OpenOptions::new()).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
