//! Every example runs and keeps what it claims.
//!
//! On `memory:`, or on the backend that `LEASEHOLD_URL` names.
#![cfg(feature = "memory")]

macro_rules! examples {
    ($($name:ident at $path:literal,)*) => {
        $(
            #[path = $path]
            mod $name;

            #[test]
            fn $name() {
                $name::main().unwrap();
            }
        )*

        const TRIED: &[&str] = &[$(stringify!($name)),*];
    };
}

examples! {
    api_limit at "../examples/api_limit.rs",
    blocking at "../examples/blocking.rs",
    cache_refresh at "../examples/cache_refresh.rs",
    config_readers at "../examples/config_readers.rs",
    daily_report at "../examples/daily_report.rs",
    graceful_shutdown at "../examples/graceful_shutdown.rs",
    job_history at "../examples/job_history.rs",
    leader_scheduler at "../examples/leader_scheduler.rs",
    long_job at "../examples/long_job.rs",
    process_payment_once at "../examples/process_payment_once.rs",
    singleton_cron at "../examples/singleton_cron.rs",
    take_turns at "../examples/take_turns.rs",
    transfer at "../examples/transfer.rs",
}

#[test]
fn no_example_is_left_out() {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap();
    let mut found: Vec<String> =
        folder.map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned()).collect();
    // It needs a server: `postgres_advisory` has one.
    found.retain(|name| name != "advisory_job");
    found.sort_unstable();
    assert_eq!(found, TRIED);
}
