//! The URLs of Redis servers.

use std::{env, fs, time::Duration};

use super::options::{Address, ClientCertificate, Durability, HistoryLevel, RedisOptions, Tls, Topology};
use crate::{
    Error, Result,
    backend::{UrlOptions, options::percent_decoded},
};

const PARAMETERS: [&str; 11] = [
    "password_file",
    "password_env",
    "prefix",
    "answer_limit",
    "history",
    "durability",
    "ca, cert and key (with rediss)",
    "sentinel_user",
    "sentinel_password_file",
    "sentinel_password_env (with redis+sentinel)",
    "database (with redis+unix)",
];

pub(super) fn parse(url: &str, namespace: &str) -> Result<RedisOptions> {
    let mut parameters = UrlOptions::parse(url)?;
    let scheme = url.split(':').next().unwrap_or_default();
    let rest = parameters.path().strip_prefix("//").ok_or_else(|| invalid("write redis://host:port"))?.to_owned();
    let (tls, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
        ("redis" | "valkey", kind) => (None, kind),
        ("rediss" | "valkeys", kind) => (Some(Tls::default()), kind),
        ("unix", "") => (None, "unix"),
        _ => return Err(invalid("its scheme is redis, rediss, redis+unix, redis+sentinel or redis+cluster")),
    };
    let mut options = match kind {
        "unix" => on_socket(&rest, namespace)?,
        kind => on_network(&rest, kind, namespace)?,
    };
    options.tls = tls;
    read(&mut options, &mut parameters)?;
    parameters.finish(&PARAMETERS)?;
    Ok(options)
}

fn invalid(why: &str) -> Error {
    Error::invalid_config(format!("this redis URL cannot be used: {why}"))
}

fn on_socket(path: &str, namespace: &str) -> Result<RedisOptions> {
    let (userinfo, path) = path.rsplit_once('@').unwrap_or(("", path));
    let path = decoded(path)?;
    if !path.starts_with('/') {
        return Err(invalid("name the socket by its whole path: redis+unix:///run/redis.sock"));
    }
    let mut options = RedisOptions::new(vec![Address::Unix(path.into())], Topology::Single, namespace);
    read_userinfo(&mut options, userinfo)?;
    Ok(options)
}

fn on_network(rest: &str, kind: &str, namespace: &str) -> Result<RedisOptions> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (userinfo, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (topology, database, port) = match kind {
        "" => (Topology::Single, path, 6379),
        "cluster" if path.is_empty() || path == "0" => (Topology::Cluster, "", 6379),
        "cluster" => return Err(invalid("a cluster has no database but 0")),
        "sentinel" => {
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            if master.is_empty() {
                return Err(invalid("name the master: redis+sentinel://host,host/mymaster"));
            }
            (Topology::Sentinel { master: decoded(master)? }, database, 26379)
        }
        _ => return Err(invalid("after the + comes unix, sentinel or cluster")),
    };
    let servers = hosts.split(',').map(|host| address(host, port)).collect::<Result<Vec<_>>>()?;
    if topology == Topology::Single && servers.len() > 1 {
        return Err(invalid("several servers need redis+sentinel://, redis+cluster:// or redlock://"));
    }
    let mut options = RedisOptions::new(servers, topology, namespace);
    if !database.is_empty() {
        let number = "the database is a number, as in redis://host/0";
        options.database = database.parse().map_err(|_| invalid(number))?;
    }
    read_userinfo(&mut options, userinfo)?;
    Ok(options)
}

fn read_userinfo(options: &mut RedisOptions, userinfo: &str) -> Result<()> {
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    options.user = Some(decoded(user)?).filter(|user| !user.is_empty());
    options.password = Some(decoded(password)?).filter(|password| !password.is_empty());
    Ok(())
}

fn read(options: &mut RedisOptions, parameters: &mut UrlOptions) -> Result<()> {
    options.password = secret("password", parameters)?.or_else(|| options.password.take());
    if options.password.is_none() {
        options.password = env::var("REDISCLI_AUTH").ok().filter(|password| !password.is_empty());
    }
    if matches!(options.topology, Topology::Sentinel { .. }) {
        options.sentinel_user = parameters.take_text("sentinel_user");
        options.sentinel_password = secret("sentinel_password", parameters)?;
    }
    if matches!(options.servers.as_slice(), [Address::Unix(_)]) {
        options.database = parameters.take("database", "a number")?.unwrap_or(0);
    }
    if let Some(prefix) = parameters.take_with("prefix", "a text without braces or blanks", |text| {
        let fits = !text.contains(|c: char| c.is_control() || c.is_whitespace() || "{}".contains(c));
        fits.then(|| text.to_owned())
    })? {
        options.prefix = prefix;
    }
    if let Some(limit) = parameters.take_duration("answer_limit")? {
        if !(Duration::from_millis(10)..=Duration::from_secs(600)).contains(&limit) {
            return Err(invalid("answer_limit is 10ms to 600s, such as 500ms or 2s"));
        }
        options.answer_limit = limit;
    }
    let history = parameters.take_with("history", "all, problems or off", |text| match text {
        "all" => Some(HistoryLevel::All),
        "problems" => Some(HistoryLevel::Problems),
        "off" => Some(HistoryLevel::Off),
        _ => None,
    })?;
    let durability = parameters.take_with("durability", "none, replicas:N or aof", |text| {
        match (text, text.strip_prefix("replicas:").map(str::parse)) {
            ("none", _) => Some(Durability::None),
            ("aof", _) => Some(Durability::Aof),
            (_, Some(Ok(count @ 1..))) => Some(Durability::Replicas(count)),
            _ => None,
        }
    })?;
    options.history = history.unwrap_or(options.history);
    options.durability = durability.unwrap_or(options.durability);
    options.tls.as_mut().map_or(Ok(()), |tls| read_tls(tls, parameters))
}

