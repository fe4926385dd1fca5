//! Just enough of the Redis protocol to look at a server from outside the library under test.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespReply {
    /// A line, a text or a number.
    Text(String),
    /// Nothing.
    Nil,
    /// A refusal.
    Error(String),
    /// Several.
    Many(Vec<RespReply>),
}

impl RespReply {
    /// The parts of an array.
    pub fn parts(&self) -> &[RespReply] {
        match self {
            Self::Many(parts) => parts,
            _ => &[],
        }
    }
}

impl fmt::Display for RespReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Error(text) => f.write_str(text),
            Self::Nil => f.write_str("(nil)"),
            Self::Many(parts) => parts.iter().try_for_each(|part| writeln!(f, "{part}")),
        }
    }
}

/// Sends one command on a connection of its own, after the password if there is one.
pub(super) fn ask(port: u16, password: Option<&str>, command: &[&str]) -> io::Result<RespReply> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut requests = Vec::new();
    if let Some(password) = password {
        write_command(&mut requests, &["AUTH", password])?;
    }
    write_command(&mut requests, command)?;
    stream.write_all(&requests)?;
    let mut replies = BufReader::new(stream);
    if password.is_some() {
        read(&mut replies)?;
    }
    let reply = read(&mut replies)?;
    // The server closes its end once it has forgotten this client, so that nobody counts it afterwards.
    replies.get_ref().shutdown(Shutdown::Write)?;
    let _closed_or_reset = replies.read_to_end(&mut Vec::new());
    Ok(reply)
}

fn write_command(to: &mut impl Write, command: &[&str]) -> io::Result<()> {
    write!(to, "*{}\r\n", command.len())?;
    command.iter().try_for_each(|word| write!(to, "${}\r\n{word}\r\n", word.len()))
}

fn read(stream: &mut impl BufRead) -> io::Result<RespReply> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at(1);
    let count = || rest.parse::<i64>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    Ok(match kind {
        "+" | ":" => RespReply::Text(rest.to_owned()),
        "-" => RespReply::Error(rest.to_owned()),
        "$" => match usize::try_from(count()?) {
            Err(_) => RespReply::Nil,
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                stream.read_exact(&mut bytes)?;
                RespReply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
        },
        "*" => match usize::try_from(count()?) {
            Err(_) => RespReply::Nil,
            Ok(length) => RespReply::Many((0..length).map(|_| read(stream)).collect::<io::Result<_>>()?),
        },
        _ => return Err(io::ErrorKind::InvalidData.into()),
    })
}
