//! Connects to a server: credentials, TLS, and what the server reports about itself.

use std::{collections::HashMap, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, TlsCertificates, Value, aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use tokio::{sync::Notify, time};

use super::{
    super::{
        decode, errors,
        options::{Address, RedisOptions, Tls},
    },
    drive::{self, Drive},
};

/// What a server says about itself.
#[derive(Clone, Debug)]
pub(in super::super) struct ServerFacts {
    /// Its version: major and minor.
    pub(in super::super) version: (u32, u32),
    /// Names this run of the server; unknown where we may not ask for INFO.
    pub(in super::super) run_id: Option<String>,
    /// Whether it can be written to.
    pub(in super::super) is_master: bool,
}

/// Protocol, database and credentials.
fn login(options: &RedisOptions) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(options.database)
        .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
    let (user, password) = match &options.credentials {
        Some(credentials) => credentials.current(),
        None => (options.user.clone(), options.password.clone()),
    };
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

/// How a server is reached.
pub(super) fn connection_info(address: &Address, options: &RedisOptions) -> Result<ConnectionInfo, RedisError> {
    let address = match (address.clone(), &options.tls) {
        (Address::Tcp { host, port }, None) => ConnectionAddr::Tcp(host, port),
        (Address::Tcp { host, port }, Some(_)) => {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        }
        (Address::Unix(path), _) => ConnectionAddr::Unix(path),
        // Keep its credentials, database and TLS settings, but use RESP3, which carries pushes.
        (Address::Info(info), _) => {
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            return Ok((*info).set_redis_settings(settings));
        }
    };
    let info = address.into_connection_info()?.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    Ok(info.set_redis_settings(login(options)))
}

/// Connects. Without TLS, the thread that sends a command also writes it to the socket, and `reconnect` is notified if
/// the server stops answering.
pub(super) async fn connect(
    address: &Address,
    options: &RedisOptions,
    config: AsyncConnectionConfig,
    reconnect: &Arc<Notify>,
) -> Result<(MultiplexedConnection, Option<Drive>), RedisError> {
    if options.tls.is_none() || matches!(address, Address::Unix(_)) {
        let info = connection_info(address, options)?;
        if let Some((connection, drive)) = drive::connect(address, &info, &config, reconnect).await? {
            return Ok((connection, Some(drive)));
        }
    }
    let client = client(address, options)?;
    Ok((client.get_multiplexed_async_connection_with_config(&config).await?, None))
}

/// A client for one server.
pub(super) fn client(address: &Address, options: &RedisOptions) -> Result<Client, RedisError> {
    let info = connection_info(address, options)?;
    match &options.tls {
        None => Client::open(info),
        Some(tls) => Client::build_with_tls(info, certificates(tls)),
    }
}

/// The trusted CA certificates, and the client certificate.
pub(super) fn certificates(tls: &Tls) -> TlsCertificates {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An application that has chosen a provider keeps it.
        let _chosen_meanwhile = rustls::crypto::ring::default_provider().install_default();
    }
    let client_tls = tls.client_certificate.as_ref().map(|certificate| redis::ClientTlsConfig {
        client_cert: certificate.certificate.clone(),
        client_key: certificate.key.clone(),
    });
    TlsCertificates { client_tls, root_cert: tls.ca.clone() }
}

/// Subscribes and waits until the server confirms it.
pub(super) async fn subscribe(
    connection: &MultiplexedConnection,
    channel: &str,
    limit: Duration,
) -> Result<(), RedisError> {
    let mut connection = connection.clone();
    let mut command = redis::cmd("SUBSCRIBE");
    command.arg(channel);
    match time::timeout(limit, connection.send_packed_command(&command)).await {
        Ok(answer) => answer.and_then(Value::extract_error).map(drop),
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

/// What the server says about itself.
pub(super) async fn facts(connection: &MultiplexedConnection) -> Result<ServerFacts, RedisError> {
    let mut connection = connection.clone();
    let hello = connection.send_packed_command(&redis::cmd("HELLO")).await.and_then(Value::extract_error)?;
    let hello = decode::pairs(&hello);
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let info = match connection.send_packed_command(&info).await.and_then(Value::extract_error) {
        Ok(info) => decode::info(&info),
        Err(error) if errors::is_refusal(&error) => HashMap::default(),
        Err(error) => return Err(error),
    };
    Ok(ServerFacts {
        version: version(&hello),
        run_id: info.get("run_id").filter(|id| id.len() == 40).cloned(),
        is_master: hello.get("role").is_none_or(|role| role == "master"),
    })
}

/// Major and minor version in the answer to HELLO.
pub(super) fn version(hello: &HashMap<String, String>) -> (u32, u32) {
    hello.get("version").map_or((0, 0), |version| {
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    })
}
