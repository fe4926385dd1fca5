//! Where a `postgres://` backend is and how it is used, as said by its URL and the usual environment.

use std::{env, fs, os::unix::fs::PermissionsExt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::{Error, Result, clock::Clock};

/// What a lease lives by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Ttl,
    Connection,
}

/// What a grant survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// A crash of the server.
    Durable,
    /// A crash, but for the last moments before it.
    Async,
    /// A clean restart only.
    Unlogged,
}

/// Which endings are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    All,
    Problems,
    Off,
}

/// How the server proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// It need not: `sslmode=prefer`.
    Anyone,
    /// By a certificate of the system's authorities, or of those in this file.
    Verified(Option<PathBuf>),
}

impl Trust {
    /// By the authorities in this file, or `system`.
    fn by(roots: &str) -> Self {
        Self::Verified((roots != "system").then(|| PathBuf::from(roots)))
    }
}

/// Where the leases are kept and how.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    pub(super) config: tokio_postgres::Config,
    pub(super) trust: Trust,
    pub(super) namespace: String,
    pub(super) schema: String,
    pub(super) by: By,
    pub(super) durability: Durability,
    pub(super) recorded: Recorded,
    /// The most connections for acquires and releases.
    pub(super) connections: usize,
    /// Whether a missing schema is made on first connect.
    pub(super) init: bool,
    pub(super) connect_limit: Duration,
    pub(super) clock: Arc<dyn Clock>,
}

