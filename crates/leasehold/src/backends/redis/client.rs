//! Making a connection: who we are, how it is protected, and what the server tells about itself.

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    time::Duration,
};

use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError,
    TlsCertificates, Value, aio::MultiplexedConnection,
};
use tokio::time;
use uuid::Uuid;

use super::{
    failure,
    link::Channel,
    options::{Address, RedisOptions, Tls},
    reply,
};
use crate::{
    clock::{Clock, SystemClock},
    lease::{Incarnation, Moment},
};

/// What a server tells about itself.
#[derive(Clone, Debug)]
pub(super) struct ServerFacts {
    /// Which life of the server this is.
    pub(super) incarnation: Incarnation,
    /// Its version: major and minor.
    pub(super) version: (u32, u32),
    /// How long it ran when we connected; unknown where it may not be asked.
    uptime: Option<Duration>,
    /// When we connected.
    connected_at: Moment,
    /// Whether it can be written to.
    pub(super) is_master: bool,
}

impl ServerFacts {
    /// How long this life of the server has lasted.
    pub(super) fn age(&self) -> Option<Duration> {
        Some(self.uptime? + SystemClock.now().since(self.connected_at))
    }
}

/// A client for one server.
pub(super) fn client(address: &Address, options: &RedisOptions) -> Result<Client, RedisError> {
    let Address { host, port } = address.clone();
    let mut redis = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(options.database)
        .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &options.user {
        redis = redis.set_username(user);
    }
    if let Some(password) = &options.password {
        redis = redis.set_password(password);
    }
    let address = match &options.tls {
        None => ConnectionAddr::Tcp(host, port),
        Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
    };
    let info = address.into_connection_info()?.set_redis_settings(redis);
    match &options.tls {
        None => Client::open(info),
        Some(tls) => protected(info, tls),
    }
}

fn protected(info: ConnectionInfo, tls: &Tls) -> Result<Client, RedisError> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An application that has chosen a provider keeps it.
        let _chosen_meanwhile = rustls::crypto::ring::default_provider().install_default();
    }
    let client_tls = tls.identity.as_ref().map(|identity| redis::ClientTlsConfig {
        client_cert: identity.certificate.clone(),
        client_key: identity.key.clone(),
    });
    Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: tls.ca.clone() })
}

/// Subscribes and waits until the server says so.
pub(super) async fn subscribe(
    connection: &MultiplexedConnection,
    channel: &Channel,
    limit: Duration,
) -> Result<(), RedisError> {
    let mut connection = connection.clone();
    let (verb, name) = match channel {
        Channel::Plain(name) => ("SUBSCRIBE", name),
        Channel::Sharded(name) => ("SSUBSCRIBE", name),
    };
    let mut command = redis::cmd(verb);
    command.arg(name);
    match time::timeout(limit, connection.send_packed_command(&command)).await {
        Ok(answer) => answer.and_then(Value::extract_error).map(drop),
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

/// What the server tells about itself. A user without the right to ask for INFO gets a life of its own each time.
pub(super) async fn facts(connection: &MultiplexedConnection) -> Result<ServerFacts, RedisError> {
    let mut connection = connection.clone();
    let hello = connection.send_packed_command(&redis::cmd("HELLO")).await.and_then(Value::extract_error)?;
    let hello = reply::pairs(&hello);
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let told = match connection.send_packed_command(&info).await.and_then(Value::extract_error) {
        Ok(told) => reply::info(&told),
        Err(error) if failure::is_refusal(&error) => HashMap::default(),
        Err(error) => return Err(error),
    };
    let version = hello.get("version").map_or((0, 0), |version| {
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    });
    let life = told.get("run_id").cloned().unwrap_or_else(|| Uuid::new_v4().simple().to_string());
    Ok(ServerFacts {
        incarnation: Incarnation(digest(&life)),
        version,
        uptime: told.get("uptime_in_seconds").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs),
        connected_at: SystemClock.now(),
        is_master: hello.get("role").is_none_or(|role| role == "master"),
    })
}

/// A number that differs where the texts do.
fn digest(text: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(text)
}
