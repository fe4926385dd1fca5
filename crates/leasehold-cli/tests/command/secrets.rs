//! Passwords appear nowhere: not in output, not in errors, not in what others see.

use std::fs;

use crate::place::{Place, Ran};

/// Every form of URL, at a port where nobody listens.
const URLS: [&str; 10] = [
    "postgres://app:s3cret@127.0.0.1:1/prod",
    "postgres://app:s3cret@127.0.0.1:1,app:s3cret@127.0.0.1:2/db",
    "postgres://127.0.0.1:1/x?password=s3cret",
    "redis://:s3cret@127.0.0.1:1/0",
    "rediss://user:s3cret@[::1]:1",
    "redis+sentinel://:s3cret@127.0.0.1:1,127.0.0.1:2/mymaster",
    "redis+cluster://u:s3cret@127.0.0.1:1,u:s3cret@127.0.0.1:2",
    "redlock://:s3cret@127.0.0.1:1,:s3cret@127.0.0.1:2,:s3cret@127.0.0.1:3/0",
    "etcd://root:s3cret@127.0.0.1:1/prefix",
    "https://ops:s3cret@127.0.0.1:1/?token=s3cret",
];

#[test]
fn no_form_of_url_shows_its_password() {
    let place = Place::new();
    let config = place.path("config.toml");
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
    for url in URLS {
        fs::write(&config, format!("default = \"p\"\n[backend.p]\nurl = \"{url}\"\n")).unwrap();
        for command in commands {
            for json in [&[][..], &["--json"]] {
                let flags = ["-vv", "--connect-timeout", ".3", "-b", url];
                let by_flag = Ran::of(place.bare(&[&flags, json, command].concat()));
                let mut by_env = place.bare(&[&["-vv", "--connect-timeout", ".3"], json, command].concat());
                by_env.env("LEASEHOLD_URL", url);
                let by_env = Ran::of(by_env);
                let by_profile = ["-vv", "--connect-timeout", ".3", "--config", config.to_str().unwrap()];
                let by_profile = Ran::of(place.bare(&[&by_profile, json, command].concat()));
                for ran in [by_flag, by_env, by_profile] {
                    assert!(matches!(ran.code(), 1 | 69 | 78), "{url}: {ran:?}");
                    assert!(!ran.stdout.contains("s3cret") && !ran.stderr.contains("s3cret"), "{url}: {ran:?}");
                }
            }
        }
    }
}

#[test]
fn arguments_of_the_command_are_shown_on_request_only() {
    let place = Place::new();
    let ready = place.path("ready");
    let script = format!("touch {}; exec sleep 600; : s3cret", ready.display());
    let holder = place.start(&["run", "x", "-c", &script]);
    crate::place::until("it runs", || ready.exists());
    for args in [&["list"][..], &["inspect", "x"], &["inspect", "--json", "x"], &["run", "-n", "x", "true"]] {
        let ran = place.run(args);
        assert!(!ran.stdout.contains("s3cret") && !ran.stderr.contains("s3cret"), "{ran:?}");
    }
    drop(holder);
    fs::remove_file(&ready).unwrap();
    let _holder = place.start(&["run", "--show-args", "x", "-c", &script]);
    crate::place::until("it runs", || ready.exists());
    assert!(place.run(&["inspect", "x"]).stdout.contains("s3cret"));
}

#[test]
fn the_lease_handle_is_shown_to_its_owner_only() {
    let place = Place::new();
    let lease = place.run(&["acquire", "x", "--ttl", "1m"]).stdout;
    let id = lease.trim().strip_prefix("lh1_").unwrap().get(..32).unwrap().to_owned();
    for args in [&["list"][..], &["list", "--json"], &["inspect", "x"], &["inspect", "--json", "x"], &["-vv", "doctor"]]
    {
        let ran = place.run(args);
        assert!(!ran.stdout.contains(&id) && !ran.stderr.contains(&id), "{ran:?}");
    }
    let ran = place.run(&["-vv", "release", "--lease", lease.trim()]);
    assert!(!ran.stdout.contains(&id) && !ran.stderr.contains(&id), "{ran:?}");
    assert!(!place.run(&["history", "--json"]).stdout.contains(&id));
}
