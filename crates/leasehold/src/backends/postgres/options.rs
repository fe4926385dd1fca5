//! Where a `postgres://` backend is and how it is used, from the URL and the `PG…` variables.

use std::{fmt::Write as _, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use rustls::ClientConfig;
use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};

use super::{
    connection::Tls,
    credentials::{Password, env_var},
};
use crate::{Error, Result, backend::UrlOptions, clock::Clock};

/// The parameter `liveness`: whether attached leases are renewed within a ttl or bound to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LivenessOption {
    Ttl,
    Connection,
}

/// The pooler, if any, in front of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooler {
    /// Unknown: each connection detects whether a pooler shares its server session.
    Auto,
    None,
    /// Keeps a server session for one client for as long as the client stays connected.
    Session,
    /// Shares server sessions between transactions.
    Transaction,
}

impl Pooler {
    /// Whether server sessions are shared between transactions, if the URL says so.
    pub(super) fn transaction_pooled(self) -> Option<bool> {
        match self {
            Self::Auto => None,
            Self::None | Self::Session => Some(false),
            Self::Transaction => Some(true),
        }
    }
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
pub(super) enum History {
    All,
    Problems,
    Off,
}

/// How the server's identity is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Not at all: `sslmode=prefer`.
    Unverified,
    /// By a certificate of the system's authorities, or of those in this file.
    Verified(Option<PathBuf>),
}

/// The files with the client certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    pub(super) chain: PathBuf,
    pub(super) key: PathBuf,
}

/// Where the leases are stored and how.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    config: Config,
    password: Password,
    trust: Trust,
    certificate: Option<Certificate>,
    custom_tls: Option<Arc<ClientConfig>>,
    pub(super) namespace: String,
    pub(super) schema: String,
    pub(super) liveness: LivenessOption,
    pub(super) pooler: Pooler,
    pub(super) durability: Durability,
    pub(super) history: History,
    /// The maximum number of connections for acquires and releases.
    pub(super) connections: usize,
    /// Whether a missing schema is made on first connect.
    pub(super) init: bool,
    pub(super) connect_limit: Duration,
    pub(super) clock: Arc<dyn Clock>,
}

/// Our own parameters; all others are the server's.
const OWN: [&str; 13] = [
    "schema",
    "liveness",
    "pooler",
    "durability",
    "history",
    "connections",
    "init",
    "password_file",
    "password_env",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
];

