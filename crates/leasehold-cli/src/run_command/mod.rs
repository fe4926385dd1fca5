//! Runs a command under a lease: requests it, waits for it, supervises the command, releases and reports.

pub(crate) mod connect_retry;
pub(crate) mod environment;
pub(crate) mod hooks;
pub(crate) mod identity;
pub(crate) mod lease_ending;
pub(crate) mod lock_request;
pub(crate) mod messages;
pub(crate) mod metrics_textfile;
pub(crate) mod nested;
pub(crate) mod report;
pub(crate) mod run_under_lease;
pub(crate) mod runs;
pub(crate) mod supervisor_entry;
pub(crate) mod wait;