impl PostgresOptions {
    /// What the URL says: `postgres://user@host:5432/db?schema=leasehold&liveness=ttl`.
    ///
    /// Besides the usual parameters of a Postgres URL: `schema`, `liveness=ttl|connection`,
    /// `durability=durable|async|unlogged`, `history=all|problems|off`, `connections` (8),
    /// `init=1` to install a missing schema, `password_file`, `password_env`, `sslmode`,
    /// `sslrootcert`. What is not said comes from `PGHOST` and its kin and from the password file.
    ///
    /// # Errors
    /// `InvalidConfig` when the URL cannot be used; the message never shows a password.
    pub fn from_url(url: &str, namespace: &str, clock: Arc<dyn Clock>, connect_limit: Duration) -> Result<Self> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let mut own = Self {
            config: tokio_postgres::Config::new(),
            trust: Trust::Anyone,
            namespace: namespace.to_owned(),
            schema: String::from("leasehold"),
            by: By::Ttl,
            durability: Durability::Durable,
            recorded: Recorded::All,
            connections: 8,
            init: false,
            connect_limit,
            clock,
        };
        let mut left = Vec::new();
        let mut password = None;
        let mut ssl = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decoded(name, value)?;
            match name {
                "schema" => own.schema = schema(&value)?,
                "liveness" => own.by = one_of(name, &value, &[("ttl", By::Ttl), ("connection", By::Connection)])?,
                "durability" => {
                    let known = [
                        ("durable", Durability::Durable),
                        ("async", Durability::Async),
                        ("unlogged", Durability::Unlogged),
                    ];
                    own.durability = one_of(name, &value, &known)?;
                }
                "history" => {
                    let known = [("all", Recorded::All), ("problems", Recorded::Problems), ("off", Recorded::Off)];
                    own.recorded = one_of(name, &value, &known)?;
                }
                "init" => own.init = one_of(name, &value, &[("1", true), ("0", false)])?,
                "connections" => {
                    own.connections =
                        value.parse().ok().filter(|most| (1..=64).contains(most)).ok_or_else(|| {
                            Error::invalid_config(format!("connections={value} cannot be used: 1 to 64"))
                        })?;
                }
                "password_file" => password = Some(first_line(&value)?),
                "password_env" => {
                    password = Some(env::var(&value).map_err(|_| {
                        Error::invalid_config(format!("password_env={value} names a variable that is not set"))
                    })?);
                }
                "sslmode" => ssl = Some(value),
                "sslrootcert" => own.trust = Trust::by(&value),
                _ => left.push(parameter),
            }
        }
        let url = if left.is_empty() { place.to_owned() } else { format!("{place}?{}", left.join("&")) };
        own.config = tokio_postgres::Config::from_str(&url).map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            Error::invalid_config(format!(
                "this postgres URL cannot be used: {error} {source}; besides the usual parameters there are schema, \
                 liveness, durability, history, connections, init, password_file and password_env"
            ))
        })?;
        own.config.application_name("leasehold").connect_timeout(connect_limit);
        own.config.keepalives_idle(Duration::from_secs(5)).keepalives_interval(Duration::from_secs(2));
        if own.config.get_hosts().len() > 1 && own.config.get_target_session_attrs() == TargetSessionAttrs::Any {
            // One of them is the primary; a standby cannot grant.
            own.config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if own.trust == Trust::Anyone
            && let Some(roots) = set("PGSSLROOTCERT")
        {
            own.trust = Trust::by(&roots);
        }
        own.fill_in(password)?;
        own.ssl(ssl.or_else(|| set("PGSSLMODE")).as_deref())?;
        Ok(own)
    }

    /// `require` and above verify the server: encryption to anyone at all protects from nobody who matters.
    fn ssl(&mut self, mode: Option<&str>) -> Result<()> {
        let verified = || match &self.trust {
            Trust::Verified(roots) => Trust::Verified(roots.clone()),
            Trust::Anyone => Trust::Verified(None),
        };
        let (mode, trust) = match mode {
            None if self.trust != Trust::Anyone => (SslMode::Require, verified()),
            None | Some("prefer" | "allow") => (SslMode::Prefer, Trust::Anyone),
            Some("disable") => (SslMode::Disable, Trust::Anyone),
            Some("require" | "verify-ca" | "verify-full") => (SslMode::Require, verified()),
            Some(other) => {
                return Err(Error::invalid_config(format!(
                    "sslmode={other} cannot be used: disable, prefer, require or verify-full"
                )));
            }
        };
        // On a socket in the file system nobody is in between, and the server encrypts nothing.
        let (mode, trust) = if self.is_local() { (SslMode::Disable, Trust::Anyone) } else { (mode, trust) };
        self.config.ssl_mode(mode);
        self.trust = trust;
        Ok(())
    }

    fn is_local(&self) -> bool {
        let by_socket = |host: &Host| matches!(host, Host::Unix(_));
        self.config.get_hostaddrs().is_empty() && self.config.get_hosts().iter().all(by_socket)
    }

    fn fill_in(&mut self, password: Option<String>) -> Result<()> {
        if self.config.get_hosts().is_empty() && self.config.get_hostaddrs().is_empty() {
            let socket = ["/var/run/postgresql", "/tmp"].into_iter().find(|path| PathBuf::from(path).is_dir());
            self.config.host(set("PGHOST").as_deref().or(socket).unwrap_or("localhost"));
        }
        if self.config.get_ports().is_empty() {
            let port = set("PGPORT").and_then(|port| port.parse().ok()).unwrap_or(5432);
            self.config.port(port);
        }
        if self.config.get_user().is_none()
            && let Some(user) = set("PGUSER").or_else(|| set("USER")).or_else(|| set("LOGNAME"))
        {
            self.config.user(user);
        }
        if self.config.get_dbname().is_none()
            && let Some(database) = set("PGDATABASE")
        {
            self.config.dbname(database);
        }
        if let Some(password) = password.or_else(|| set("PGPASSWORD").filter(|_| self.config.get_password().is_none()))
        {
            self.config.password(password);
        }
        if self.config.get_password().is_none()
            && let Some(password) = self.look_up_password(set("PGPASSFILE"))?
        {
            self.config.password(password);
        }
        Ok(())
    }

    /// The password that `PGPASSFILE`, or `~/.pgpass`, has for this server.
    fn look_up_password(&self, named: Option<String>) -> Result<Option<String>> {
        let path = match named {
            Some(path) => PathBuf::from(path),
            None => match env::var_os("HOME") {
                Some(home) => PathBuf::from(home).join(".pgpass"),
                None => return Ok(None),
            },
        };
        let Ok(text) = fs::read_to_string(&path) else { return Ok(None) };
        if fs::metadata(&path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0) {
            return Err(Error::invalid_config(format!(
                "the password file {0} can be read by others; chmod 600 {0}",
                path.display()
            )));
        }
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            _ => String::from("localhost"),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432).to_string();
        let user = self.config.get_user().unwrap_or_default();
        let database = self.config.get_dbname().unwrap_or(user);
        Ok(text.lines().find_map(|line| password_for(line, [&host, &port, database, user])))
    }

    /// The server in words that hold no secret: `db.internal:5432/locks`.
    pub(super) fn place(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => String::from("?"),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("{host}:{port}/{database}")
    }
}