impl PostgresOptions {
    /// Parses a URL: `postgres://user@host:5432/db?schema=leasehold&liveness=ttl`.
    ///
    /// `postgres:` alone means `postgres://`: the environment says where the server is.
    ///
    /// Besides the usual parameters of a Postgres URL, it may have `schema`, `liveness=ttl|connection`,
    /// `pooler=auto|none|session|transaction`, `durability=durable|async|unlogged`,
    /// `history=all|problems|off`, `connections` (8 by default), `init=1` to install a missing schema,
    /// `password_file`, `password_env`, `sslmode`, `sslrootcert`, `sslcert` and `sslkey`. Values that the URL
    /// leaves out come from the `PG…` environment variables and from the password file.
    ///
    /// # Errors
    /// `InvalidConfig` if the URL cannot be used; the message never shows a password.
    pub fn from_url(url: &str, namespace: &str, clock: Arc<dyn Clock>, connect_limit: Duration) -> Result<Self> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let address = if matches!(address, "postgres:" | "postgresql:") { "postgres://" } else { address };
        let is_own = |parameter: &&str| OWN.contains(&parameter.split('=').next().unwrap_or_default());
        let (own, theirs): (Vec<&str>, Vec<&str>) =
            query.split('&').filter(|parameter| !parameter.is_empty()).partition(is_own);
        let url = if theirs.is_empty() { address.to_owned() } else { format!("{address}?{}", theirs.join("&")) };
        let config = Config::from_str(&url).map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            Error::invalid_config(format!(
                "this postgres URL cannot be used: {error} {source}; besides the usual parameters there are {}",
                OWN.join(", ")
            ))
        })?;
        let mut options = Self::with_defaults(config, namespace, clock, connect_limit);
        options.apply_url(UrlOptions::parse(&format!("postgres:?{}", own.join("&")))?)?;
        Ok(options)
    }

    /// Creates options from an existing configuration.
    ///
    /// `parameters` may contain the parameters that [`from_url`](Self::from_url) adds to
    /// the usual ones, such as `history=problems`.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use leasehold::{backends::postgres::{Config, PostgresOptions}, clock::SystemClock};
    ///
    /// let mut config = Config::new();
    /// config.host("db.internal").user("app").dbname("shop");
    /// let options = PostgresOptions::from_config(config, "history=problems", "default", Arc::new(SystemClock), Duration::from_secs(3))?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidConfig` if a parameter cannot be used.
    pub fn from_config(
        config: Config,
        parameters: &str,
        namespace: &str,
        clock: Arc<dyn Clock>,
        connect_limit: Duration,
    ) -> Result<Self> {
        let mut options = Self::with_defaults(config, namespace, clock, connect_limit);
        let parsed = UrlOptions::parse(&format!("postgres:?{parameters}"))?;
        options.apply_url(parsed)?;
        Ok(options)
    }

    /// Uses this TLS configuration instead of the `ssl…` parameters. `sslmode=disable` still turns TLS off.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use leasehold::{backends::postgres::{ClientConfig, PostgresOptions}, clock::SystemClock};
    ///
    /// let url = "postgres://app@db.internal/shop";
    /// let options = PostgresOptions::from_url(url, "default", Arc::new(SystemClock), Duration::from_secs(3))?;
    /// let trusted = rustls::RootCertStore::empty(); // … and the authorities of the program
    /// let tls = ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
    /// let options = options.tls_config(Arc::new(tls));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn tls_config(mut self, config: Arc<ClientConfig>) -> Self {
        if self.config.get_ssl_mode() == SslMode::Prefer {
            self.config.ssl_mode(SslMode::Require);
        }
        self.custom_tls = Some(config);
        self
    }

    fn with_defaults(config: Config, namespace: &str, clock: Arc<dyn Clock>, connect_limit: Duration) -> Self {
        Self {
            config,
            password: Password::FromConfig,
            trust: Trust::Unverified,
            certificate: None,
            custom_tls: None,
            namespace: namespace.to_owned(),
            schema: String::from("leasehold"),
            liveness: LivenessOption::Ttl,
            pooler: Pooler::Auto,
            durability: Durability::Durable,
            history: History::All,
            connections: 8,
            init: false,
            connect_limit,
            clock,
        }
    }

    fn apply_url(&mut self, mut url: UrlOptions) -> Result<()> {
        self.schema =
            url.take_text("schema").map_or(Ok(String::from("leasehold")), |name| checked_schema_name(&name))?;
        take_word(
            &mut url,
            "liveness",
            &[("ttl", LivenessOption::Ttl), ("connection", LivenessOption::Connection)],
            &mut self.liveness,
        )?;
        let poolers = [
            ("auto", Pooler::Auto),
            ("none", Pooler::None),
            ("session", Pooler::Session),
            ("transaction", Pooler::Transaction),
        ];
        take_word(&mut url, "pooler", &poolers, &mut self.pooler)?;
        let durabilities =
            [("durable", Durability::Durable), ("async", Durability::Async), ("unlogged", Durability::Unlogged)];
        take_word(&mut url, "durability", &durabilities, &mut self.durability)?;
        let histories = [("all", History::All), ("problems", History::Problems), ("off", History::Off)];
        take_word(&mut url, "history", &histories, &mut self.history)?;
        self.init = url.take_switch("init")?.unwrap_or(false);
        let number = |text: &str| text.parse().ok().filter(|count| (1..=64).contains(count));
        self.connections = url.take_with("connections", "1 to 64", number)?.unwrap_or(8);
        self.password = match (url.take_text("password_file"), url.take_text("password_env")) {
            (Some(path), _) => Password::File(PathBuf::from(path)),
            (None, Some(name)) => Password::Variable(name),
            (None, None) if self.config.get_password().is_none() => Password::Libpq,
            (None, None) => Password::FromConfig,
        };
        let roots = url.take_text("sslrootcert").or_else(|| env_var("PGSSLROOTCERT"));
        let mode = url.take_text("sslmode").or_else(|| env_var("PGSSLMODE"));
        let chain = url.take_text("sslcert").or_else(|| env_var("PGSSLCERT"));
        let key = url.take_text("sslkey").or_else(|| env_var("PGSSLKEY"));
        url.finish(&OWN)?;
        self.certificate = match (chain, key) {
            (Some(chain), Some(key)) => Some(Certificate { chain: chain.into(), key: key.into() }),
            (None, None) => None,
            _ => return Err(Error::invalid_config("a client certificate needs both sslcert and sslkey")),
        };
        self.apply_environment();
        self.set_tls_mode(mode.as_deref(), roots.as_deref())?;
        // Fail now if the password cannot be read.
        self.current_config().map(drop)
    }

    /// `require` and above verify the server: unverified encryption does not stop an active attacker.
    fn set_tls_mode(&mut self, mode: Option<&str>, roots: Option<&str>) -> Result<()> {
        let verified = || Trust::Verified(roots.filter(|roots| *roots != "system").map(PathBuf::from));
        let (mode, trust) = match mode {
            None if roots.is_some() || self.config.get_ssl_mode() == SslMode::Require => (SslMode::Require, verified()),
            None | Some("prefer" | "allow") => (SslMode::Prefer, Trust::Unverified),
            Some("disable") => (SslMode::Disable, Trust::Unverified),
            Some("require" | "verify-ca" | "verify-full") => (SslMode::Require, verified()),
            Some(other) => {
                return Err(Error::invalid_config(format!(
                    "sslmode={other} cannot be used: disable, prefer, require or verify-full"
                )));
            }
        };
        // On a socket in the file system nobody is in between, and the server encrypts nothing.
        let by_socket = |host: &Host| matches!(host, Host::Unix(_));
        let local = self.config.get_hostaddrs().is_empty() && self.config.get_hosts().iter().all(by_socket);
        let (mode, trust) = if local { (SslMode::Disable, Trust::Unverified) } else { (mode, trust) };
        self.config.ssl_mode(mode);
        self.trust = trust;
        Ok(())
    }

    /// Takes from the environment what the URL leaves out, and sets how every connection behaves.
    fn apply_environment(&mut self) {
        let config = &mut self.config;
        config.application_name("leasehold").connect_timeout(self.connect_limit);
        config.keepalives_idle(Duration::from_secs(5)).keepalives_interval(Duration::from_secs(2));
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            let socket = ["/var/run/postgresql", "/tmp"].into_iter().find(|path| PathBuf::from(path).is_dir());
            config.host(env_var("PGHOST").as_deref().or(socket).unwrap_or("localhost"));
        }
        if config.get_ports().is_empty() {
            config.port(env_var("PGPORT").and_then(|port| port.parse().ok()).unwrap_or(5432));
        }
        if config.get_user().is_none()
            && let Some(user) = env_var("PGUSER").or_else(|| env_var("USER")).or_else(|| env_var("LOGNAME"))
        {
            config.user(user);
        }
        if config.get_dbname().is_none()
            && let Some(database) = env_var("PGDATABASE")
        {
            config.dbname(database);
        }
        if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            // One of them is the primary; a standby cannot grant.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
    }

    /// What to connect with, with the password as it is now.
    pub(super) fn current_config(&self) -> Result<Config> {
        self.password.put_into(&self.config)
    }

    pub(super) fn tls(&self) -> Result<Tls> {
        match &self.custom_tls {
            Some(config) => Ok(Tls::from_config(config)),
            None => Tls::new(&self.trust, self.certificate.as_ref()),
        }
    }

    /// The startup `options` of a session of our own.
    ///
    /// A client that vanished is noticed within about 11 s: by keepalives when idle, by `tcp_user_timeout` when data is
    /// unacknowledged.
    pub(super) fn start_options(&self) -> String {
        let keepalives = " -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 \
                          -c tcp_user_timeout=11000";
        let mut options = String::new();
        if self.liveness == LivenessOption::Connection {
            options.push_str(keepalives);
        }
        if self.durability == Durability::Async {
            options.push_str(" -c synchronous_commit=off");
        }
        options
    }

    /// The server in words that hold no secret: `db.internal:5432/locks`, or `/run/postgresql/.s.PGSQL.5432, database
    /// locks`.
    pub(super) fn address(&self) -> String {
        let (host, port, database) = self.server();
        if matches!(self.config.get_hosts().first(), Some(Host::Unix(_))) {
            let database = if database.is_empty() { String::new() } else { format!(", database {database}") };
            return format!("{host}/.s.PGSQL.{port}{database}");
        }
        format!("{host}:{port}/{database}")
    }

    /// The first host, its port, and the database.
    fn server(&self) -> (String, u16, &str) {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => self.config.get_hostaddrs().first().map(ToString::to_string).unwrap_or_default(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        (host, port, self.config.get_dbname().or(self.config.get_user()).unwrap_or_default())
    }

    /// The URL of the same schema for another role, as a word of a shell; without a password and other parameters.
    pub(super) fn url_of(&self, role: &str) -> String {
        let (host, port, database) = self.server();
        let host = if host.contains(':') { format!("[{host}]") } else { percent_encoded(&host) };
        let (role, database) = (percent_encoded(role), percent_encoded(database));
        let url = format!("postgres://{role}@{host}:{port}/{database}");
        if self.schema == "leasehold" { url } else { format!("'{url}?schema={}'", self.schema) }
    }

    /// The statement by which the owner of the schema lets this role use it.
    pub(super) fn allow_statement(&self) -> String {
        let role = self.config.get_user().unwrap_or("ROLE").replace('\'', "''");
        format!("select {}.allow('{role}')", self.schema)
    }

    /// The statement by which the owner of the database gives this role a privilege on it.
    pub(super) fn grant_on_database_statement(&self, privilege: &str) -> String {
        let (_, _, database) = self.server();
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let role = self.config.get_user().map_or_else(|| String::from("ROLE"), quoted);
        format!("grant {privilege} on database {} to {role}", quoted(database))
    }
}

