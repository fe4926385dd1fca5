//! Where a `redis:` backend lives and how, as said by its URL.

use std::{env, fmt, fs, sync::Arc, time::Duration};

use crate::{Error, Result, clock::Clock};

/// How long an answer may take, unless the URL says otherwise.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
const PARAMETERS: &str = "password_file, password_env, answer_limit, history, durability, ca, cert and key (these three \
    for rediss), sentinel_user, sentinel_password_file and sentinel_password_env (these three for redis+sentinel)";

/// Where the leases are kept and how they are reached.
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisOptions {
    /// The servers named: one, or those that know the others.
    pub servers: Vec<Address>,
    /// How the servers belong together.
    pub topology: Topology,
    /// The user of the server's access list; none by default.
    pub user: Option<String>,
    /// Never shown.
    pub password: Option<String>,
    /// The user of the sentinels' access list: they have users of their own. None by default.
    pub sentinel_user: Option<String>,
    /// The password of the sentinels, where they ask for one. Never shown.
    pub sentinel_password: Option<String>,
    /// The number of the database, 0 by default; a cluster has only that.
    pub database: i64,
    /// How the connection is protected; not at all with `redis:`.
    pub tls: Option<Tls>,
    /// Leases of two namespaces never meet.
    pub namespace: String,
    /// How long opening may take; 3 s by default.
    pub connect_limit: Duration,
    /// How long an answer may take before its outcome counts as unknown; 2 s by default.
    pub answer_limit: Duration,
    /// Which ended leases are remembered; all by default.
    pub history: Remember,
    /// What must have a copy of a grant before it is believed; nothing but the server by default.
    pub durability: Durability,
    /// Decides instead of the server's clock: for tests that move time.
    #[doc(hidden)]
    pub clock: Option<Arc<dyn Clock>>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Its name or number.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// How the servers belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// The sentinels tell where the master of this name is.
    Sentinel {
        /// The master's name.
        master: String,
    },
    /// Each server has some of the slots.
    Cluster,
}

/// How the connection is protected.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whom to trust, as PEM; the machine's own list by default.
    pub ca: Option<Vec<u8>>,
    /// Our certificate and key as PEM, where the server wants to know us.
    pub identity: Option<Identity>,
}

/// Our certificate and key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: Vec<u8>,
    /// Never shown.
    pub key: Vec<u8>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("ca", &self.ca.is_some()).field("identity", &self.identity.is_some()).finish()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(…)")
    }
}

/// Which ended leases are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// All.
    All,
    /// Those that someone may want to look into.
    Problems,
    /// None.
    Nothing,
}

