//! Which servers a `redis:` backend uses, and how.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use redis::{ConnectionInfo, IntoConnectionInfo};

use super::url;
use crate::{Error, Result, clock::Clock};

/// Which servers store the leases, and how to reach them.
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisOptions {
    /// The server, or the sentinels or cluster nodes to contact first.
    pub servers: Vec<Address>,
    /// How the servers are organised.
    pub topology: Topology,
    /// The user name for the server's access list (ACL); none by default.
    pub user: Option<String>,
    /// The password; `Debug` hides it.
    pub password: Option<String>,
    /// Supplies the user name and password of each connection, replacing the two fields above.
    pub credentials: Option<Credentials>,
    /// The user name for the sentinels, which have an access list of their own; none by default.
    pub sentinel_user: Option<String>,
    /// The password for the sentinels, if they require one; `Debug` hides it.
    pub sentinel_password: Option<String>,
    /// The number of the database; 0 by default. A cluster has only database 0.
    pub database: i64,
    /// The TLS settings; `None` for a connection without TLS.
    pub tls: Option<Tls>,
    /// The prefix of every key and channel; `leasehold:` by default.
    pub prefix: String,
    /// The namespace. Leases of different namespaces are independent.
    pub namespace: String,
    /// How long opening may take; 3 s by default.
    pub connect_limit: Duration,
    /// How long to wait for the answer to a command before its outcome counts as unknown; 2 s by default.
    pub answer_limit: Duration,
    /// Which ended leases the history keeps; all by default.
    pub history: HistoryLevel,
    /// Where a grant must be stored before it counts; in the server's memory by default.
    pub durability: Durability,
    /// Replaces the server's clock, for tests that move time.
    #[doc(hidden)]
    pub clock: Option<Arc<dyn Clock>>,
}

/// Where one server is reached.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Address {
    /// A host and a TCP port.
    Tcp {
        /// The host name or IP address.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket on this machine.
    Unix(PathBuf),
    /// The connection info of an existing client, with credentials, database and TLS settings.
    Info(Box<ConnectionInfo>),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Info(info) => write!(f, "{}", info.addr()),
        }
    }
}

/// Supplies the user name and password of each new connection.
///
/// Use it for tokens that expire and passwords that change.
#[derive(Clone)]
pub struct Credentials(Arc<dyn Fn() -> (Option<String>, Option<String>) + Send + Sync>);

impl Credentials {
    /// Creates credentials that call `current` for each new connection.
    ///
    /// `current` returns the user name and the password. It must not block.
    pub fn new(current: impl Fn() -> (Option<String>, Option<String>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(current))
    }

    pub(super) fn current(&self) -> (Option<String>, Option<String>) {
        (self.0)()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// How the servers are organised.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topology {
    /// One server.
    Single,
    /// The server that the sentinels report as the master of this name.
    Sentinel {
        /// The master's name.
        master: String,
    },
    /// A cluster, in which each server has some of the slots.
    Cluster,
}

/// The TLS settings of a connection.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// Trusted CA certificates, as PEM; the machine's own list by default.
    pub ca: Option<Vec<u8>>,
    /// The client certificate and its key, for servers that require one; none by default.
    pub client_certificate: Option<ClientCertificate>,
}

/// A client certificate and its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCertificate {
    /// The certificate.
    pub certificate: Vec<u8>,
    /// The private key; `Debug` hides it.
    pub key: Vec<u8>,
}

impl ClientCertificate {
    /// Takes a certificate and its private key, both as PEM.
    pub fn new(certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        Self { certificate: certificate.into(), key: key.into() }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca.is_some())
            .field("client_certificate", &self.client_certificate.is_some())
            .finish()
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCertificate(…)")
    }
}

/// Which ended leases the history keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryLevel {
    /// All.
    All,
    /// Failures, which are all endings except `released` and `cancelled`.
    Problems,
    /// None.
    Off,
}

/// Where a grant must be stored before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// In the server's memory.
    None,
    /// On this many replicas.
    Replicas(u32),
    /// In the server's append-only file.
    Aof,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("place", &self.display_url())
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl RedisOptions {
    /// The defaults for these servers.
    pub(super) fn new(servers: Vec<Address>, topology: Topology, namespace: &str) -> Self {
        Self {
            servers,
            topology,
            user: None,
            password: None,
            credentials: None,
            sentinel_user: None,
            sentinel_password: None,
            database: 0,
            tls: None,
            prefix: String::from("leasehold:"),
            namespace: namespace.to_owned(),
            connect_limit: Duration::from_secs(3),
            answer_limit: Duration::from_secs(2),
            history: HistoryLevel::All,
            durability: Durability::None,
            clock: None,
        }
    }

    /// Parses a URL.
    ///
    /// The forms are `redis://[user[:password]@]host[:port][/database]`, `redis+unix:///path/to/socket`,
    /// `redis+sentinel://host,host/master[/database]` and `redis+cluster://host,host`.
    ///
    /// Write `rediss` instead of `redis` to use TLS; `valkey` means the same as `redis`. Without a `host`, the URL
    /// means `localhost`. The password may also come from `password_file=`, `password_env=` or `REDISCLI_AUTH`. The
    /// sentinels have a separate password, from `sentinel_password_file=` or `sentinel_password_env=`.
    ///
    /// # Errors
    /// `InvalidConfig` if the URL cannot be used; the message never shows a password.
    pub fn from_url(url: &str, namespace: &str) -> Result<Self> {
        url::parse(url, namespace)
    }

    /// Creates options from connection info, such as that of an existing `redis::Client`.
    ///
    /// ```no_run
    /// use leasehold::{Leasehold, backends::redis::{RedisBackend, RedisOptions}};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redis::Client::open("redis://cache")?;
    /// let options = RedisOptions::from_connection_info(client.get_connection_info().clone(), "shop")?;
    /// let locks = Leasehold::builder().open(RedisBackend::open(options).await?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `InvalidConfig` if `info` cannot be converted to connection info.
    pub fn from_connection_info(info: impl IntoConnectionInfo, namespace: &str) -> Result<Self> {
        let invalid = |error| Error::invalid_config("this connection info cannot be used").caused_by(error);
        let info = info.into_connection_info().map_err(invalid)?;
        let database = info.redis_settings().db();
        let mut options = Self::new(vec![Address::Info(Box::new(info))], Topology::Single, namespace);
        options.database = database;
        Ok(options)
    }

    /// The servers as a URL for people: no user, no password.
    pub(super) fn display_url(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let servers = self.servers.iter().map(Address::to_string).collect::<Vec<_>>().join(",");
        match &self.topology {
            Topology::Single if matches!(self.servers.as_slice(), [Address::Unix(_)]) => {
                format!("redis+unix://{servers}")
            }
            Topology::Single => format!("{scheme}://{servers}"),
            Topology::Sentinel { master } => format!("{scheme}+sentinel://{servers}/{master}"),
            Topology::Cluster => format!("{scheme}+cluster://{servers}"),
        }
    }
}
