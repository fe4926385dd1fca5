//! The command on a Postgres server: init, as on a directory, cut off, killed.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on fails, on real time")]

mod sandbox;

use std::{
    env, fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use leasehold_testkit::{
    Flow, Proxy,
    postgres::{Postgres, pretended_schema_version, program},
};
use rustix::process::Signal;
use sandbox::{Ran, Running, Sandbox, on_any_backend, read_soon, until};

fn on(sandbox: &Sandbox, url: &str, args: &[&str]) -> Command {
    let mut command = sandbox.bare(args);
    command.env("LEASEHOLD_URL", url);
    command
}

fn run(sandbox: &Sandbox, url: &str, args: &[&str]) -> Ran {
    Ran::of(on(sandbox, url, args))
}

/// A database of its own on the shared server.
fn database(server: &Postgres, name: &str) -> String {
    server.psql(&format!("create database {name}"));
    server.url_of("postgres", name)
}

/// The same, with the schema.
fn prepared(sandbox: &Sandbox, server: &Postgres, name: &str) -> String {
    let url = database(server, name);
    run(sandbox, &url, &["init"]).assert_code(0);
    url
}

fn psql(url: &str, sql: &str) -> String {
    let mut command = Command::new(program("psql"));
    command.args(["-XqAt", "-v", "ON_ERROR_STOP=1", url, "-c", sql]);
    let ran = Ran::of(command);
    ran.assert_code(0);
    ran.stdout.trim_end().to_owned()
}

/// So many, unless the environment asks for more.
fn times(variable: &str, usually: usize) -> usize {
    env::var(variable).map_or(usually, |times| times.parse().unwrap())
}

#[test]
fn init_prepares_a_database_once_also_when_two_do_at_once() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = database(&server, "init_twice");
    let unprepared = run(&sandbox, &url, &["run", "x", "--", "true"]);
    unprepared.assert_code(78);
    let by_flag = Ran::of(sandbox.bare(&["-b", &url, "run", "x", "--", "true"]));
    for ran in [unprepared, by_flag] {
        assert!(ran.stderr.ends_with(&format!("leasehold:   leasehold -b {url} init\n")), "{ran:?}");
    }

    let piped = || {
        let mut command = on(&sandbox, &url, &["init", "--json", "--expose", "public"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::of(command)
    };
    let both = [piped(), piped()].map(Running::finish);
    let before = both.map(|ran| {
        ran.assert_code(0);
        ran.json()["before"].as_i64().unwrap()
    });
    assert_eq!(before.iter().filter(|version| **version == 0).count(), 1, "one installs, the other finds it done");

    let again = run(&sandbox, &url, &["init"]);
    again.assert_code(0);
    assert!(again.stdout.starts_with("ready already, version "), "{again:?}");
    run(&sandbox, &url, &["run", "x", "--", "true"]).assert_code(0);

    // Where unqualified callers look, with named arguments.
    assert_eq!(psql(&url, "select acquire_lock(p_holder_id => 'a', p_lock_name => 'job', p_ttl_seconds => 60)"), "t");
    let busy = run(&sandbox, &url, &["run", "-n", "job", "--", "true"]);
    busy.assert_code(75);
    assert!(busy.stderr.contains("job is held by a"), "{busy:?}");
    assert_eq!(psql(&url, "select lock_name, holder_id from distributed_locks"), "job|a");
    assert_eq!(psql(&url, "select release_lock(p_lock_name => 'job', p_holder_id => 'a')"), "t");
}

#[test]
fn a_database_that_is_not_there_is_told_with_what_to_do() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let refused = run(&sandbox, &server.url_of("postgres", "nonesuch"), &["list"]);
    refused.assert_code(78);
    assert!(refused.stderr.contains("[3D000] (create it, or correct its name in the URL)"), "{refused:?}");
}

#[test]
fn printed_statements_make_the_same_schema_as_init() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let (made, printed) = (database(&server, "init_made"), database(&server, "init_printed"));
    run(&sandbox, &made, &["init", "--expose", "public"]).assert_code(0);
    let statements = run(&sandbox, &printed, &["init", "--expose", "public", "--print-sql"]);
    statements.assert_code(0);
    let text = sandbox.path("init.sql");
    fs::write(&text, &statements.stdout).unwrap();
    let mut command = Command::new(program("psql"));
    command.args(["-Xq", "-v", "ON_ERROR_STOP=1", &printed, "-f"]).arg(&text);
    Ran::of(command).assert_code(0);
    let dump = |url: &str| {
        let mut command = Command::new(program("pg_dump"));
        command.args(["--schema-only", url]);
        let ran = Ran::of(command);
        ran.assert_code(0);
        // A token that differs from dump to dump.
        let lines: Vec<String> =
            ran.stdout.lines().filter(|line| !line.contains("restrict ")).map(str::to_owned).collect();
        lines.join("\n")
    };
    assert_eq!(dump(&made), dump(&printed));
    run(&sandbox, &printed, &["run", "x", "--", "true"]).assert_code(0);
}

