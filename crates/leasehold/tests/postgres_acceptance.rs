//! What every user may rely on, on Postgres: one test for each promise, by name.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod postgres_schema;

use std::{fs, sync::Arc, thread, time::Duration};

use leasehold::{
    Attempt, ErrorKind, Holder, Leasehold, Resource, Ttl,
    backend::{Backend, Decision, Hint, Inspect, Renewal, Request},
    backends::postgres::{ClientConfig, PostgresBackend, PostgresOptions},
    blocking,
    clock::SystemClock,
    lease::{Claim, LeaseId, LeaseKey, LeaseState, ListFilter, Names, Outcome, Released, Standing},
};
use leasehold_testkit::{Flow, Proxy, postgres::Postgres};
use postgres_schema::install_schema;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

fn options(url: &str, namespace: &str) -> PostgresOptions {
    PostgresOptions::from_url(url, namespace, Arc::new(SystemClock), Duration::from_secs(10)).unwrap()
}

/// The shared server with the schema.
fn prepared() -> Arc<Postgres> {
    let server = Postgres::shared();
    install_schema(&server.url(), None).unwrap();
    server
}

async fn backend(url: &str, namespace: &str) -> PostgresBackend {
    PostgresBackend::open(options(url, namespace)).await.unwrap()
}

fn request(name: &str, ttl: Duration) -> Request {
    Request::new(LeaseKey::new(Resource::new(name).unwrap(), LeaseId::random()), Claim::EXCLUSIVE, Holder::unique())
        .ttl(Ttl::new(ttl).unwrap())
}

async fn soon(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..2000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 10 s: {what}");
}

/// 19: asking again with the same key after a dropped reply returns the same lease.
#[tokio::test(flavor = "multi_thread")]
async fn asking_again_after_a_dropped_reply_returns_the_same_lease() {
    let server = prepared();
    for liveness in ["ttl", "connection"] {
        let space = format!("dropped-reply.{liveness}");
        let proxy = Proxy::to(server.port());
        let way = server.url().replace(&server.port().to_string(), &proxy.port().to_string());
        let cut_off = backend(&format!("{way}?liveness={liveness}"), &space).await;
        let truth = backend(&server.url(), &space).await;
        // Twice before, so that nothing is left to be prepared.
        for _ in 0..2 {
            let before = request("before", Duration::from_secs(60));
            cut_off.acquire(&before).await.unwrap();
            cut_off.release(&before.key, &Outcome::Completed).await.unwrap();
        }
        let asked = request("x", Duration::from_secs(60));
        proxy.to_client(Flow::Swallow);
        let all = ListFilter::new(Names::All);
        let seen = soon("the request is carried out", async || truth.list(&all).await.unwrap().leases.len() == 1);
        tokio::select! {
            answer = cut_off.acquire(&asked) => panic!("the reply was dropped, and yet: {answer:?}"),
            () = seen => {}
        }
        let waits = tokio::time::timeout(Duration::from_millis(50), cut_off.acquire(&asked)).await;
        assert!(waits.is_err(), "the reply is dropped: {waits:?}");
        let held = truth.list(&all).await.unwrap().leases;
        let [lease] = held.as_slice() else { panic!("{held:?}") };
        let LeaseState::Holding { fence, .. } = lease.state else { panic!("{lease:?}") };
        // By another way, as after a reconnection. What ends with a connection must be asked for by the same instance.
        let again = if liveness == "ttl" {
            truth.acquire(&asked).await.unwrap().value
        } else {
            proxy.mend();
            // What was swallowed never comes: the call is given up, and made again.
            let mut answer = cut_off.acquire(&asked).await;
            while answer.is_err() {
                answer = cut_off.acquire(&asked).await;
            }
            answer.unwrap().value
        };
        match again {
            Decision::Granted(grant) => assert_eq!(grant.fence, fence, "{liveness}"),
            other => panic!("{liveness}: {other:?}"),
        }
        assert_eq!(
            truth.list(&all).await.unwrap().leases.len(),
            1,
            "{liveness}: one lease, however often it was asked for"
        );
        assert_eq!(truth.release(&asked.key, &Outcome::Completed).await.unwrap().value, Released::Freed);
    }
}