/// The text with `%XX` for all that may mean something in a URL or in a shell.
fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _infallible = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

/// Takes a parameter that is one of a few words.
fn take_word<T: Copy>(url: &mut UrlOptions, name: &str, words: &[(&str, T)], into: &mut T) -> Result<()> {
    let known = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    let meant = |text: &str| words.iter().find(|(word, _)| *word == text).map(|(_, meant)| *meant);
    if let Some(word) = url.take_with(name, known, meant)? {
        *into = word;
    }
    Ok(())
}

/// Returns the name if it can be put into SQL text as it is.
pub(super) fn checked_schema_name(name: &str) -> Result<String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts = |c: char| c.is_ascii_lowercase() || c == '_';
    if name.starts_with(starts) && name.chars().all(plain) && name.len() <= 63 && !name.starts_with("pg_") {
        return Ok(name.to_owned());
    }
    Err(Error::invalid_config(format!(
        "the schema {name:?} cannot be used: up to 63 of a-z 0-9 _, not beginning with a digit or pg_"
    )))
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
                   &pooler=session&connections=3&sslmode=disable&options=-c%20x%3Dy";
        let options = parse(url).unwrap();
        assert_eq!((options.schema.as_str(), options.liveness), ("locks", LivenessOption::Connection));
        assert_eq!((options.durability, options.history), (Durability::Async, History::Problems));
        assert_eq!((options.pooler, options.connections), (Pooler::Session, 3));
        assert_eq!((options.address().as_str(), options.config.get_options()), ("h:5433/db", Some("-c x=y")));
    }

    #[test]
    fn a_url_without_an_address_leaves_all_to_the_environment() {
        let whole = parse("postgres://").unwrap();
        for url in ["postgres:", "postgresql:", "postgresql://"] {
            assert_eq!(parse(url).unwrap().config, whole.config, "{url}");
        }
        let options = parse("postgres:?liveness=connection&options=-c%20x%3Dy&schema=locks").unwrap();
        assert_eq!((options.liveness, options.schema.as_str()), (LivenessOption::Connection, "locks"));
        assert_eq!((options.address(), options.config.get_options()), (whole.address(), Some("-c x=y")));
    }

    #[test]
    fn what_another_role_has_to_do_names_the_address_the_schema_and_the_roles() {
        let options = parse("postgres://app:s3cret@db:5433/shop?sslmode=disable").unwrap();
        assert_eq!(options.url_of("owner"), "postgres://owner@db:5433/shop");
        assert_eq!(options.allow_statement(), "select leasehold.allow('app')");
        assert_eq!(options.grant_on_database_statement("create"), "grant create on database \"shop\" to \"app\"");
        let options = parse("postgres://o%27neil@[::1]/a%20b?schema=locks").unwrap();
        assert_eq!(options.url_of("Ada@example.com"), "'postgres://Ada%40example.com@[::1]:5432/a%20b?schema=locks'");
        assert_eq!(options.allow_statement(), "select locks.allow('o''neil')");
        assert_eq!(options.grant_on_database_statement("connect"), "grant connect on database \"a b\" to \"o'neil\"");
        let options = parse("postgres://app@%2Frun%2Fpg/shop").unwrap();
        assert_eq!(options.url_of("owner"), "postgres://owner@%2Frun%2Fpg:5432/shop");
    }

    #[test]
    fn what_cannot_be_used_is_refused_and_no_password_is_shown() {
        for query in [
            "schema=a-b",
            "schema=pg_x",
            "liveness=x",
            "durability=",
            "history=some",
            "connections=0",
            "nonsense=1",
            "pooler=maybe",
            "sslcert=x",
            "password_env=NOT_SET_ANYWHERE",
        ] {
            let error = parse(&format!("postgres://u:s3cret@h/db?{query}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{query}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
        assert!(!format!("{:?}", parse("postgres://u:s3cret@h/db").unwrap()).contains("s3cret"));
    }
}
