//! Passwords appear nowhere: not in output, not in errors, not in what others see.

use std::fs;

use crate::sandbox::{Ran, Sandbox};

/// A URL of each form, and the code it ends with: nothing listens on port 1, and some schemes are not built in.
const URLS: [(&str, i32); 12] = [
    ("postgres://app:s3cret@127.0.0.1:1/prod", 69),
    ("postgres://app:s3cret@127.0.0.1:1,127.0.0.1:2/db?liveness=connection", 69),
    ("postgres://127.0.0.1:1/x?password=s3cret", 69),
    ("postgres://app:s3cret@h1:x/db", 78),
    ("postgres://app:s3cret@h/db?nonsense=s3cret", 78),
    ("redis://:s3cret@127.0.0.1:1/0", 69),
    ("rediss://user:s3cret@127.0.0.1:1", 69),
    ("redis+sentinel://:s3cret@127.0.0.1:1,127.0.0.1:2/mymaster", 69),
    ("redis+cluster://u:s3cret@127.0.0.1:1,127.0.0.1:2", 69),
    ("redlock://:s3cret@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/0", 69),
    ("etcd://root:s3cret@h1:2379/prefix", 78),
    ("https://ops:s3cret@locks.internal/?token=s3cret", 78),
];

#[test]
fn no_form_of_url_shows_its_password() {
    let sandbox = Sandbox::new();
    let config = sandbox.path("config.toml");
    let commands: [&[&str]; 8] = [
        &["run", "x", "--", "true"],
        &["run", "--dry-run", "x", "--", "true"],
        &["acquire", "x", "--ttl", "1m"],
        &["list"],
        &["inspect", "x"],
        &["history"],
        &["elect", "x", "--leader"],
        &["doctor"],
    ];
    for (url, code) in URLS {
        fs::write(&config, format!("default = \"p\"\n[backend.p]\nurl = \"{url}\"\n")).unwrap();
        for command in commands {
            // Doctor tells of a server that is away as of any other finding.
            let code = if command == ["doctor"] && code == 69 { 1 } else { code };
            for json in [&[][..], &["--json"]] {
                let run = |flags: &[&str], variables: &[(&str, &str)]| {
                    let mut run = sandbox.bare(&[&["-vv", "--connect-timeout", "10ms"], flags, json, command].concat());
                    run.envs(variables.iter().copied());
                    Ran::of(run)
                };
                let by_flag = run(&["-b", url], &[]);
                let by_env = run(&[], &[("LEASEHOLD_URL", url)]);
                let by_profile = run(&["--config", config.to_str().unwrap()], &[]);
                for ran in [by_flag, by_env, by_profile] {
                    ran.assert_code(code);
                    assert!(!ran.stdout.contains("s3cret") && !ran.stderr.contains("s3cret"), "{url}: {ran:?}");
                }
            }
        }
    }
}

#[test]
fn arguments_of_the_command_are_shown_on_request_only() {
    let sandbox = Sandbox::new();
    let ready = sandbox.path("ready");
    let script = format!("touch {}; exec sleep 600; : s3cret", ready.display());
    let holder = sandbox.start(&["run", "x", "-c", &script]);
    crate::sandbox::until("it runs", || ready.exists());
    for args in [&["list"][..], &["inspect", "x"], &["inspect", "--json", "x"], &["run", "-n", "x", "true"]] {
        let ran = sandbox.run(args);
        assert!(!ran.stdout.contains("s3cret") && !ran.stderr.contains("s3cret"), "{ran:?}");
    }
    drop(holder);
    fs::remove_file(&ready).unwrap();
    let _holder = sandbox.start(&["run", "--show-args", "x", "-c", &script]);
    crate::sandbox::until("it runs", || ready.exists());
    assert!(sandbox.run(&["inspect", "x"]).stdout.contains("s3cret"));
}

#[test]
fn the_lease_handle_is_shown_to_its_owner_only() {
    let sandbox = Sandbox::new();
    let lease = sandbox.run(&["acquire", "x", "--ttl", "1m"]).stdout;
    let id = lease.trim().strip_prefix("lh2_").unwrap().get(..32).unwrap().to_owned();
    for args in [&["list"][..], &["list", "--json"], &["inspect", "x"], &["inspect", "--json", "x"], &["-vv", "doctor"]]
    {
        let ran = sandbox.run(args);
        assert!(!ran.stdout.contains(&id) && !ran.stderr.contains(&id), "{ran:?}");
    }
    let ran = sandbox.run(&["-vv", "release", "--lease", lease.trim()]);
    assert!(!ran.stdout.contains(&id) && !ran.stderr.contains(&id), "{ran:?}");
    assert!(!sandbox.run(&["history", "--json"]).stdout.contains(&id));
}
