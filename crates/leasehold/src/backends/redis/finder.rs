//! Where the server is: always in the same place, or wherever the sentinels say.

use redis::{AsyncConnectionConfig, RedisError, Value};

use super::{
    client, failure,
    options::{Address, RedisOptions},
    reply,
};
use crate::{Error, Result};

/// How a server is found each time a connection is made.
#[derive(Clone, Debug)]
pub(super) enum Finder {
    /// It is always there.
    At(Address),
    /// The sentinels know which server is the master of this name.
    Sentinels {
        /// Those that may be asked.
        sentinels: Vec<Address>,
        /// The master's name.
        master: String,
    },
}

impl Finder {
    /// Whether a replica is certainly the wrong server.
    pub(super) fn wants_master(&self) -> bool {
        matches!(self, Self::Sentinels { .. })
    }

    pub(super) async fn find(&self, options: &RedisOptions) -> Result<Address> {
        match self {
            Self::At(address) => Ok(address.clone()),
            Self::Sentinels { sentinels, master } => ask_sentinels(sentinels, master, options).await,
        }
    }
}

/// Asks one after the other; the first that knows decides.
async fn ask_sentinels(sentinels: &[Address], master: &str, options: &RedisOptions) -> Result<Address> {
    // Sentinels have users of their own; those of the master mean nothing to them.
    let options = RedisOptions {
        user: options.sentinel_user.clone(),
        password: options.sentinel_password.clone(),
        database: 0,
        ..options.clone()
    };
    let mut last = None;
    for sentinel in sentinels {
        match ask(sentinel, master, &options).await {
            Ok(Some(address)) => return Ok(address),
            Ok(None) => {
                last = Some(Error::unavailable(format!("the sentinel {sentinel} knows no master {master}")));
            }
            Err(error) => last = Some(failure::of_sentinel(sentinel, &error)),
        }
    }
    Err(last.unwrap_or_else(|| Error::unavailable("no sentinel was named")))
}

async fn ask(sentinel: &Address, master: &str, options: &RedisOptions) -> Result<Option<Address>, RedisError> {
    let limit = options.connect_limit / 3;
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(Some(limit));
    let sentinel = client::client(sentinel, options)?;
    let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let answer = connection.send_packed_command(&command).await.and_then(Value::extract_error)?;
    let Ok([host, port]) = reply::array(&answer) else { return Ok(None) };
    let (Ok(host), Ok(port)) = (reply::text(host), reply::number(port)) else { return Ok(None) };
    Ok(u16::try_from(port).ok().map(|port| Address { host: host.to_owned(), port }))
}