#[test]
fn a_lease_tied_to_a_process_ends_with_it() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = prepared(&sandbox, &server, "tied");
    for liveness in ["ttl", "connection"] {
        let url = format!("{url}?liveness={liveness}");
        let mut running = sandbox.tied(&url, "--ttl 10m", "exec sleep 999");
        run(&sandbox, &url, &["run", "-n", "x", "--", "true"]).assert_code(75);
        running.signal(Signal::KILL);
        running.wait();
        run(&sandbox, &url, &["run", "-w", "20s", "x", "--", "true"]).assert_code(0);
    }
}

#[test]
fn a_newer_schema_is_used_as_long_as_it_says_so() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = prepared(&sandbox, &server, "init_newer");
    psql(&url, &pretended_schema_version(1000, 1));
    run(&sandbox, &url, &["run", "x", "--", "true"]).assert_code(0);
    run(&sandbox, &url, &["check", "x", "--succeeded-within", "1h"]).assert_code(0);
    run(&sandbox, &url, &["check", "y", "--succeeded-within", "1h"]).assert_code(1);
    let ready = run(&sandbox, &url, &["init"]);
    assert!(ready.stdout.starts_with("ready already, version 1000"), "{ready:?}");
    psql(&url, &pretended_schema_version(1000, 1000));
    for args in [&["init"][..], &["run", "x", "--", "true"]] {
        let newer = run(&sandbox, &url, args);
        newer.assert_code(78);
        assert!(newer.stderr.contains("version 1000") && newer.stderr.contains("newer than"), "{newer:?}");
        assert_eq!(newer.stderr.lines().count(), 1, "{newer:?}");
    }
}

#[test]
fn what_is_printed_updates_and_removes() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = prepared(&sandbox, &server, "init_removed");
    let print = |args: &[&str]| run(&sandbox, &url, &[&["init", "--print-sql"], args].concat());
    psql(&url, &print(&["--from", "1"]).stdout);
    print(&["--from", "1000"]).assert_code(78);
    run(&sandbox, &url, &["init", "--expose", "public"]).assert_code(0);
    psql(&url, &print(&["--uninstall"]).stdout);
    let left = "select to_regnamespace('leasehold') is null, count(*) from pg_proc where pronamespace = 'public'::regnamespace";
    assert_eq!(psql(&url, left), "t|0");
    print(&["--uninstall", "--expose", "public"]).assert_code(64);
}

#[test]
fn doctor_finds_that_a_schema_is_missing() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = database(&server, "without_schema");
    let missing = run(&sandbox, &url, &["doctor"]);
    missing.assert_code(1);
    let words = "FAIL  schema             this database has no schema leasehold; run `leasehold init`";
    let next = format!(" → leasehold -b {url} init\n1 failure, 0 warnings\n");
    assert!(missing.stdout.contains(words) && missing.stdout.ends_with(&next), "{missing:?}");
    assert_eq!(missing.stderr, "");
    let told = run(&sandbox, &url, &["doctor", "--json"]);
    told.assert_code(1);
    assert_eq!(told.json()["findings"][0]["subject"], "schema", "{told:?}");
    run(&sandbox, &url, &["list"]).assert_code(78);
}

