//! Grants that are copied before they are believed: a connection of their own, since waiting for copies blocks it.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::{
    connection::{Answered, Connection},
    failure,
    link::{Link, Listener, Trouble},
    options::{Durability, RedisOptions, Topology},
    reply,
    scripts::Call,
};
use crate::{Error, Result};

/// The first version that can wait for its append-only file.
const WAITS_FOR_FILE: (u32, u32) = (7, 2);

/// Where calls go whose outcome must have a copy.
#[derive(Debug)]
pub(super) struct Durable {
    link: Link,
    durability: Durability,
    options: Arc<RedisOptions>,
}

/// Nobody listens here: pushes come on the other connection.
struct Deaf;

impl Listener for Deaf {
    fn message(&self, _channel: &[u8], _message: &[u8]) {}
    fn missed(&self) {}
}

impl Durable {
    /// `None` where nothing but the server must have it.
    pub(super) async fn open(options: &Arc<RedisOptions>) -> Result<Option<Self>> {
        if options.durability == Durability::None {
            return Ok(None);
        }
        if options.topology == Topology::Cluster {
            return Err(Error::unsupported("durability= is not available in a cluster; use one server or sentinels"));
        }
        let finder = Connection::finder(options)?;
        let link = Link::open(finder, Arc::clone(options), Arc::new(Deaf), Vec::new()).await?;
        let version = link.live().await?.server.version;
        if options.durability == Durability::Aof && version < WAITS_FOR_FILE {
            let (major, minor) = version;
            return Err(Error::unsupported(format!(
                "durability=aof needs Redis 7.2 or newer, this is {major}.{minor}; use durability=replicas:N"
            )));
        }
        Ok(Some(Self { link, durability: options.durability, options: Arc::clone(options) }))
    }

    /// Runs a script, then waits for its copies. `copied` says what is missing, if anything is.
    pub(super) async fn run(&self, call: &Call) -> Result<Copied> {
        let wait = self.wait();
        let mut heard = self.link.send_two(call.by_hash(), &wait).await;
        if matches!(&heard, Err(Trouble::Refused(error)) if failure::is_no_script(error)) {
            heard = self.link.send_two(&call.by_text(), &wait).await;
        }
        match heard {
            Ok(both) => {
                let missing = self.missing(&both.second);
                Ok(Copied { answered: Answered { value: both.first, live: both.live }, missing })
            }
            Err(Trouble::NotSent(error) | Trouble::Unknown(error)) => Err(error),
            Err(Trouble::Refused(error)) => Err(failure::refused(&self.options.place(), &error)),
        }
    }

    fn wait(&self) -> Cmd {
        let limit = self.options.answer_limit.as_millis() / 2;
        let limit = u64::try_from(limit).unwrap_or(1000);
        match self.durability {
            Durability::Aof => {
                let mut wait = redis::cmd("WAITAOF");
                wait.arg(1).arg(0).arg(limit);
                wait
            }
            Durability::Replicas(_) | Durability::None => {
                let mut wait = redis::cmd("WAIT");
                wait.arg(self.replicas()).arg(limit);
                wait
            }
        }
    }

    fn replicas(&self) -> u32 {
        if let Durability::Replicas(count) = self.durability { count } else { 0 }
    }

    fn missing(&self, told: &Value) -> Option<String> {
        match self.durability {
            Durability::None => None,
            Durability::Replicas(wanted) => {
                let have = reply::number(told).unwrap_or(0);
                (have < u64::from(wanted)).then(|| format!("{have} of {wanted} replicas have a copy"))
            }
            Durability::Aof => {
                let written = reply::array(told).ok().and_then(|counts| reply::number(counts.first()?).ok());
                (written.unwrap_or(0) == 0).then(|| String::from("it is not in the append-only file"))
            }
        }
    }
}

/// An answer, and what has no copy of it.
pub(super) struct Copied {
    pub(super) answered: Answered,
    missing: Option<String>,
}

impl Copied {
    /// Fails if a copy is missing.
    pub(super) fn check(&self, place: &str) -> Result<()> {
        match &self.missing {
            None => Ok(()),
            Some(missing) => Err(Error::unavailable(format!(
                "{place} did not make the grant durable: {missing}; it was given back or is asked for again"
            ))),
        }
    }
}
