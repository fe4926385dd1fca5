//! What a `redlock:` URL says: the nodes, and how they are asked.

use std::time::Duration;

use super::options::QuorumOptions;
use crate::{Error, Result};

/// A node as the URL names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Its host and port, for people: no password.
    pub(super) name: String,
    /// Its own URL.
    pub(super) url: String,
}

/// What a `redlock:` URL says.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) nodes: Vec<Address>,
    pub(super) options: QuorumOptions,
}

/// Reads `redlock://[user:password@]host[:port],host[:port],…[/db][?node_limit=50ms&longest_ttl=60s&tls=1&…]`.
///
/// User, password, database and all other parameters are those of each node's own `redis:` URL.
pub(super) fn parse(url: &str, mut options: QuorumOptions) -> Result<Parsed> {
    let expected = "it reads redlock://host:port,host:port,host:port/0";
    let invalid = |why: &str| Error::invalid_config(format!("this redlock URL {why}; {expected}"));
    let rest = url.strip_prefix("redlock://").ok_or_else(|| invalid("names no nodes"))?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let (credentials, hosts) = match authority.rsplit_once('@') {
        Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
        None => (String::new(), authority),
    };

    let mut scheme = "redis";
    let mut passed_on = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match name {
            "node_limit" => options.node_limit = duration(name, value)?,
            "longest_ttl" => options.longest_ttl = duration(name, value)?,
            "tls" if value == "1" => scheme = "rediss",
            "tls" if value == "0" => scheme = "redis",
            "tls" => return Err(invalid("has a tls that is neither 0 nor 1")),
            _ => passed_on.push(parameter),
        }
    }
    let query = if passed_on.is_empty() { String::new() } else { format!("?{}", passed_on.join("&")) };
    let address = |host: &str| Address {
        name: host.to_owned(),
        url: format!("{scheme}://{credentials}{host}/{database}{query}"),
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
    Ok(Parsed { nodes: hosts.into_iter().map(address).collect(), options })
}

/// A number with `ms`, `s`, `m` or `h`; a bare number is seconds.
fn duration(name: &str, text: &str) -> Result<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let millis = match unit {
        "ms" => Some(1),
        "" | "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    number
        .parse::<u64>()
        .ok()
        .zip(millis)
        .and_then(|(number, millis)| number.checked_mul(millis))
        .map(Duration::from_millis)
        .ok_or_else(|| Error::invalid_config(format!("{name}={text} is no length of time, such as 50ms or 60s")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(url: &str) -> Vec<String> {
        parse(url, QuorumOptions::new()).unwrap().nodes.into_iter().map(|node| node.url).collect()
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
        let parsed = parse("redlock://a,b,c?node_limit=20ms&longest_ttl=2m", QuorumOptions::new()).unwrap();
        assert_eq!(parsed.options.node_limit, Duration::from_millis(20));
        assert_eq!(parsed.options.longest_ttl, Duration::from_secs(120));
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
            let error = parse(url, QuorumOptions::new()).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
