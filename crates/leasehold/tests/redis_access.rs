//! Who may reach a Redis server, what is said when it cannot be reached, and what a lost reply means.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{fs, path::Path, process::Command, sync::Arc, time::Duration};

use leasehold::{
    Error, ErrorKind, Holder, Leasehold, Resource, Ttl,
    backend::{Backend, Decision, Patience, Renewal, Request, Severity},
    backends::redis::{RedisBackend, RedisOptions},
    clock::{Clock, SystemClock},
    lease::{Claim, HistoryFilter, LeaseId, LeaseKey, ListFilter, Names, Standing},
};
use leasehold_testkit::{
    Flow, Proxy,
    redis::{Sentinel, Server},
};
use tempfile::TempDir;
use tokio::runtime::Handle;

async fn refused(url: &str) -> Error {
    let builder = Leasehold::builder().connect_limit(Duration::from_millis(1500));
    let before = SystemClock.now();
    let error = builder.connect(url).await.expect_err("it must not connect");
    let took = SystemClock.now().since(before);
    assert!(took < Duration::from_secs(2), "{error} took {took:?}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "the password is shown: {error}");
    error
}

async fn works(locks: &Leasehold) {
    let guard = locks.mutex("x").acquire().await.unwrap();
    let other = locks.semaphore("s", 3).acquire().await.unwrap();
    assert_eq!(locks.list(&ListFilter::new(Names::All)).await.unwrap().leases.len(), 2);
    guard.release().await.unwrap();
    other.release().await.unwrap();
    assert_eq!(locks.history(&HistoryFilter::new(Names::All)).await.unwrap().len(), 2);
}

#[tokio::test]
async fn an_unreachable_server_is_said_to_be_within_the_limit() {
    let port = {
        let mut server = Server::start();
        server.kill();
        server.port()
    };
    let error = refused(&format!("redis://me:hunter2@127.0.0.1:{port}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");

    let server = Server::start();
    let proxy = Proxy::to(server.port());
    proxy.to_client(Flow::Swallow);
    let error = refused(&format!("redis://:hunter2@127.0.0.1:{}", proxy.port())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let words = "did not answer within 1.4s; does a Redis server listen on that port?";
    assert!(error.to_string().contains(words), "{error}");
    assert_eq!(refused("redis+sentinel://127.0.0.1:1/mine").await.kind(), ErrorKind::Unavailable);
    assert_eq!(refused("redis+cluster://127.0.0.1:1").await.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_server_that_speaks_another_protocol_is_suspected() {
    // As Postgres does with what is not its protocol.
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = stranger.local_addr().unwrap().port();
    std::thread::spawn(move || stranger.incoming().for_each(drop));
    let error = refused(&format!("redis://127.0.0.1:{port}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("does a Redis server listen on that port?"), "{error}");

    let without_tls = Server::start();
    let error = refused(&format!("rediss://127.0.0.1:{}", without_tls.port())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("does the server speak TLS? otherwise redis://"), "{error}");
}

#[tokio::test]
async fn a_database_that_the_server_does_not_have_is_a_mistake_in_the_url() {
    let server = Server::start();
    let error = refused(&format!("redis://127.0.0.1:{}/99", server.port())).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("name a database that the server has"), "{error}");
}

#[tokio::test]
async fn a_password_is_asked_for_and_given() {
    let server = Server::with(&["--save", "", "--requirepass", "hunter2"]);
    let at = format!("127.0.0.1:{}", server.port());
    let kinds = [format!("redis://{at}"), format!("redis://:wrong@{at}"), format!("redis://me:hunter2@{at}")];
    for url in kinds.into_iter().chain([format!("redis+cluster://{at}"), format!("redis+cluster://:wrong@{at}")]) {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("password_file="), "it says what to do: {error}");
        assert!(!error.to_string().contains(".;"), "one sentence: {error}");
        let is_wrong = url.contains(":wrong@") || url.contains("me:");
        let words =
            if is_wrong { " refused this user or password (WRONGPASS); " } else { " asks for a password (NOAUTH); " };
        assert!(error.to_string().contains(words) && !error.to_string().contains("HELLO"), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, "hunter2\n").unwrap();
    for url in [format!("redis://:hunter2@{at}"), format!("redis://{at}?password_file={}", file.display())] {
        let locks = Leasehold::connect(&url).await.unwrap();
        locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
        assert!(!format!("{locks:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn a_user_limited_to_the_prefix_can_do_everything() {
    let server = Server::start();
    let user = ["ACL", "SETUSER", "locks", "on", ">hunter2", "resetkeys", "~leasehold:*", "resetchannels"];
    server.ask(&[&user[..], &["&leasehold:*", "+@all", "-@dangerous", "-@admin"]].concat());
    server.ask(&["ACL", "SETUSER", "nobody", "on", ">hunter2", "~other:*", "resetchannels", "+@all"]);
    let locks = Leasehold::connect(&format!("redis://locks:hunter2@127.0.0.1:{}", server.port())).await.unwrap();
    works(&locks).await;
    let _events = locks.watch(Names::All).await.unwrap();
    let (first, second) = (locks.mutex("q").acquire().await.unwrap(), locks.mutex("q"));
    let second = Handle::current().spawn(async move { second.acquire().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    first.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
    let findings = locks.examine().await.unwrap();
    let rights = findings.iter().find(|finding| finding.subject == "rights").unwrap();
    assert_eq!(rights.severity, Severity::Ok, "{}", rights.message);

    let error = refused(&format!("redis://nobody:hunter2@127.0.0.1:{}", server.port())).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("leasehold:*"), "it says what to allow: {error}");
    let error = refused(&format!("redis://nobody:hunter2@127.0.0.1:{}?prefix=app:", server.port())).await;
    assert!(error.to_string().contains("the keys ~app:* and channels &app:*"), "it says what to allow: {error}");
}

#[tokio::test]
async fn the_rights_in_the_guide_are_enough() {
    let guide = include_str!("../../../docs/redis.md");
    let line = guide.lines().find_map(|line| line.strip_prefix("$ redis-cli ACL ")).unwrap();
    let server = Server::start();
    let words = line.split(' ').map(|word| word.trim_matches('\'')).collect::<Vec<_>>();
    server.command(&[&["ACL"], &words[..]].concat());
    let locks = Leasehold::connect(&format!("redis://locks:secret@127.0.0.1:{}", server.port())).await.unwrap();
    works(&locks).await;
    for finding in locks.examine().await.unwrap() {
        assert!(!matches!(finding.subject.as_str(), "settings"), "{}", finding.message);
        assert_ne!(finding.severity, Severity::Failure, "{}", finding.message);
    }
}

#[tokio::test]
async fn leases_that_were_renewed_are_known_if_others_of_the_call_were_not() {
    let server = Server::start();
    let backend = RedisBackend::open(RedisOptions::from_url(&server.url(), "t").unwrap()).await.unwrap();
    let (plain, changed) = (request("plain"), request("changed"));
    for request in [&plain, &changed] {
        backend.acquire(request).await.unwrap();
    }
    // All keys but those of entries, which only the full script names.
    let keys = ["leases", "history", "fence", "index"].map(|key| format!("~leasehold:{{t}}:{key}"));
    let user = ["ACL", "SETUSER", "partly", "on", ">hunter2", "+@all", "allchannels"];
    server.command(&user.into_iter().chain(keys.iter().map(String::as_str)).collect::<Vec<_>>());
    let url = format!("redis://partly:hunter2@127.0.0.1:{}", server.port());
    let limited = RedisBackend::open(RedisOptions::from_url(&url, "t").unwrap()).await.unwrap();
    let of_plain = Renewal::new(plain.key.clone(), plain.ttl);
    let mut of_changed = Renewal::new(changed.key.clone(), changed.ttl);
    of_changed.metadata = Some(changed.metadata.clone());
    let standings = limited.renew(&[of_plain, of_changed.clone()]).await.unwrap().value;
    assert!(matches!(standings[..], [Standing::Holding(_), Standing::Unknown]), "{standings:?}");
    let error = limited.renew(&[of_changed]).await.expect_err("no lease was renewed");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

#[tokio::test]
async fn a_replica_is_refused_with_what_to_do() {
    let master = Server::start();
    let replica = Server::with(&["--save", "", "--replicaof", "127.0.0.1", &master.port().to_string()]);
    let locks = Leasehold::connect(&replica.url()).await.unwrap();
    let error = locks.mutex("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("redis+sentinel://"), "{error}");
}

#[tokio::test]
async fn doctor_names_what_endangers_locks() {
    let server = Server::with(&["--save", "", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let locks = Leasehold::connect(&server.url()).await.unwrap();
    let findings = locks.examine().await.unwrap();
    let told = |subject: &str| findings.iter().find(|finding| finding.subject == subject).expect("it is looked at");
    assert_eq!(told("eviction").severity, Severity::Failure);
    assert!(told("eviction").message.contains("noeviction"));
    assert_eq!(told("persistence").severity, Severity::Warning);
    for subject in ["reachable", "clock offset", "version", "memory", "replication", "rights"] {
        assert_eq!(told(subject).severity, Severity::Ok, "{}", told(subject).message);
    }
    let recorded = locks.history(&HistoryFilter::new(Names::All)).await.unwrap();
    assert!(recorded.is_empty(), "what doctor tries is recorded: {recorded:?}");
}

#[tokio::test]
async fn sentinels_have_a_password_of_their_own() {
    let sentinel = Sentinel::protected("hunter2", "hunter2-of-sentinels");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, "hunter2-of-sentinels\n").unwrap();
    let url = |password: &str, query: &str| {
        format!("redis+sentinel://:{password}@127.0.0.1:{}/mymaster?{query}", sentinel.port())
    };
    let given = format!("sentinel_password_file={}", file.display());

    let error = refused(&url("hunter2", "")).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("sentinel_password_file="), "it says what to do: {error}");
    let error = refused(&url("wrong", &given)).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(
        !error.to_string().contains("sentinel_password_file="),
        "the sentinel knew us, the server did not: {error}"
    );

    let locks = Leasehold::connect(&url("hunter2", &given)).await.unwrap();
    works(&locks).await;
    assert!(!format!("{locks:?}").contains("hunter2"));
    let guard = locks.mutex("x").acquire().await.unwrap();
    let before = sentinel.master();
    sentinel.replicated();
    sentinel.fail_over();
    while sentinel.master() == before {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let next = locks.mutex("y").wait(Duration::from_secs(10)).acquire().await.unwrap();
    next.release().await.unwrap();
    guard.check().expect("the replica had it");
    guard.release().await.unwrap();
}

/// A server that speaks TLS, and the folder of its certificates.
struct Protected {
    folder: TempDir,
    port: String,
    _server: Server,
}

impl Protected {
    fn start(clients: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        certificates(folder.path());
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (cert, key, ca) = (file("server.crt"), file("server.key"), file("ca.crt"));
        let port = Proxy::to(1).port().to_string();
        let settings = ["--save", "", "--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key];
        let server =
            Server::with(&[&settings[..], &["--tls-ca-cert-file", &ca, "--tls-auth-clients", clients]].concat());
        Self { folder, port, _server: server }
    }

    fn url(&self, files: &[(&str, &str)]) -> String {
        let named = |(name, file): &(&str, &str)| format!("{name}={}", self.folder.path().join(file).display());
        let files: Vec<String> = files.iter().map(named).collect();
        format!("rediss://127.0.0.1:{}?{}", self.port, files.join("&"))
    }
}

#[tokio::test]
async fn a_protected_connection_trusts_whom_it_is_told_to() {
    let server = Protected::start("no");
    works(&Leasehold::connect(&server.url(&[("ca", "ca.crt")])).await.unwrap()).await;
    assert_eq!(refused(&server.url(&[])).await.kind(), ErrorKind::Unavailable);
    assert_eq!(refused(&format!("redis://127.0.0.1:{}", server.port)).await.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_server_that_wants_to_know_its_clients_is_shown_a_certificate() {
    let server = Protected::start("yes");
    let known = [("ca", "ca.crt"), ("cert", "client.crt"), ("key", "client.key")];
    works(&Leasehold::connect(&server.url(&known)).await.unwrap()).await;
    for unknown in [&known[..1], &[known[0], ("cert", "stranger.crt"), ("key", "stranger.key")]] {
        assert_eq!(refused(&server.url(unknown)).await.kind(), ErrorKind::Unavailable, "{unknown:?}");
    }
    let mixed = [known[0], known[1], ("key", "ca.crt")];
    let error = refused(&server.url(&mixed)).await;
    assert!(!error.to_string().contains("BEGIN"), "{error}");
}

/// A root, a server and a client that it vouches for, and a stranger that vouches for itself.
fn certificates(folder: &Path) {
    let script = "
        openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -keyout ca.key -out ca.crt
        printf 'subjectAltName=IP:127.0.0.1,DNS:localhost' > ext
        for name in server client; do
            openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout $name.key -out $name.csr
            openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out $name.crt
        done
        openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=stranger -keyout stranger.key -out stranger.crt
    ";
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn request(name: &str) -> Request {
    Request::new(
        LeaseKey::new(Resource::new(name).unwrap(), LeaseId::random()),
        Claim::EXCLUSIVE,
        Holder::new("alice@web-3").unwrap(),
    )
    .ttl(Ttl::new(Duration::from_secs(30)).unwrap())
    .patience(Patience::Try)
    .note(String::from("nightly"))
}

#[tokio::test]
async fn asking_again_after_a_lost_reply_gives_the_same_lease() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let url = format!("redis://127.0.0.1:{}?answer_limit=300ms", proxy.port());
    let backend: Arc<dyn Backend> = RedisBackend::open(RedisOptions::from_url(&url, "t").unwrap()).await.unwrap();
    backend.acquire(&request("known-script")).await.unwrap();
    let request = request("x");
    proxy.to_client(Flow::Swallow);
    let error = backend.acquire(&request).await.unwrap_err();
    assert!(error.outcome_unknown(), "it was sent: {error}");
    let fence = stored_fence(&server, "leasehold:{t}:leases", "x");
    proxy.mend();
    let Decision::Granted(grant) = backend.acquire(&request).await.unwrap().value else { panic!("it is ours") };
    assert_eq!(grant.fence.to_string(), fence, "the first ask was granted, the second tells the same");
    let listed = backend.list(&ListFilter::new(Names::All)).await.unwrap();
    assert_eq!(listed.leases.len(), 2);
}

/// The fence in the record of a lone holder.
fn stored_fence(server: &Server, leases: &str, name: &str) -> String {
    server.ask(&["HGET", leases, name]).to_string()[68..84].to_owned()
}

#[tokio::test]
async fn an_acquire_whose_reply_was_dropped_gets_the_lease_it_was_granted() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let url = format!("redis://127.0.0.1:{}?answer_limit=300ms", proxy.port());
    let locks = Leasehold::connect(&url).await.unwrap();
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    proxy.to_client(Flow::Swallow);
    let lock = locks.mutex("x");
    let asking = Handle::current().spawn(async move { lock.acquire().await });
    while server.ask(&["HEXISTS", "leasehold:{default}:leases", "x"]).to_string() == "0" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let fence = stored_fence(&server, "leasehold:{default}:leases", "x");
    proxy.mend();
    let guard = tokio::time::timeout(Duration::from_secs(10), asking).await.expect("it asks again").unwrap().unwrap();
    assert_eq!(guard.fence().to_string(), fence, "granted once, told twice");
    guard.release().await.unwrap();
    let ended = locks.history(&HistoryFilter::new(Names::Exactly(Resource::new("x").unwrap()))).await.unwrap();
    assert_eq!(ended.len(), 1, "there never was another: {ended:?}");
}

#[tokio::test]
async fn a_server_that_is_gone_is_unavailable_and_one_that_is_mute_is_unknown() {
    let mut server = Server::start();
    let proxy = Proxy::to(server.port());
    let url = format!("redis://127.0.0.1:{}?answer_limit=300ms", proxy.port());
    let backend = RedisBackend::open(RedisOptions::from_url(&url, "t").unwrap()).await.unwrap();
    proxy.to_server(Flow::Swallow);
    assert_eq!(backend.acquire(&request("x")).await.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    proxy.mend();
    backend.acquire(&request("x")).await.expect("a new connection is made");
    assert!(backend.age().is_some_and(|age| age < Duration::from_secs(60)));
    server.kill();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let error = backend.acquire(&request("y")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.launch();
    // The proxy may pass on once more that the old server is gone.
    let mut back = backend.acquire(&request("z")).await;
    for _ in 0..100 {
        if back.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        back = backend.acquire(&request("z")).await;
    }
    back.expect("it comes back by itself");
}

#[tokio::test]
async fn a_busy_lock_names_its_holder() {
    let server = Server::start();
    let locks = Leasehold::builder().holder(Holder::new("alice@web-3").unwrap()).connect(&server.url()).await.unwrap();
    let _guard = locks.mutex("x").note("nightly").acquire().await.unwrap();
    let others = Leasehold::connect(&server.url()).await.unwrap();
    let error = others.mutex("x").wait(Duration::from_secs(2)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitElapsed);
    assert!(error.to_string().contains("alice@web-3") && error.to_string().contains("nightly"), "{error}");
    assert_eq!(error.holders()[0].holder.as_str(), "alice@web-3");
}
