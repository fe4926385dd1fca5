//! Connects by a socket of our own, so that a child process can inherit the session that leases are bound to.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_postgres::{
    Client, Config,
    config::Host,
    tls::{MakeTlsConnect, TlsConnect},
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A socket to the server, of either kind.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

type TlsStream = <<MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect as TlsConnect<Socket>>::Stream;

/// A client, its driver, and its socket.
pub(super) struct OpenConnection {
    pub(super) client: Client,
    pub(super) driver: tokio_postgres::Connection<Socket, TlsStream>,
    pub(super) socket: OwnedFd,
}

/// The address of one of the servers in the URL.
#[derive(Clone, Debug)]
pub(super) struct ServerAddress {
    /// What its certificate must name; empty for a socket in the file system.
    name: String,
    endpoint: Endpoint,
}

#[derive(Clone, Debug)]
enum Endpoint {
    Name(String, u16),
    Address(IpAddr, u16),
    Path(PathBuf),
}

/// The addresses of the servers, in the order of the URL.
pub(super) fn server_addresses(config: &Config) -> Vec<ServerAddress> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    (0..hosts.len().max(addresses.len()))
        .map(|index| {
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
            let name = match hosts.get(index) {
                Some(Host::Tcp(name)) => name.clone(),
                _ => String::new(),
            };
            let endpoint = match (addresses.get(index), hosts.get(index)) {
                (Some(address), _) => Endpoint::Address(*address, port),
                (None, Some(Host::Unix(folder))) => Endpoint::Path(folder.join(format!(".s.PGSQL.{port}"))),
                (None, _) => Endpoint::Name(name.clone(), port),
            };
            ServerAddress { name, endpoint }
        })
        .collect()
}

/// Connects to one server within a limit. Outer error: socket; inner error: server.
pub(super) async fn dial(
    config: &Config,
    tls: &MakeRustlsConnect,
    server: &ServerAddress,
    limit: Duration,
) -> Result<Result<OpenConnection, tokio_postgres::Error>, io::Error> {
    timeout(limit, async {
        let (stream, socket): (Socket, OwnedFd) = match &server.endpoint {
            Endpoint::Name(name, port) => over_tcp(TcpStream::connect((name.as_str(), *port)).await?)?,
            Endpoint::Address(address, port) => over_tcp(TcpStream::connect((*address, *port)).await?)?,
            Endpoint::Path(path) => {
                let stream = UnixStream::connect(path).await?;
                let socket = stream.as_fd().try_clone_to_owned()?;
                (Socket::Unix(stream), socket)
            }
        };
        let tls = MakeTlsConnect::<Socket>::make_tls_connect(&mut tls.clone(), &server.name);
        let tls = tls.map_err(io::Error::other)?;
        Ok(config.connect_raw(stream, tls).await.map(|(client, driver)| OpenConnection { client, driver, socket }))
    })
    .await
    .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"))))
}

fn over_tcp(stream: TcpStream) -> io::Result<(Socket, OwnedFd)> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(2))?;
    let socket = stream.as_fd().try_clone_to_owned()?;
    Ok((Socket::Tcp(stream), socket))
}