/// 20: nothing is granted to a waiter that has lapsed, however the holder ends.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_granted_to_a_lapsed_waiter() {
    let server = prepared();
    let backend = backend(&server.url(), "lapsed-waiter").await;
    let mut hints = backend.hints();
    let mut last = Vec::new();
    for ending in ["release", "evict", "expire"] {
        let ttl = Duration::from_secs(if ending == "expire" { 1 } else { 60 });
        let holder = request(ending, ttl);
        let lapsing = request(ending, Duration::from_millis(200));
        let next = request(ending, Duration::from_secs(60));
        last.push(next.key.id);
        let Decision::Granted(held) = backend.acquire(&holder).await.unwrap().value else { panic!("it is free") };
        for waiter in [&lapsing, &next] {
            assert!(matches!(backend.acquire(waiter).await.unwrap().value, Decision::Queued(_)));
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
        match ending {
            "release" => drop(backend.release(&holder.key, &Outcome::Completed).await.unwrap()),
            "evict" => drop(backend.evict(&holder.key.resource, held.fence, "test").await.unwrap()),
            _ => tokio::time::sleep(Duration::from_millis(800)).await,
        }
        let renewals = [&lapsing, &next].map(|waiter| Renewal::new(waiter.key.clone(), waiter.ttl));
        // A row that somebody has for the moment is not waited for: its standing is found out by asking again.
        let standings = loop {
            let standings = backend.renew(&renewals).await.unwrap().value;
            if !standings.contains(&Standing::Unknown) {
                break standings;
            }
        };
        assert_eq!(standings[0], Standing::Gone, "{ending}");
        assert!(matches!(standings[1], Standing::Holding(_)), "{ending}: {standings:?}");
        let lapsed =
            server.psql(&format!("select ending, fence is null from leasehold.ended where id = '{}'", uuid(&lapsing)));
        assert_eq!(lapsed, "expired|t", "{ending}: it never held");
    }
    // Nor was one told that it holds: of each three, the last alone.
    drop(backend);
    let mut told = Vec::new();
    while let Some(hint) = hints.next().await {
        if let Hint::Granted { id, .. } = hint {
            told.push(id);
        }
    }
    assert!(!told.is_empty() && told.iter().all(|id| last.contains(id)), "{told:?}");
}

fn uuid(request: &Request) -> String {
    uuid::Uuid::from_u128(request.key.id.as_u128()).to_string()
}

/// 33: busy names the holder, its note and since when, whatever the primitive.
#[test]
fn busy_names_the_holder() {
    let server = prepared();
    for liveness in ["ttl", "connection"] {
        let url = format!("{}?liveness={liveness}", server.url());
        let connect = |holder: &str| {
            let made = Leasehold::builder().namespace(format!("busy.{liveness}")).holder(Holder::new(holder).unwrap());
            blocking::wait(made.connect(&url)).unwrap()
        };
        let (ada, bob) = (connect("ada"), connect("bob"));
        let _mutex = blocking::wait(ada.mutex("m").note("release 4.2").acquire()).unwrap();
        let _reader = blocking::wait(ada.read("r").acquire()).unwrap();
        let _second = blocking::wait(ada.read("r").acquire()).unwrap();
        let _permit = blocking::wait(ada.semaphore("s", 1).acquire()).unwrap();
        // Long enough to hear of the holder on a busy machine: until then, whether it was granted is not known.
        let wait = Duration::from_secs(3);
        let (mutex, writer, permit) =
            (bob.mutex("m").wait(wait), bob.mutex("r").wait(wait), bob.semaphore("s", 1).wait(wait));
        let refused = [
            thread::spawn(move || blocking::wait(mutex.acquire()).unwrap_err()),
            thread::spawn(move || blocking::wait(writer.acquire()).unwrap_err()),
            thread::spawn(move || blocking::wait(permit.acquire()).unwrap_err()),
        ];
        for error in refused.map(|refused| refused.join().unwrap()) {
            assert_eq!(error.kind(), ErrorKind::WaitElapsed);
            assert!(error.to_string().contains("ada"), "{liveness}: {error}");
        }
        let Attempt::Busy(busy) = blocking::wait(bob.mutex("m").try_acquire_or_busy()).unwrap() else {
            panic!("it is held")
        };
        assert_eq!((busy.holders[0].holder.as_str(), busy.holders[0].note.as_deref()), ("ada", Some("release 4.2")));
        assert!(busy.holders[0].fence.get() > 0 && busy.holders[0].held_for > Duration::ZERO);
    }
}

