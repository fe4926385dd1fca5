//! Grants that count only once replicas or the append-only file have them. All grants of one call share one wait.

use std::sync::Arc;

use redis::Cmd;

use super::{
    connection::{Reply, Router},
    decode, errors,
    keys::{Keys, Partition},
    options::{Durability, RedisOptions},
    scripts::ScriptCall,
};
use crate::{Error, Result};

/// The first version that can wait for its append-only file.
const WAITS_FOR_FILE: (u32, u32) = (7, 2);

/// Connections for calls that wait for durability acknowledgements, since waiting blocks a connection. Renewals have a
/// connection of their own, so that they do not wait behind requests.
#[derive(Debug)]
pub(super) struct Durable {
    requests: Router,
    renewals: Router,
    durability: Durability,
    wait: Cmd,
}

impl Durable {
    /// Returns `None` for `durability=none`.
    pub(super) async fn open(options: &Arc<RedisOptions>, keys: &Keys) -> Result<Option<Self>> {
        if options.durability == Durability::None {
            return Ok(None);
        }
        let requests = Router::open_without_pushes(options, keys).await?;
        let version = match requests.connection() {
            Some(connection) => connection.live().await?.server.version,
            None => (0, 0),
        };
        if options.durability == Durability::Aof && version < WAITS_FOR_FILE {
            let (major, minor) = version;
            return Err(Error::unsupported(format!(
                "durability=aof needs Redis 7.2 or newer, this is {major}.{minor}; use durability=replicas:N"
            )));
        }
        let renewals = Router::open_without_pushes(options, keys).await?;
        Ok(Some(Self { requests, renewals, durability: options.durability, wait: wait(options) }))
    }

    /// Runs a script that grants; the second value says whether the durability acknowledgements came.
    pub(super) async fn run_granting(
        &self,
        partition: &Partition,
        call: &ScriptCall<'_>,
        options: &RedisOptions,
    ) -> Result<(Reply, Result<()>)> {
        let reply = self.requests.run(partition, call, Some(&self.wait)).await?;
        let acknowledged = self.check_acknowledged(&reply, options);
        Ok((reply, acknowledged))
    }

    /// Runs a script that renews, and fails without the durability acknowledgements.
    pub(super) async fn run_renewing(
        &self,
        partition: &Partition,
        call: &ScriptCall<'_>,
        options: &RedisOptions,
    ) -> Result<Reply> {
        let reply = self.renewals.run(partition, call, Some(&self.wait)).await?;
        self.check_acknowledged(&reply, options)?;
        Ok(reply)
    }

    fn check_acknowledged(&self, reply: &Reply, options: &RedisOptions) -> Result<()> {
        let url = options.display_url();
        reply.followup.clone().extract_error().map_err(|refusal| errors::refused(options, &refusal))?;
        let missing = match self.durability {
            Durability::None => return Ok(()),
            Durability::Replicas(wanted) => {
                let have = decode::number(&reply.followup).unwrap_or(0);
                (have < u64::from(wanted)).then(|| format!("{have} of {wanted} replicas have a copy"))
            }
            Durability::Aof => {
                let written =
                    decode::array(&reply.followup).ok().and_then(|counts| decode::number(counts.first()?).ok());
                (written.unwrap_or(0) == 0).then(|| String::from("it is not in the append-only file"))
            }
        };
        missing.map_or(Ok(()), |missing| Err(Error::unavailable(format!("{url} has no durable copy: {missing}"))))
    }
}

fn wait(options: &RedisOptions) -> Cmd {
    let limit = u64::try_from(options.answer_limit.as_millis() / 2).unwrap_or(1000);
    let mut wait = Cmd::new();
    match options.durability {
        Durability::Aof => wait.arg("WAITAOF").arg(1).arg(0).arg(limit),
        Durability::Replicas(count) => wait.arg("WAIT").arg(count).arg(limit),
        Durability::None => wait.arg("WAIT").arg(0).arg(limit),
    };
    wait
}