#[test]
fn init_works_through_a_pooler_and_leaves_no_setting_on_what_it_was_lent() {
    let (sandbox, server) = (Sandbox::new(), Postgres::start());
    let pooler = server.pgbouncer();
    // What the pooler itself sets for whoever comes does not count.
    let left = "select pg_backend_pid(), (select count(*) from pg_stat_activity where backend_type = 'client backend'), \
                string_agg(name, ' ') from pg_settings where source = 'session' and name not in \
                ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')";
    let before = psql(&pooler.url(), left);
    assert!(before.ends_with("|1|"), "one connection, and nothing set on it: {before}");
    let installed = run(&sandbox, &pooler.url(), &["init", "--json"]);
    installed.assert_code(0);
    assert_eq!(installed.json()["before"], 0);
    assert_eq!(psql(&pooler.url(), left), before, "the same connection, as it was");
    let again = run(&sandbox, &pooler.url(), &["init"]);
    again.assert_code(0);
    assert!(again.stdout.starts_with("ready already, version "), "{again:?}");
    assert_eq!(psql(&pooler.url(), left), before);
    for url in [pooler.url(), server.url()] {
        run(&sandbox, &url, &["run", "x", "--", "true"]).assert_code(0);
    }
}

#[test]
fn run_list_history_watch_evict_and_doctor_work_as_on_a_directory() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = prepared(&sandbox, &server, "as_on_a_directory");
    let run = |args: &[&str]| run(&sandbox, &url, args);
    let ran = run(&["run", "hello", "--", "echo", "I hold the lock"]);
    ran.assert_code(0);
    assert_eq!(ran.stdout, "I hold the lock\n");

    let (events, said) = (sandbox.path("events"), sandbox.path("said"));
    let mut watch = on(&sandbox, &url, &["-v", "watch", "--json"]);
    watch.stdout(fs::File::create(&events).unwrap()).stderr(fs::File::create(&said).unwrap());
    let _watch = Running::of(watch);
    until("it watches", || fs::read_to_string(&said).unwrap().contains("watching"));

    let ready = sandbox.path("ready");
    let script = format!("touch {}; exec sleep 600", ready.display());
    let mut holder = on(&sandbox, &url, &["run", "--note", "release 4.2", "deploy", "-c", &script]);
    holder.stderr(Stdio::piped());
    let holder = Running::of(holder);
    until("the holder runs", || ready.exists());
    let busy = run(&["run", "-n", "deploy", "--", "echo", "never"]);
    busy.assert_code(75);
    assert!(busy.stderr.contains("deploy is held by") && busy.stderr.contains("release 4.2"), "{busy:?}");
    let listed = run(&["list"]);
    assert!(listed.stdout.contains("deploy") && listed.stdout.contains("exclusive"), "{listed:?}");
    let fence = run(&["inspect", "--json", "deploy"]).json()["fence"].to_string();
    run(&["evict", "deploy", "--fence", "7", "--yes", "--reason", "stuck"]).assert_code(1);
    run(&["evict", "deploy", "--fence", &fence, "--yes", "--reason", "stuck"]).assert_code(0);
    let evicted = holder.finish();
    evicted.assert_code(121);
    assert!(evicted.stderr.contains("evicted"), "{evicted:?}");

    let history = run(&["history"]);
    assert!(history.stdout.contains("hello") && history.stdout.contains("evicted"), "{history:?}");
    until("both are told", || {
        let told = fs::read_to_string(&events).unwrap();
        told.contains("\"acquired\"") && told.contains("\"evicted\"")
    });
    let doctor = run(&["doctor"]);
    assert!(doctor.stdout.contains("reachable") && doctor.stdout.contains("fsync is off"), "{doctor:?}");
    doctor.assert_code(1);
    server.psql("create role stranger login");
    let refused = crate::run(&sandbox, &server.url_of("stranger", "as_on_a_directory"), &["doctor"]);
    refused.assert_code(1);
    assert!(
        refused.stdout.contains("FAIL  rights ") && refused.stdout.contains("select leasehold.allow('stranger')"),
        "{refused:?}"
    );
}