#[test]
fn a_server_that_encrypts_is_verified_as_the_url_asks() {
    let server = Postgres::start_encrypted();
    let file = |name: &str| server.path(name).display().to_string();
    install_schema(&server.url(), None).unwrap();
    // Without encryption nobody is let in from now on.
    let rules = server.psql("show hba_file");
    let open = fs::read_to_string(&rules).unwrap();
    fs::write(&rules, open.replace("host ", "hostssl ")).unwrap();
    server.psql("select pg_reload_conf()");

    let by_name = server.url().replace("127.0.0.1", "localhost");
    let trusted = format!("sslrootcert={}", file("ca.crt"));
    for (url, query) in [
        (&by_name, format!("sslmode=verify-full&{trusted}")),
        (&by_name, format!("sslmode=require&{trusted}")),
        (&by_name, format!("sslmode=verify-full&{trusted}&liveness=connection")),
        (&server.url(), String::new()),
    ] {
        let locks = blocking::wait(Leasehold::connect(&format!("{url}?{query}"))).unwrap();
        let guard = blocking::wait(locks.mutex("x").acquire()).unwrap();
        let plain = "select count(*) filter (where not ssl), count(*) > 0 from pg_stat_ssl join pg_stat_activity using (pid) \
                     where application_name = 'leasehold'";
        assert_eq!(server.psql(plain), "0|t", "{query}: all is encrypted");
        blocking::wait(guard.release()).unwrap();
    }
    let stranger = format!("sslrootcert={}", file("other.crt"));
    for (url, query, word) in [
        (&by_name, format!("sslmode=verify-full&{stranger}"), "certificate"),
        (&by_name, format!("sslmode=require&{stranger}&liveness=connection"), "certificate"),
        (&server.url(), format!("sslmode=verify-full&{trusted}"), "certificate"),
        (&by_name, String::from("sslmode=disable"), "no pg_hba.conf entry"),
    ] {
        let error = blocking::wait(Leasehold::connect(&format!("{url}?{query}"))).unwrap_err();
        assert!(error.to_string().contains(word), "{query}: {error}");
    }
    let error = blocking::wait(Leasehold::connect(&format!("{by_name}?sslrootcert=/nowhere"))).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("/nowhere"), "{error}");
}

#[test]
fn a_tls_configuration_of_the_program_decides_whom_to_trust() {
    let server = Postgres::start_encrypted();
    install_schema(&server.url(), None).unwrap();
    let url = server.url().replace("127.0.0.1", "localhost");
    for (authority, is_trusted) in [("ca.crt", true), ("other.crt", false)] {
        let mut trusted = RootCertStore::empty();
        trusted.add(CertificateDer::from_pem_file(server.path(authority)).unwrap()).unwrap();
        let tls = ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
        let opened = blocking::wait(PostgresBackend::open(options(&url, "default").tls_config(Arc::new(tls))));
        assert_eq!(opened.is_ok(), is_trusted, "{authority}: {:?}", opened.err());
    }
}

