//! Retries reaching a server that is away when a command starts.

use std::{cell::RefCell, future::pending, time::Duration};

use leasehold::{
    ErrorKind,
    backend::Backoff,
    clock::{Clock, SystemClock},
    lease::Moment,
};

use super::lock_request::WaitLimit;
use crate::{
    duration::Brief,
    error::CommandError,
    exit,
    output::{Line, Output},
    settings::Settings,
};

/// How long a command that can wait tries to reach its server, unless told otherwise.
const USUALLY: Duration = Duration::from_secs(10);
/// The same for one that does not want to wait.
const BRIEFLY: Duration = Duration::from_secs(3);
/// Minimum time of an attempt; a shorter one could only time out.
const MIN_ATTEMPT: Duration = Duration::from_millis(100);
/// An attempt with less time than this may end before the server, which was away, has answered.
const SHORT_ATTEMPT: Duration = Duration::from_secs(1);
/// A start that takes longer explains itself.
const EXPLAIN_AFTER: Duration = Duration::from_secs(2);

/// When a command began, and how long its server may stay away.
#[derive(Debug)]
pub(crate) struct ConnectRetry<'a> {
    place: String,
    /// Whether a server that is away is tried again; a directory does not come back by itself.
    retries: bool,
    began: Moment,
    limit: Duration,
    /// The flag that set the limit, or could.
    flag: &'static str,
    output: &'a Output,
    explained: RefCell<Explained>,
}

#[derive(Debug, Default)]
struct Explained {
    last_error: Option<String>,
    /// The server has answered: who waits now waits for the lock.
    answered: bool,
    done: bool,
}

impl<'a> ConnectRetry<'a> {
    /// Begins now, for a command that waits this long for its lock.
    pub(crate) fn new(settings: &Settings, wait: WaitLimit, output: &'a Output) -> Self {
        let usually = if wait == WaitLimit::Try { BRIEFLY } else { USUALLY };
        let limit = settings.connect_limit.unwrap_or(usually);
        let (limit, flag) = match wait {
            WaitLimit::For(wait) if wait < limit => (wait, "--wait"),
            _ => (limit, "--connect-timeout"),
        };
        Self {
            place: settings.shown_url(),
            retries: !settings.url.starts_with("file:"),
            began: SystemClock.now(),
            limit,
            flag,
            output,
            explained: RefCell::default(),
        }
    }

    /// Does not retry: tells at once whether the server is there.
    pub(crate) fn once(settings: &Settings, output: &'a Output) -> Self {
        Self { retries: false, ..Self::new(settings, WaitLimit::Try, output) }
    }

    /// How long the server may still stay away.
    fn left(&self) -> Duration {
        self.limit.saturating_sub(SystemClock.now().since(self.began))
    }

    /// Whether the server was away when it was last asked, and is tried again.
    pub(crate) fn is_away(&self) -> bool {
        self.explained.borrow().last_error.is_some() && !self.left().is_zero()
    }

    /// Why the server was not reached, and for how long it was tried.
    pub(crate) fn failure(&self, error: leasehold::Error) -> CommandError {
        let mut failure = CommandError::from(error);
        if failure.code == exit::UNAVAILABLE && self.explained.borrow().last_error.is_some() {
            // The limit of the last attempt is what was left of ours.
            if let Some((before, after)) = failure.message.split_once(" did not answer within ") {
                let rest = after.find("; ").map(|at| &after[at..]).unwrap_or_default();
                failure.message = format!("{before} did not answer{rest}");
            }
            let tried = format!("; tried for {} ({})", Brief(self.limit), self.flag);
            failure.message.push_str(&tried);
        }
        failure
    }

    /// Tries until the server answers or the time is over; the attempt is told how long it may take.
    ///
    /// # Cancel safety
    /// As the attempt.
    pub(crate) async fn retry<T>(
        &self,
        mut attempt: impl AsyncFnMut(Duration) -> leasehold::Result<T>,
    ) -> leasehold::Result<T> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let tries = async {
            let mut why_away = None;
            loop {
                let is_short = self.left() < SHORT_ATTEMPT;
                let result = attempt(self.left().max(MIN_ATTEMPT.min(self.limit))).await;
                let Err(error) = &result else {
                    let mut explained = self.explained.borrow_mut();
                    (explained.answered, explained.last_error) = (true, None);
                    drop(explained);
                    return result;
                };
                // The wait ran out while the server, which was away, was asked again: nobody is known to have the lock.
                let is_cut_short = match error.kind() {
                    ErrorKind::WaitElapsed => error.holders().is_empty(),
                    kind => kind == ErrorKind::OutcomeUnknown,
                };
                if is_short
                    && is_cut_short
                    && let Some(why) = why_away.take()
                {
                    return Err(why);
                }
                if !self.retries || error.kind() != ErrorKind::Unavailable {
                    return result;
                }
                // Even if this attempt used up the time: the error then says how long that was.
                self.explained.borrow_mut().last_error = Some(format!("{error:#}"));
                if self.left().is_zero() {
                    return result;
                }
                why_away = result.err();
                tokio::time::sleep(backoff.pause().min(self.left())).await;
            }
        };
        tokio::select! {
            biased;
            result = tries => result,
            () = self.explain() => unreachable!("it explains until it is dropped"),
        }
    }

    /// Says once what is waited for; never ends.
    async fn explain(&self) {
        SystemClock.sleep_until(self.began.after(EXPLAIN_AFTER)).await;
        self.tell();
        pending::<()>().await;
    }

    fn tell(&self) {
        let mut explained = self.explained.borrow_mut();
        let waits_for_lock = explained.answered && explained.last_error.is_none();
        if waits_for_lock || explained.done || !self.retries || self.left().is_zero() {
            return;
        }
        explained.done = true;
        let why = explained.last_error.as_deref().unwrap_or("no answer yet");
        let words = format!("waiting for {} ({why}); giving up in {}", self.place, Brief(self.left()));
        self.output.print(Line::new("connecting", words));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args, settings::OutputStyle};

    /// The limit in seconds, and the flag that is named, of a command with these global flags.
    fn limit(flags: &[&str], wait: WaitLimit) -> (u64, &'static str) {
        let cli = args::tests::parse(&[&["-b", "redis://h", "list"], flags].concat());
        let settings = Settings::resolve(&cli.global, &|_| None).unwrap();
        let output = Output::new(OutputStyle::plain());
        let connect_retry = ConnectRetry::new(&settings, wait, &output);
        (connect_retry.limit.as_secs(), connect_retry.flag)
    }

    #[test]
    fn a_server_may_stay_away_as_long_as_the_patience_for_the_lock() {
        let seconds = |count| WaitLimit::For(Duration::from_secs(count));
        assert_eq!(limit(&[], WaitLimit::Forever), (10, "--connect-timeout"));
        assert_eq!(limit(&[], WaitLimit::Try), (3, "--connect-timeout"));
        assert_eq!(limit(&[], seconds(60)), (10, "--connect-timeout"));
        assert_eq!(limit(&[], seconds(5)), (5, "--wait"));
        assert_eq!(limit(&[], seconds(2)), (2, "--wait"));
        let flags = ["--connect-timeout", "20s"];
        assert_eq!(limit(&flags, WaitLimit::Forever), (20, "--connect-timeout"));
        assert_eq!(limit(&flags, WaitLimit::Try), (20, "--connect-timeout"));
        assert_eq!(limit(&flags, seconds(15)), (15, "--wait"));
    }
}