#[test]
fn a_run_by_connection_has_no_doubt_while_all_is_well_and_no_grace_beyond_belief() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = format!("{}?liveness=connection", prepared(&sandbox, &server, "no_doubt"));
    let ran = run(&sandbox, &url, &["run", "--ttl", "1m", "well", "--", "sleep", "1"]);
    ran.assert_code(0);
    assert_eq!(ran.stderr, "");
    let refused = run(&sandbox, &url, &["run", "--ttl", "1m", "--kill-after", "9s", "well", "--", "true"]);
    refused.assert_code(64);
    assert!(refused.stderr.contains("liveness=connection"), "{refused:?}");
}

#[test]
fn who_died_and_was_missed_by_nobody_is_in_history_when_it_is_asked_for() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = format!("{}?liveness=connection", prepared(&sandbox, &server, "missed_by_nobody"));
    let ready = sandbox.path("ready");
    let script = format!("touch {}; exec sleep 1", ready.display());
    let holder = Running::of(on(&sandbox, &url, &["run", "lonely", "-c", &script]));
    until("it runs", || ready.exists());
    holder.signal(Signal::KILL);
    until("history tells", || run(&sandbox, &url, &["history", "lonely"]).stdout.contains("disconnected"));
    assert!(run(&sandbox, &url, &["history", "--failures"]).stdout.contains("lonely"));
}

#[test]
fn a_lease_that_was_released_is_known_to_be_gone() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    prepared(&sandbox, &server, "known_to_be_gone");
    // As far away as another town.
    let proxy = Proxy::to(server.port());
    proxy.slow_down(10);
    let url = format!("postgres://postgres@127.0.0.1:{}/known_to_be_gone", proxy.port());
    let lease = run(&sandbox, &url, &["acquire", "x", "--ttl", "1m"]).stdout.trim().to_owned();
    run(&sandbox, &url, &["check", "--lease", &lease]).assert_code(0);
    run(&sandbox, &url, &["release", "--lease", &lease]).assert_code(0);
    run(&sandbox, &url, &["check", "--lease", &lease]).assert_code(1);
}

#[test]
fn an_unreachable_server_is_69_and_one_clear_line_in_time_without_the_password() {
    let sandbox = Sandbox::new();
    // One that refuses, and one that takes the connection and says nothing.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    for port in [1, silent.local_addr().unwrap().port()] {
        for liveness in ["ttl", "connection"] {
            let url = format!("postgres://me:hunter2@127.0.0.1:{port}/db?liveness={liveness}");
            let ran = run(&sandbox, &url, &["--connect-timeout", "700ms", "run", "x", "--", "true"]);
            ran.assert_code(69);
            assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
            assert!(ran.stderr.contains(&format!("127.0.0.1:{port}")) && !ran.stderr.contains("hunter2"), "{ran:?}");
            assert!(ran.took < Duration::from_secs(3), "{ran:?}");
        }
    }
}

#[test]
fn a_server_without_tls_is_told_from_one_that_is_away() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = format!("{}?sslmode=require", server.url());
    let ran = run(&sandbox, &url, &["list"]);
    ran.assert_code(78);
    assert!(ran.stderr.contains("speaks no TLS") && !ran.stderr.contains("does it run there"), "{ran:?}");
}