/// Someone who guards a transaction may take long; what it relies on is renewed all the while.
#[test]
fn renewals_pass_a_guarded_transaction_of_their_own_lease_also_for_one_that_waited() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = prepared();
    let builder = || Leasehold::builder().namespace("guarded-renewals");
    let (one, two) = (
        blocking::wait(builder().connect(&server.url())).unwrap(),
        blocking::wait(builder().connect(&server.url())).unwrap(),
    );
    let ttl = Duration::from_secs(3);
    let first = blocking::wait(one.mutex("x").ttl(ttl).acquire()).unwrap();
    let waiter = {
        let two = two.clone();
        thread::spawn(move || blocking::wait(two.mutex("x").ttl(ttl).acquire()).unwrap())
    };
    runtime.block_on(soon("it waits", async || {
        server.psql("select waiting from leasehold.resource where namespace = 'guarded-renewals'") == "1"
    }));
    blocking::wait(first.release()).unwrap();
    let guard = waiter.join().unwrap();
    let mut writer = server.client("postgres");
    let sql = format!(
        "begin; select leasehold.guard('x', {}, 'guarded-renewals'); select pg_sleep(5); commit",
        guard.fence().get()
    );
    let mut writer = writer.args(["-c", &sql]).stdout(std::process::Stdio::null()).spawn().unwrap();
    while writer.try_wait().unwrap().is_none() {
        guard.check().unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    assert!(writer.wait().unwrap().success());
    guard.check().unwrap();
    blocking::wait(guard.release()).unwrap();
}

#[test]
fn a_socket_in_the_file_system_will_do() {
    let server = prepared();
    for liveness in ["ttl", "connection"] {
        let url = format!("{}?liveness={liveness}", server.url_by_socket());
        let (one, two) =
            (blocking::wait(Leasehold::connect(&url)).unwrap(), blocking::wait(Leasehold::connect(&url)).unwrap());
        let guard = blocking::wait(one.mutex("by socket").acquire()).unwrap();
        assert!(blocking::wait(two.mutex("by socket").try_acquire()).unwrap().is_none());
        let findings = blocking::wait(one.examine()).unwrap();
        assert!(findings.iter().all(|finding| finding.subject != "keepalives"), "nobody vanishes here: {findings:?}");
        // What the lease ends with can be inherited.
        assert_eq!(one.backend().inheritable().is_some(), liveness == "connection");
        blocking::wait(guard.release()).unwrap();
    }
}

#[test]
fn a_client_certificate_lets_in_where_the_server_asks_for_one() {
    let server = Postgres::start_encrypted();
    let url = format!(
        "postgres://postgres@localhost:{}/postgres?init=1&sslrootcert={}",
        server.port(),
        server.path("ca.crt").display()
    );
    blocking::wait(Leasehold::connect(&url)).unwrap();
    fs::write(server.path("data/pg_hba.conf"), "local all all trust\nhostssl all all all cert\n").unwrap();
    let reload = format!("host={} port={} user=postgres", server.path("").display(), server.port());
    let reloaded = std::process::Command::new(leasehold_testkit::postgres::program("psql"))
        .args(["-X", "-q", "-d", &reload, "-c", "select pg_reload_conf()"])
        .status();
    assert!(reloaded.unwrap().success());
    leasehold_testkit::until(|| {
        blocking::wait(Leasehold::connect(&url)).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    });
    let [chain, key] = ["client.crt", "client.key"].map(|file| server.path(file).display().to_string());
    let locks = blocking::wait(Leasehold::connect(&format!("{url}&sslcert={chain}&sslkey={key}"))).unwrap();
    blocking::wait(blocking::wait(locks.mutex("x").acquire()).unwrap().release()).unwrap();
    let error = blocking::wait(Leasehold::connect(&format!("{url}&sslcert={chain}&sslkey={chain}"))).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("sslkey"), "{error}");
}
