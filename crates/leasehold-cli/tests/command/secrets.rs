//! Passwords appear nowhere: not in output, not in errors, not in what others see.

use std::fs;

use crate::place::{Place, Ran};

const URLS: [&str; 10] = [
    "postgres://app:s3cret@db/prod",
    "postgres://app:s3cret@h1:5432,app:s3cret@h2:5432/db",
    "postgres://db/x?password=s3cret",
    "redis://:s3cret@cache:6379/0",
    "rediss://user:s3cret@[::1]:6379",
    "redis+sentinel://:s3cret@s1,s2/mymaster",
    "redis+cluster://u:s3cret@h1,u:s3cret@h2",
    "redlock://:s3cret@h1:6379,:s3cret@h2:6379/0",
    "etcd://root:s3cret@h1:2379/prefix",
    "https://ops:s3cret@locks.internal/?token=s3cret",
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
                let flags = ["-vv", "-b", url];
                let by_flag = Ran::of(place.bare(&[&flags, json, command].concat()));
                let mut by_env = place.bare(&[&["-vv"], json, command].concat());
                by_env.env("LEASEHOLD_URL", url);
                let by_env = Ran::of(by_env);
                let by_profile =
                    Ran::of(place.bare(&[&["-vv", "--config", config.to_str().unwrap()], json, command].concat()));
                for ran in [by_flag, by_env, by_profile] {
                    ran.assert_code(78);
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