#[test]
fn the_way_to_the_server_does_not_count_as_a_difference_of_clocks() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    prepared(&sandbox, &server, "far_away");
    let proxy = Proxy::to(server.port());
    let url = format!("postgres://postgres@127.0.0.1:{}/far_away", proxy.port());
    proxy.slow_down(300);
    let mut command = on(&sandbox, &url, &["--connect-timeout", "20s", "doctor"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let doctor = Running::of(command).finish_within(Duration::from_secs(90));
    let words = doctor.stdout.split("wall clock is ").nth(1).unwrap_or_else(|| panic!("{doctor:?}"));
    let apart: f64 = words.split(" ms").next().unwrap().parse().unwrap();
    assert!(apart < 250.0, "{doctor:?}");
    assert!(doctor.stdout.contains("warn  reach "), "{doctor:?}");
}

#[test]
fn a_database_that_comes_late_is_waited_for() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    database(&server, "comes_late");
    let proxy = Proxy::to(server.port());
    let url = format!("postgres://postgres@127.0.0.1:{}/comes_late", proxy.port());
    for args in [&["init"][..], &["run", "x", "--", "echo", "got it"]] {
        proxy.refuse();
        let (running, _) = sandbox.start_without_server(&url, args);
        proxy.mend();
        let ran = running.finish();
        ran.assert_code(0);
        assert!(!ran.stdout.is_empty(), "{ran:?}");
    }
}

#[test]
fn a_password_is_used_and_never_shown_wherever_it_comes_from() {
    let (sandbox, server) = (Sandbox::new(), Postgres::start());
    run(&sandbox, &server.url(), &["init"]).assert_code(0);
    server.psql("create role app login password 's3cret'; select leasehold.allow('app')");
    let rules = server.psql("show hba_file");
    let open = fs::read_to_string(&rules).unwrap();
    fs::write(&rules, format!("host all app 127.0.0.1/32 scram-sha-256\n{open}")).unwrap();
    server.psql("select pg_reload_conf()");

    let plain = server.url_of("app", "postgres");
    let inside = plain.replace("app@", "app:s3cret@");
    let (first_line, passwords) = (sandbox.path("password"), sandbox.path("pgpass"));
    fs::write(&first_line, "s3cret\n").unwrap();
    fs::write(&passwords, format!("127.0.0.1:{}:*:app:s3cret\n", server.port())).unwrap();
    let by_file = format!("{plain}?password_file={}", first_line.display());
    let by_name = format!("{plain}?password_env=MY_PASSWORD");
    let ways: [(&str, &str, &str); 5] = [
        (&inside, "NOTHING", ""),
        (&plain, "PGPASSWORD", "s3cret"),
        (&plain, "PGPASSFILE", passwords.to_str().unwrap()),
        (&by_file, "NOTHING", ""),
        (&by_name, "MY_PASSWORD", "s3cret"),
    ];
    let with = |(url, variable, value): (&str, &str, &str), args: &[&str]| {
        // The server checks the password for long where the machine is busy.
        let mut command = on(&sandbox, url, &[&["--connect-timeout", "60s"], args].concat());
        command.env(variable, value);
        command
    };
    // A password file that others can read is refused.
    fs::set_permissions(&passwords, fs::Permissions::from_mode(0o644)).unwrap();
    let open_to_all = Ran::of(with(ways[2], &["list"]));
    open_to_all.assert_code(78);
    assert!(open_to_all.stderr.contains("chmod 600"), "{open_to_all:?}");
    fs::set_permissions(&passwords, fs::Permissions::from_mode(0o600)).unwrap();

    for (at, way) in ways.into_iter().enumerate() {
        let (ready, report) = (sandbox.path(&format!("ready-{at}")), sandbox.path(&format!("environment-{at}")));
        let script = format!(
            "tr '\\0' '\\n' < /proc/self/environ > {}; echo $$ > {}; exec sleep 600",
            report.display(),
            ready.display()
        );
        let mut holder = with(way, &["-vv", "run", "x", "-c", &script]);
        holder.stdout(Stdio::piped()).stderr(Stdio::piped());
        let holder = Running::of(holder);
        read_soon(&ready);
        for pid in sandbox.processes() {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&line).contains("s3cret"), "ps shows it: {way:?}");
        }
        for args in [
            &["-vv", "list"][..],
            &["-vv", "inspect", "x"],
            &["-vv", "--json", "doctor"],
            &["-vv", "run", "-n", "x", "true"],
        ] {
            let ran = Ran::of(with(way, args));
            assert!(!ran.stdout.contains("s3cret") && !ran.stderr.contains("s3cret"), "{ran:?}");
            assert!(matches!(ran.code(), 0 | 1 | 75), "{ran:?}");
        }
        holder.signal(Signal::TERM);
        let ran = holder.finish();
        assert!(!ran.stdout.contains("s3cret") && !ran.stderr.contains("s3cret"), "{ran:?}");
        until("it is free", || Ran::of(with(way, &["check", "x"])).code() != 0 || sandbox.processes().is_empty());
    }
    for url in [plain.as_str(), &plain.replace("app@", "app:wr0ng@")] {
        let refused = run(&sandbox, url, &["-vv", "list"]);
        refused.assert_code(77);
        assert!(refused.stderr.contains("password") && !refused.stderr.contains("wr0ng"), "{refused:?}");
    }
}

