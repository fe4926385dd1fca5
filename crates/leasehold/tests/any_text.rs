//! Whatever a user, a file or another process writes, reading it succeeds or fails; it never panics, and a secret that
//! was read does not show in what is printed.
//!
//! `PROPTEST_CASES=1000000` tries as many texts.
#![cfg(all(feature = "file", feature = "redis", feature = "postgres"))]

use std::{sync::Arc, time::Duration};

use leasehold::{
    Fence, Holder, LeaseHandle, Resource,
    backend::UrlOptions,
    backends::{file::FileOptions, postgres::PostgresOptions, redis::RedisOptions},
    clock::SystemClock,
    lease::{Claim, EndedLease},
};
use proptest::prelude::*;

fn url() -> impl Strategy<Value = String> {
    let scheme = "(file|redis|rediss|redis\\+unix|redis\\+sentinel|redis\\+cluster|valkey|postgres|postgresql|x)?";
    let parameters =
        "(\\?(&?(ttl|mode|fsync|history|durability|answer_limit|sslmode|liveness|[a-z]{0,5})=[^&#]{0,8}){0,3})?";
    (scheme, ":?/{0,3}", "([a-z]{0,5}:[^@]{0,8}@)?", ".{0,20}", parameters)
        .prop_map(|(scheme, slashes, user, rest, parameters)| format!("{scheme}{slashes}{user}{rest}{parameters}"))
}

proptest! {
    #[test]
    fn no_url_panics(url in prop_oneof![url(), ".{0,60}"], namespace in ".{0,10}") {
        let clock = || Arc::new(SystemClock);
        drop(UrlOptions::parse(&url));
        drop(FileOptions::from_url(&url, &namespace, clock()));
        drop(RedisOptions::from_url(&url, &namespace));
        drop(PostgresOptions::from_url(&url, &namespace, clock(), Duration::from_secs(1)));
    }

    #[test]
    fn no_password_is_shown(password in "[a-z]{12}", rest in "(/[0-9]{0,2})?(\\?[a-z]{1,6}=[a-z0-9]{0,6})?") {
        let (redis, postgres) = (format!("redis://me:{password}@127.0.0.1{rest}"), format!("postgres://me:{password}@127.0.0.1{rest}"));
        let clock = Arc::new(SystemClock);
        let shown = [
            RedisOptions::from_url(&redis, "default").map_or_else(|error| format!("{error} {error:?}"), |options| format!("{options:?}")),
            PostgresOptions::from_url(&postgres, "default", clock, Duration::from_secs(1))
                .map_or_else(|error| format!("{error} {error:?}"), |options| format!("{options:?}")),
        ];
        prop_assert!(shown.iter().all(|shown| !shown.contains(&password)), "{shown:?}");
    }

    #[test]
    fn no_name_or_handle_panics(text in prop_oneof![".{0,300}", "lh2_[0-9a-f]{0,80}"]) {
        if let Ok(handle) = text.parse::<LeaseHandle>() {
            prop_assert_eq!(handle.to_string().parse::<LeaseHandle>().ok(), Some(handle));
        }
        drop((Resource::new(&text), Holder::new(&text)));
    }

    #[test]
    fn no_json_panics(text in prop_oneof![".{0,200}", "\\{(\"[a-z_]{1,12}\":(-?[0-9]{1,20}|\"[a-z]{0,8}\"|null),?){0,8}\\}"]) {
        drop(serde_json::from_str::<Claim>(&text));
        drop(serde_json::from_str::<EndedLease>(&text));
        drop(serde_json::from_str::<Fence>(&text));
    }
}