/// What must have a copy of a grant before it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing but the server's memory.
    None,
    /// So many replicas.
    Replicas(u32),
    /// The server's append-only file.
    Aof,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("place", &self.place())
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl RedisOptions {
    /// What the URL says.
    ///
    /// `redis://[user[:password]@]host[:port][/database]`, `redis+sentinel://host,host/master[/database]` and
    /// `redis+cluster://host,host`; with `rediss` the connection is protected. `host` may be left out for
    /// `localhost`. The password may also come from `password_file=`, `password_env=` or `REDISCLI_AUTH`; that of
    /// sentinels, which is another, from `sentinel_password_file=` or `sentinel_password_env=`.
    ///
    /// # Errors
    /// `InvalidConfig` when the URL cannot be used; the password is never shown.
    pub fn from_url(url: &str, namespace: &str) -> Result<Self> {
        let invalid = |why: &str| Error::invalid_config(format!("this redis URL cannot be used: {why}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("write redis://host:port"))?;
        let (tls, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            ("redis", kind) => (None, kind),
            ("rediss", kind) => (Some(Tls::default()), kind),
            _ => return Err(invalid("its scheme is redis, rediss, redis+sentinel or redis+cluster")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, authority),
        };
        let (topology, database, port) = match kind {
            "" => (Topology::Single, path, 6379),
            "cluster" if path.is_empty() || path == "0" => (Topology::Cluster, "", 6379),
            "cluster" => return Err(invalid("a cluster has no database but 0")),
            "sentinel" => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(invalid("name the master: redis+sentinel://host,host/mymaster"));
                }
                (Topology::Sentinel { master: decoded(master).ok_or_else(|| invalid("bad %XX"))? }, database, 26379)
            }
            _ => return Err(invalid("after the + comes sentinel or cluster")),
        };
        let servers = hosts.split(',').map(|host| address(host, port)).collect::<Option<Vec<_>>>();
        let servers = servers.ok_or_else(|| invalid("a server is written host:port or [ipv6]:port"))?;
        if topology == Topology::Single && servers.len() > 1 {
            return Err(invalid("several servers need redis+sentinel://, redis+cluster:// or redlock://"));
        }
        let mut options = Self {
            servers,
            topology,
            user: None,
            password: None,
            sentinel_user: None,
            sentinel_password: None,
            database: match database {
                "" => 0,
                number => number.parse().map_err(|_| invalid("the database is a number, as in redis://host/0"))?,
            },
            tls,
            namespace: namespace.to_owned(),
            connect_limit: Duration::from_secs(3),
            answer_limit: ANSWER_LIMIT,
            history: Remember::All,
            durability: Durability::None,
            clock: None,
        };
        options.read_userinfo(userinfo.unwrap_or_default()).ok_or_else(|| invalid("user or password has a bad %XX"))?;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decoded(value).ok_or_else(|| invalid(&format!("{name} has a bad %XX")))?;
            options.read_parameter(name, &value)?;
        }
        if let Some(Tls { identity: Some(identity), .. }) = &options.tls
            && (identity.certificate.is_empty() || identity.key.is_empty())
        {
            return Err(invalid("cert= and key= belong together"));
        }
        if options.password.is_none() {
            options.password = env::var("REDISCLI_AUTH").ok().filter(|password| !password.is_empty());
        }
        Ok(options)
    }

    fn read_userinfo(&mut self, userinfo: &str) -> Option<()> {
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        self.user = Some(decoded(user)?).filter(|user| !user.is_empty());
        self.password = Some(decoded(password)?).filter(|password| !password.is_empty());
        Some(())
    }

    fn read_parameter(&mut self, name: &str, value: &str) -> Result<()> {
        let invalid =
            |advice: &str| Error::invalid_config(format!("{name}={value} in a redis URL cannot be used: {advice}"));
        match name {
            "sentinel_user" | "sentinel_password_file" | "sentinel_password_env"
                if !matches!(self.topology, Topology::Sentinel { .. }) =>
            {
                return Err(invalid("it needs redis+sentinel://"));
            }
            "password_file" => self.password = Some(password_in(name, value)?),
            "sentinel_user" => self.sentinel_user = Some(value.to_owned()),
            "sentinel_password_file" => self.sentinel_password = Some(password_in(name, value)?),
            "password_env" | "sentinel_password_env" => {
                let password = env::var(value).map_err(|_| invalid("that variable is not set"))?;
                let whose = if name == "password_env" { &mut self.password } else { &mut self.sentinel_password };
                *whose = Some(password);
            }
            "answer_limit" => {
                self.answer_limit = duration(value)
                    .filter(|limit| (Duration::from_millis(10)..=Duration::from_secs(600)).contains(limit))
                    .ok_or_else(|| invalid("write 10ms to 600s, such as 500ms or 2s"))?;
            }
            "history" => {
                self.history = match value {
                    "all" => Remember::All,
                    "problems" => Remember::Problems,
                    "off" => Remember::Nothing,
                    _ => return Err(invalid("write all, problems or off")),
                }
            }
            "durability" => {
                self.durability = match (value, value.strip_prefix("replicas:").map(str::parse)) {
                    ("none", _) => Durability::None,
                    ("aof", _) => Durability::Aof,
                    (_, Some(Ok(count @ 1..))) => Durability::Replicas(count),
                    _ => return Err(invalid("write none, replicas:N or aof")),
                }
            }
            "ca" | "cert" | "key" => {
                let pem = read_file(name, value)?;
                let tls = self.tls.as_mut().ok_or_else(|| invalid("it needs rediss://"))?;
                let identity = || Identity { certificate: Vec::new(), key: Vec::new() };
                match name {
                    "ca" => tls.ca = Some(pem),
                    "cert" => tls.identity.get_or_insert_with(identity).certificate = pem,
                    _ => tls.identity.get_or_insert_with(identity).key = pem,
                }
            }
            _ => {
                return Err(Error::invalid_config(format!("a redis URL has no parameter {name}; it has {PARAMETERS}")));
            }
        }
        Ok(())
    }

    /// The place as shown to people: no user, no password.
    pub(super) fn place(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let servers = self.servers.iter().map(Address::to_string).collect::<Vec<_>>().join(",");
        match &self.topology {
            Topology::Single => format!("{scheme}://{servers}"),
            Topology::Sentinel { master } => format!("{scheme}+sentinel://{servers}/{master}"),
            Topology::Cluster => format!("{scheme}+cluster://{servers}"),
        }
    }
}