/// `PGSSLMODE` and `PGSSLROOTCERT`, as psql takes them; the URL comes first.
#[test]
fn encryption_is_as_the_environment_asks_unless_the_url_says_otherwise() {
    let (sandbox, server) = (Sandbox::new(), Postgres::start_encrypted());
    let url = server.url().replace("127.0.0.1", "localhost");
    run(&sandbox, &url, &["init"]).assert_code(0);
    // Without encryption nobody is let in from now on.
    let rules = server.psql("show hba_file");
    let open = fs::read_to_string(&rules).unwrap();
    fs::write(&rules, open.replace("host ", "hostssl ")).unwrap();
    server.psql("select pg_reload_conf()");
    until("it does not let in what is not encrypted", || {
        run(&sandbox, &format!("{url}?sslmode=disable"), &["list"]).code() == 77
    });

    let file = |name: &str| server.path(name).display().to_string();
    let (ca, other) = (file("ca.crt"), file("other.crt"));
    let list = |query: &str, mode: &str, roots: &str| {
        let mut command = on(&sandbox, &format!("{url}?{query}"), &["list"]);
        // An empty variable is as none.
        command.env("PGSSLMODE", mode).env("PGSSLROOTCERT", roots).env_remove("SSL_CERT_FILE");
        if roots == "system" {
            command.env("SSL_CERT_FILE", &ca);
        }
        Ran::of(command)
    };
    let all = format!("sslmode=verify-full&sslrootcert={ca}");
    for (query, mode, roots) in [
        ("", "", ""),
        ("", "prefer", ""),
        ("", "verify-full", &*ca),
        ("", "require", &ca),
        ("", "", &ca),
        ("", "verify-full", "system"),
        ("sslmode=prefer", "disable", ""),
        (&all, "disable", &other),
    ] {
        let ran = list(query, mode, roots);
        assert_eq!(ran.code(), 0, "{query:?} {mode:?} {roots:?}: {ran:?}");
    }
    for (query, mode, roots, code, word) in [
        ("", "disable", "", 77, "no encryption"),
        ("", "require", "", 69, "certificate"),
        ("", "verify-full", &*other, 69, "certificate"),
        ("", "", &other, 69, "certificate"),
        ("sslmode=disable", "verify-full", &ca, 77, "no encryption"),
        (&all.replace("ca.crt", "other.crt"), "", &ca, 69, "certificate"),
        ("", "nonsense", "", 78, "sslmode=nonsense"),
        ("", "", "/nowhere", 78, "sslrootcert=/nowhere"),
    ] {
        let ran = list(query, mode, roots);
        assert!(ran.code() == code && ran.stderr.contains(word), "{query:?} {mode:?} {roots:?}: {ran:?}");
    }
}

