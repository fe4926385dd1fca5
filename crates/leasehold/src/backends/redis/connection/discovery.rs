//! Finding the server: always at one address, or wherever the sentinels say.

use redis::{AsyncConnectionConfig, RedisError, Value};

use super::{
    super::{
        decode, errors,
        options::{Address, RedisOptions, Topology},
    },
    dial,
};
use crate::{Error, Result};

/// How a server is found each time a connection is made.
#[derive(Clone, Debug)]
pub(in super::super) enum Discovery {
    /// A fixed address.
    Fixed(Address),
    /// The sentinels know which server is the master of this name.
    Sentinels {
        /// Those that may be asked.
        sentinels: Vec<Address>,
        /// The master's name.
        master: String,
    },
}

impl Discovery {
    /// How the one server of these options is found.
    pub(in super::super) fn new(options: &RedisOptions) -> Result<Self> {
        match &options.topology {
            Topology::Sentinel { master } => {
                Ok(Self::Sentinels { sentinels: options.servers.clone(), master: master.clone() })
            }
            Topology::Single | Topology::Cluster => {
                let server = options.servers.first().cloned();
                Ok(Self::Fixed(server.ok_or_else(|| Error::invalid_config("no server is named"))?))
            }
        }
    }

    /// Returns whether to reject replicas, because sentinels name the master.
    pub(super) fn wants_master(&self) -> bool {
        matches!(self, Self::Sentinels { .. })
    }

    pub(super) async fn find(&self, options: &RedisOptions) -> Result<Address> {
        match self {
            Self::Fixed(address) => Ok(address.clone()),
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
        credentials: None,
        database: 0,
        ..options.clone()
    };
    let mut last = None;
    for sentinel in sentinels {
        match ask_sentinel(sentinel, master, &options).await {
            Ok(Some(address)) => return Ok(address),
            Ok(None) => {
                last = Some(Error::unavailable(format!("the sentinel {sentinel} knows no master {master}")));
            }
            Err(error) => last = Some(errors::of_sentinel(sentinel, &options, &error)),
        }
    }
    Err(last.unwrap_or_else(|| Error::unavailable("no sentinel was named")))
}

/// Asks a sentinel for the address of the master.
async fn ask_sentinel(sentinel: &Address, master: &str, options: &RedisOptions) -> Result<Option<Address>, RedisError> {
    let limit = options.connect_limit / 3;
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(Some(limit));
    let sentinel = dial::client(sentinel, options)?;
    let mut connection = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let answer = connection.send_packed_command(&command).await.and_then(Value::extract_error)?;
    let Ok([host, port]) = decode::array(&answer) else { return Ok(None) };
    let (Ok(host), Ok(port)) = (decode::text(host), decode::number(port)) else { return Ok(None) };
    Ok(u16::try_from(port).ok().map(|port| Address::Tcp { host: host.to_owned(), port }))
}