fn read_file(name: &str, path: &str) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::invalid_config(format!("{name}={path} cannot be read")).caused_by(error))
}

/// The text of a file, without the end of its line.
fn password_in(name: &str, path: &str) -> Result<String> {
    let text = String::from_utf8(read_file(name, path)?)
        .map_err(|_| Error::invalid_config(format!("{name}={path} is not text")))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn address(text: &str, default_port: u16) -> Option<Address> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Some(default_port), |port| port.parse().ok())?;
    let fits = |c: char| c.is_alphanumeric() || ".:-_%".contains(c);
    if port == 0 || !host.chars().all(fits) {
        return None;
    }
    Some(Address { host: if host.is_empty() { String::from("localhost") } else { host.to_owned() }, port })
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let count = count.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(count)),
        "s" => Some(Duration::from_secs(count)),
        _ => None,
    }
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let value = digit(bytes.next()?)? * 16 + digit(bytes.next()?)?;
        plain.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(plain).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn parse(url: &str) -> Result<RedisOptions> {
        RedisOptions::from_url(url, "default")
    }

    fn shown(url: &str) -> String {
        parse(url).unwrap().place()
    }

    #[test]
    fn a_url_names_servers_and_how_they_belong_together() {
        assert_eq!(shown("redis://"), "redis://localhost:6379");
        assert_eq!(shown("redis://cache"), "redis://cache:6379");
        assert_eq!(shown("rediss://[::1]:7000/3"), "rediss://[::1]:7000");
        assert_eq!(parse("redis://cache/3").unwrap().database, 3);
        assert_eq!(shown("redis+sentinel://a,b:1/mine"), "redis+sentinel://a:26379,b:1/mine");
        assert_eq!(parse("redis+sentinel://a/mine/2").unwrap().database, 2);
        assert_eq!(shown("rediss+cluster://a:1,b:2"), "rediss+cluster://a:1,b:2");
    }

    #[test]
    fn a_password_is_read_and_never_shown() {
        let options = parse("redis://me:p%40ss%2Fw@host").unwrap();
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("me"), Some("p@ss/w")));
        assert!(!format!("{options:?}").contains("p@ss"));
        assert_eq!(parse("redis://:only@host").unwrap().password.as_deref(), Some("only"));
        for url in [
            "redis://me:hunter2@host:port",
            "redis://me:hunter2@a,b",
            "redis://me:hunter2@host/x",
            "redis://me:hunter2@host?x=1",
            "redis+foo://me:hunter2@host",
            "redis:me:hunter2@host",
            "redis://me:hunter2%zz@host",
            "redis+sentinel://me:hunter2@host",
            "redis+cluster://me:hunter2@host/1",
            "redis://me:hunter2@host?answer_limit=1",
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_password_comes_from_a_file_without_its_line_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        fs::write(&file, "hunter2\n").unwrap();
        let options = parse(&format!("redis://host?password_file={}", file.display())).unwrap();
        assert_eq!(options.password.as_deref(), Some("hunter2"));
        assert!(parse("redis://host?password_file=/nowhere/at/all").unwrap_err().to_string().contains("/nowhere"));
        assert!(parse("redis://host?password_env=LEASEHOLD_NO_SUCH").unwrap_err().to_string().contains("not set"));
    }

    #[test]
    fn parameters_are_read_and_unknown_ones_named() {
        let options = parse("redis://h?answer_limit=500ms&history=problems&durability=replicas:2").unwrap();
        assert_eq!(options.answer_limit, Duration::from_millis(500));
        assert_eq!((options.history, options.durability), (Remember::Problems, Durability::Replicas(2)));
        assert!(parse("redis://h?timeout=1").unwrap_err().to_string().contains("answer_limit"));
        assert!(parse("redis://h?ca=/etc/hostname").unwrap_err().to_string().contains("rediss"));
        assert!(parse("rediss://h?cert=/etc/hostname").unwrap_err().to_string().contains("belong together"));
        assert_eq!(parse("redis+sentinel://h/m?sentinel_user=me").unwrap().sentinel_user.as_deref(), Some("me"));
        assert!(parse("redis://h?sentinel_user=me").unwrap_err().to_string().contains("redis+sentinel"));
    }
}