/// There is nobody in between whom it could protect from.
#[test]
fn a_socket_in_the_file_system_needs_no_encryption_whatever_is_asked_for_elsewhere() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    for mode in ["disable", "prefer", "require", "verify-full"] {
        let mut command = on(&sandbox, &server.url_by_socket(), &["init"]);
        command.env("PGSSLMODE", mode).env("PGSSLROOTCERT", "/nowhere");
        let ran = Ran::of(command);
        assert_eq!(ran.code(), 0, "{mode}: {ran:?}");
    }
}

/// Whether one of these processes can still run: one that exits is listed for a moment, with flag 4.
fn look(pids: &str, seen: &str) -> String {
    format!(
        "for pid in {pids}; do \
         if read -r _ _ state _ _ _ _ _ flags _ 2> /dev/null < /proc/$pid/stat && [ $((flags & 4)) = 0 ]; \
         then found=\"$found $pid($state)\"; fi; \
         done; echo \"alive:$found\" > {seen}"
    )
}

/// Cut off from the server, everything under a lock is gone before the next holder's command starts.
/// `LEASEHOLD_CUTS=1000` for as many.
#[test]
fn what_is_cut_off_is_dead_before_the_next_one_starts() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = prepared(&sandbox, &server, "cut_off");
    let cuts = times("LEASEHOLD_CUTS", 10);
    // At least two rounds: every other one cuts without a word.
    let at_once = (cuts / 2).clamp(1, 20);
    let mut lost = Duration::MAX;
    for round in 0..cuts.div_ceil(at_once) {
        let proxy = Proxy::to(server.port());
        let through = url.replace(&server.port().to_string(), &proxy.port().to_string());
        let lanes = at_once.min(cuts - round * at_once);
        let path = |what: &str, lane: usize| sandbox.path(&format!("{what}-{round}-{lane}"));
        let holders: Vec<Running> = (0..lanes)
            .map(|lane| {
                let name = format!("x{round}-{lane}");
                let script = format!("sh -c 'echo $$ > {}; exec sleep 600' & wait", path("pid", lane).display());
                let mut holder = on(&sandbox, &through, &["run", "--ttl", "3s", &name, "-c", &script]);
                holder.stderr(Stdio::piped());
                Running::of(holder)
            })
            .collect();
        let waiters: Vec<Running> = (0..lanes)
            .map(|lane| {
                let grandchild = read_soon(&path("pid", lane));
                let script = look(&grandchild, path("seen", lane).to_str().unwrap());
                Running::of(on(&sandbox, &url, &["run", &format!("x{round}-{lane}"), "-c", &script]))
            })
            .collect();
        let waiting = format!("select count(*) from leasehold.resource where name like 'x{round}-%' and waiting = 1");
        until("all wait", || psql(&url, &waiting) == lanes.to_string());
        // A connection that breaks, and one on which nothing arrives any more.
        if round % 2 == 0 {
            proxy.cut();
        } else {
            proxy.to_server(Flow::Swallow);
            proxy.to_client(Flow::Swallow);
        }
        let cut = Instant::now();
        for holder in holders {
            holder.finish().assert_code(121);
        }
        for (lane, mut waiter) in waiters.into_iter().enumerate() {
            assert_eq!(waiter.code(), 0);
            assert_eq!(read_soon(&path("seen", lane)), "alive:", "round {round}, lane {lane}: two at once");
        }
        lost = lost.min(cut.elapsed());
    }
    println!("{cuts} cuts, no overlap; a round took {lost:?} at least");
}

