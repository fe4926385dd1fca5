//! Connects by a socket of our own, so that a child process can inherit the session that leases are bound to, and a forked
//! one does not.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use leasehold_fork::{Registration, close_in_child};
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

/// A socket to the server, which a forked child closes.
#[derive(Debug)]
pub(super) struct Socket {
    // Dropped before the descriptor.
    _closed_in_child: Registration,
    stream: SocketStream,
}

#[derive(Debug)]
enum SocketStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn new(stream: SocketStream) -> io::Result<Self> {
        let closed_in_child = match &stream {
            SocketStream::Tcp(stream) => close_in_child(stream.as_fd())?,
            SocketStream::Unix(stream) => close_in_child(stream.as_fd())?,
        };
        Ok(Self { _closed_in_child: closed_in_child, stream })
    }
}

/// A duplicate of a connection's socket, which a forked child closes, too: its own duplicates keep the session alive.
#[derive(Debug)]
pub(in crate::backends::postgres) struct SessionSocket {
    // Dropped before the descriptor.
    _closed_in_child: Registration,
    fd: OwnedFd,
}

impl SessionSocket {
    fn of(stream: &impl AsFd) -> io::Result<Self> {
        let fd = stream.as_fd().try_clone_to_owned()?;
        Ok(Self { _closed_in_child: close_in_child(fd.as_fd())?, fd })
    }

    /// A duplicate that a child process may inherit.
    pub(in crate::backends::postgres) fn inheritable(&self) -> io::Result<OwnedFd> {
        // Open across exec, unlike all that this process opens for itself.
        Ok(rustix::io::dup(&self.fd)?)
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            SocketStream::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            SocketStream::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            SocketStream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            SocketStream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            SocketStream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            SocketStream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            SocketStream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            SocketStream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

type TlsStream = <<MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect as TlsConnect<Socket>>::Stream;

/// A client, its driver, and its socket.
pub(super) struct OpenConnection {
    pub(super) client: Client,
    pub(super) driver: tokio_postgres::Connection<Socket, TlsStream>,
    pub(super) socket: SessionSocket,
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
        let (stream, socket) = match &server.endpoint {
            Endpoint::Name(name, port) => over_tcp(TcpStream::connect((name.as_str(), *port)).await?)?,
            Endpoint::Address(address, port) => over_tcp(TcpStream::connect((*address, *port)).await?)?,
            Endpoint::Path(path) => {
                let stream = UnixStream::connect(path).await?;
                let socket = SessionSocket::of(&stream)?;
                (Socket::new(SocketStream::Unix(stream))?, socket)
            }
        };
        let tls = MakeTlsConnect::<Socket>::make_tls_connect(&mut tls.clone(), &server.name);
        let tls = tls.map_err(io::Error::other)?;
        Ok(config.connect_raw(stream, tls).await.map(|(client, driver)| OpenConnection { client, driver, socket }))
    })
    .await
    .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"))))
}

fn over_tcp(stream: TcpStream) -> io::Result<(Socket, SessionSocket)> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(2))?;
    let socket = SessionSocket::of(&stream)?;
    Ok((Socket::new(SocketStream::Tcp(stream))?, socket))
}