/// What the environment says, unless it is empty.
fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The password of a line `host:port:database:user:password` if it is about this server.
fn password_for(line: &str, about: [&str; 4]) -> Option<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut()?.extend(characters.next()),
            other => fields.last_mut()?.push(other),
        }
    }
    let fits = fields.iter().zip(about).all(|(field, wanted)| field == "*" || field == wanted);
    if line.starts_with('#') || fields.len() != 5 || !fits { None } else { fields.pop() }
}

fn first_line(path: &str) -> Result<String> {
    let text = fs::read_to_string(path)
        .map_err(|error| Error::invalid_config(format!("the password file {path} cannot be read")).caused_by(error))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn one_of<T: Copy>(name: &str, value: &str, known: &[(&str, T)]) -> Result<T> {
    known.iter().find(|(word, _)| *word == value).map(|(_, meant)| *meant).ok_or_else(|| {
        let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        Error::invalid_config(format!("{name}={value} cannot be used: {}", words.join(", ")))
    })
}

/// Schemas are put into SQL text, so they are plain names.
pub(super) fn schema(name: &str) -> Result<String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts = |c: char| c.is_ascii_lowercase() || c == '_';
    if name.starts_with(starts) && name.chars().all(plain) && name.len() <= 63 && !name.starts_with("pg_") {
        return Ok(name.to_owned());
    }
    Err(Error::invalid_config(format!(
        "the schema {name:?} cannot be used: up to 63 of a-z 0-9 _, not beginning with a digit or pg_"
    )))
}

fn decoded(name: &str, value: &str) -> Result<String> {
    let invalid = || Error::invalid_config(format!("the value of {name} has a bad %XX; write a % itself as %25"));
    let mut bytes = value.bytes();
    let mut plain = Vec::with_capacity(value.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let digits = [bytes.next().ok_or_else(invalid)?, bytes.next().ok_or_else(invalid)?];
        let digits = std::str::from_utf8(&digits).map_err(|_| invalid())?;
        plain.push(u8::from_str_radix(digits, 16).map_err(|_| invalid())?);
    }
    String::from_utf8(plain).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, clock::SystemClock};

    fn parse(url: &str) -> Result<PostgresOptions> {
        PostgresOptions::from_url(url, "default", Arc::new(SystemClock), Duration::from_secs(3))
    }

    #[test]
    fn our_parameters_are_taken_and_the_rest_is_left_to_postgres() {
        let url = "postgres://u:p@h:5433/db?schema=locks&liveness=connection&durability=async&history=problems\
                   &connections=3&sslmode=disable&options=-c%20x%3Dy";
        let options = parse(url).unwrap();
        assert_eq!((options.schema.as_str(), options.by), ("locks", By::Connection));
        assert_eq!((options.durability, options.recorded), (Durability::Async, Recorded::Problems));
        assert_eq!((options.connections, options.place().as_str()), (3, "h:5433/db"));
        assert_eq!(options.config.get_options(), Some("-c x=y"));
    }

    #[test]
    fn what_cannot_be_used_is_refused_and_no_password_is_shown() {
        for query in
            ["schema=a-b", "schema=pg_x", "liveness=x", "durability=", "history=some", "connections=0", "nonsense=1"]
        {
            let error = parse(&format!("postgres://u:s3cret@h/db?{query}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{query}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
        assert!(!format!("{:?}", parse("postgres://u:s3cret@h/db").unwrap()).contains("s3cret"));
    }

    #[test]
    fn a_password_file_answers_for_its_server_only() {
        let about = ["h", "5432", "db", "u"];
        assert_eq!(password_for("h:5432:db:u:p\\:w", about).as_deref(), Some("p:w"));
        assert_eq!(password_for("*:*:*:u:pw", about).as_deref(), Some("pw"));
        assert_eq!(password_for("other:*:*:*:pw", about), None);
        assert_eq!(password_for("# *:*:*:*:pw", about), None);
    }
}