/// The connection that the lease ends with is inherited: the lock passes on when all that was started is gone.
/// `LEASEHOLD_KILLS=100` for as many.
#[test]
fn a_killed_run_in_connection_mode_passes_on_when_all_it_started_is_dead() {
    const LANES: usize = 10;
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = format!("{}?liveness=connection", prepared(&sandbox, &server, "killed_run"));
    let kills = times("LEASEHOLD_KILLS", 10);
    let mut slowest = Duration::ZERO;
    for round in 0..kills.div_ceil(LANES) {
        let lanes = LANES.min(kills - round * LANES);
        let path = |what: &str, lane: usize| sandbox.path(&format!("{what}-{round}-{lane}"));
        let holders: Vec<Running> = (0..lanes)
            .map(|lane| {
                // The grandchild has nobody to kill it, and goes on for a while.
                let pids = path("pids", lane);
                let script = format!("sleep 1 & echo $$ $! > {}; wait; exec sleep 600", pids.display());
                Running::of(on(&sandbox, &url, &["run", &format!("k{round}-{lane}"), "-c", &script]))
            })
            .collect();
        let waiters: Vec<Running> = (0..lanes)
            .map(|lane| {
                let script = look(&read_soon(&path("pids", lane)), path("seen", lane).to_str().unwrap());
                Running::of(on(&sandbox, &url, &["run", &format!("k{round}-{lane}"), "-c", &script]))
            })
            .collect();
        let plain = url.split('?').next().unwrap();
        let waiting = format!("select count(*) from leasehold.resource where name like 'k{round}-%' and waiting = 1");
        until("all wait", || psql(plain, &waiting) == lanes.to_string());
        let killed = Instant::now();
        for holder in &holders {
            holder.signal(Signal::KILL);
        }
        for (lane, mut waiter) in waiters.into_iter().enumerate() {
            assert_eq!(read_soon(&path("seen", lane)), "alive:", "round {round}, lane {lane}: two at once");
            assert_eq!(waiter.code(), 0);
        }
        slowest = slowest.max(killed.elapsed());
        let ended =
            format!("select count(*) from leasehold.ended where name like 'k{round}-%' and ending = 'disconnected'");
        assert_eq!(psql(plain, &ended), lanes.to_string());
    }
    println!("{kills} kills, no overlap; the slowest round took {slowest:?}");
}

/// Each costs the time to the server and back: TLS?, the login, what the server is, LISTEN, and then the lock, its release
/// and the record of the success.
#[test]
fn a_run_asks_the_server_seven_times() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    let url = prepared(&sandbox, &server, "seven_times");
    let trace = sandbox.path("trace");
    let mut command = sandbox.command("strace");
    command.args(["-f", "-qq", "-e", "trace=sendto", "-o"]).arg(&trace);
    command.args([env!("CARGO_BIN_EXE_leasehold"), "run", "x", "--", "true"]).env("LEASEHOLD_URL", &url);
    Ran::of(command).assert_code(0);
    let trace = fs::read_to_string(trace).unwrap();
    // How messages of the protocol begin; those to the supervisor have another form.
    let is_message = |line: &&str| ["\"P\\0", "\"Q\\0", "\"\\0\\0"].iter().any(|begin| line.contains(begin));
    let sent: Vec<&str> = trace.lines().filter(is_message).collect();
    assert_eq!(sent.len(), 7, "{sent:#?}");
}

#[test]
fn what_is_alike_on_every_backend_is_so_here() {
    let server = Postgres::shared();
    let url = prepared(&Sandbox::new(), &server, "alike");
    let sandbox = Sandbox::on(&url);
    on_any_backend::everything(&sandbox);
    let others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
    let connections = || psql(&url, others).parse().unwrap();
    on_any_backend::a_run_that_holds_or_waits_has_one_connection(&sandbox, connections);
    on_any_backend::a_run_of_two_locks_has_two_connections(&sandbox, connections);
    on_any_backend::a_password_stays_in_its_variable(&url.replacen('@', ":s3cret@", 1));
    let by_connection = Sandbox::on(&format!("{url}?liveness=connection"));
    on_any_backend::a_lease_tied_to_a_process(&by_connection);
    on_any_backend::a_signal_in_min_hold_leaves_the_lock(&by_connection);
}