fn read_tls(tls: &mut Tls, parameters: &mut UrlOptions) -> Result<()> {
    let mut pem = |name: &str| parameters.take_text(name).map(|path| read_file(name, &path)).transpose();
    tls.ca = pem("ca")?;
    tls.client_certificate = match (pem("cert")?, pem("key")?) {
        (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
        (None, None) => None,
        _ => return Err(invalid("cert= and key= belong together")),
    };
    Ok(())
}

/// The secret that a file or a variable of the environment has.
fn secret(name: &str, parameters: &mut UrlOptions) -> Result<Option<String>> {
    let (file, variable) = (format!("{name}_file"), format!("{name}_env"));
    if let Some(path) = parameters.take_text(&file) {
        let text = String::from_utf8(read_file(&file, &path)?)
            .map_err(|_| Error::invalid_config(format!("{file}={path} is not text")))?;
        return Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()));
    }
    parameters.take_with(&variable, "the name of a variable that is set", |name| env::var(name).ok())
}

fn read_file(name: &str, path: &str) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::invalid_config(format!("{name}={path} cannot be read")).caused_by(error))
}

fn address(text: &str, default_port: u16) -> Result<Address> {
    let malformed = || invalid("a server is written host:port or [ipv6]:port");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(malformed)?;
            (host, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None => default_port,
        Some(port) if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) => return Err(malformed()),
        Some(port) => {
            let port = port.parse().ok().filter(|port| *port != 0);
            port.ok_or_else(|| invalid("the port is 1 to 65535"))?
        }
    };
    let fits = |c: char| c.is_alphanumeric() || ".:-_%".contains(c);
    if !host.chars().all(fits) {
        return Err(malformed());
    }
    Ok(Address::Tcp { host: if host.is_empty() { String::from("localhost") } else { host.to_owned() }, port })
}

fn decoded(text: &str) -> Result<String> {
    let bytes = percent_decoded(text).ok_or_else(|| invalid("it has a bad %XX"))?;
    String::from_utf8(bytes).map_err(|_| invalid("it has a bad %XX"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn parse(url: &str) -> Result<RedisOptions> {
        RedisOptions::from_url(url, "default")
    }

    fn shown(url: &str) -> String {
        parse(url).unwrap().display_url()
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
        assert_eq!(shown("valkeys+sentinel://a/mine"), "rediss+sentinel://a:26379/mine");
        assert_eq!(shown("valkey://"), "redis://localhost:6379");
        for url in ["unix:///run/a%20b.sock?database=2", "redis+unix:///run/a%20b.sock?database=2"] {
            assert_eq!((shown(url).as_str(), parse(url).unwrap().database), ("redis+unix:///run/a b.sock", 2));
        }
        for (url, why) in [
            ("redis://127.0.0.1:99999", "the port is 1 to 65535"),
            ("redis://[::1]:0", "the port is 1 to 65535"),
            ("redis://host:", "host:port"),
            ("redis://host:port", "host:port"),
            ("redis://::1", "[ipv6]:port"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
        }
        assert!(parse("redis+unix://relative.sock").unwrap_err().to_string().contains("whole path"));
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
        assert!(parse("redis://host?password_env=LEASEHOLD_NO_SUCH").unwrap_err().to_string().contains("is set"));
    }

    #[test]
    fn parameters_are_read_and_unknown_ones_named() {
        let options = parse("redis://h?answer_limit=500ms&history=problems&durability=replicas:2").unwrap();
        assert_eq!(options.answer_limit, Duration::from_millis(500));
        assert_eq!((options.history, options.durability), (HistoryLevel::Problems, Durability::Replicas(2)));
        assert_eq!(parse("redis://h?prefix=app:locks:").unwrap().prefix, "app:locks:");
        assert!(parse("redis://h?prefix={a}").is_err());
        assert!(parse("redis://h?timeout=1").unwrap_err().to_string().contains("answer_limit"));
        assert!(parse("redis://h?ca=/etc/hostname").unwrap_err().to_string().contains("rediss"), "it needs rediss://");
        assert!(parse("rediss://h?cert=/etc/hostname").unwrap_err().to_string().contains("belong together"));
        assert_eq!(parse("redis+sentinel://h/m?sentinel_user=me").unwrap().sentinel_user.as_deref(), Some("me"));
        assert!(parse("redis://h?sentinel_user=me").unwrap_err().to_string().contains("redis+sentinel"));
    }
}
