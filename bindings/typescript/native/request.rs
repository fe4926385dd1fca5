//! Requests of JavaScript, turned into calls of the library.

use std::time::Duration;

use leasehold::{
    Error, Holder, Leasehold, Resource, Result,
    lease::{HistoryFilter, ListFilter, Metadata, Names, Timestamp},
};
use napi_derive::napi;

use crate::held::Held;

/// What to lock, and how.
pub(crate) struct LockRequest {
    /// `exclusive`, `shared`, `permit`, `leader` or `all`.
    pub(crate) mode: String,
    pub(crate) name: String,
    /// Return at once if it is busy.
    pub(crate) only_try: bool,
    /// Not finite: for ever.
    pub(crate) wait_seconds: Option<f64>,
    pub(crate) ttl_seconds: Option<f64>,
    pub(crate) extra: ExtraOptions,
}

/// What few requests have. Each property of an object costs its reader as much as several arguments do.
#[napi(object)]
#[derive(Default)]
pub struct ExtraOptions {
    /// The names of `all`.
    pub names: Option<Vec<String>>,
    pub max_hold_seconds: Option<f64>,
    pub max_waiters: Option<u32>,
    /// False: it ends with its ttl.
    pub auto_renew: Option<bool>,
    pub limit: Option<u32>,
    pub permits: Option<u32>,
    pub holder: Option<String>,
    pub note: Option<String>,
    /// A JSON object.
    pub metadata: Option<String>,
    /// What a leader publishes.
    pub value: Option<String>,
}

/// Sets the options that all primitives have.
macro_rules! with_options {
    ($lock:expr, $request:expr) => {{
        let (mut lock, request) = ($lock, $request);
        if let Some(wait) = request.wait_seconds {
            lock = if wait == f64::INFINITY { lock.wait_forever() } else { lock.wait(seconds("waitSeconds", wait)?) };
        }
        if let Some(ttl) = request.ttl_seconds {
            lock = lock.ttl(seconds("ttlSeconds", ttl)?);
        }
        if let Some(longest) = request.extra.max_hold_seconds {
            lock = lock.max_hold(seconds("maxHoldSeconds", longest)?);
        }
        if let Some(most) = request.extra.max_waiters {
            lock = lock.max_waiters(most);
        }
        if let Some(holder) = &request.extra.holder {
            lock = lock.holder(Holder::new(holder)?);
        }
        if let Some(note) = &request.extra.note {
            lock = lock.note(note.as_str());
        }
        if let Some(metadata) = &request.extra.metadata {
            lock = lock.metadata(json_object(metadata)?);
        }
        lock
    }};
}

/// Acquires the lock; returns `None` if this was a try and the lock is busy.
pub(crate) async fn acquire(locks: &Leasehold, request: &LockRequest) -> Result<Option<Held>> {
    let (name, extra) = (&request.name, &request.extra);
    let is_detached = extra.auto_renew == Some(false);
    if is_detached && matches!(request.mode.as_str(), "all" | "leader") {
        return Err(Error::invalid_config("autoRenew: false is for one lock or permit at a time"));
    }
    let lock = match request.mode.as_str() {
        "all" => {
            let all = with_options!(locks.all(extra.names.as_deref().unwrap_or_default()), request);
            return Ok(if request.only_try {
                all.try_acquire().await?.map(Held::from)
            } else {
                Some(all.acquire().await?.into())
            });
        }
        "leader" => {
            let mut election = with_options!(locks.election(name), request);
            if let Some(value) = &extra.value {
                election = election.value(value.as_str());
            }
            return Ok(if request.only_try {
                election.try_campaign().await?.map(Held::from)
            } else {
                Some(election.campaign().await?.into())
            });
        }
        "exclusive" => locks.mutex(name),
        "shared" => locks.read(name),
        "permit" => {
            let semaphore = locks.semaphore(name, extra.limit.unwrap_or(0));
            match extra.permits {
                Some(permits) => semaphore.permits(permits),
                None => semaphore,
            }
        }
        mode => return Err(Error::invalid_config(format!("mode is 'exclusive' or 'shared', not '{mode}'"))),
    };
    let lock = with_options!(lock, request);
    Ok(match (is_detached, request.only_try) {
        (false, false) => Some(lock.acquire().await?.into()),
        (false, true) => lock.try_acquire().await?.map(Held::from),
        (true, false) => Some(lock.acquire_detached().await?.into()),
        (true, true) => lock.try_acquire_detached().await?.map(Held::from),
    })
}

/// Which leases to list, or which ended ones.
#[napi(object)]
pub struct Filter {
    pub name: Option<String>,
    pub prefix: Option<String>,
    pub limit: Option<u32>,
    /// Of a listing: the last name of the page before.
    pub after: Option<String>,
    /// Of a history: only what went wrong.
    pub failures: Option<bool>,
    /// Of a history, in milliseconds since 1970.
    pub since: Option<f64>,
    pub until: Option<f64>,
}

impl Filter {
    pub(crate) fn names(&self) -> Result<Names> {
        Ok(match (&self.name, &self.prefix) {
            (Some(_), Some(_)) => return Err(Error::invalid_config("choose by name or by prefix, not by both")),
            (Some(name), None) => Names::Exactly(Resource::new(name)?),
            (None, Some(prefix)) => Names::Prefix(prefix.clone()),
            (None, None) => Names::All,
        })
    }

    pub(crate) fn listing(&self) -> Result<ListFilter> {
        let mut filter = ListFilter::new(self.names()?);
        if let Some(limit) = self.limit {
            filter = filter.limit(limit as usize);
        }
        if let Some(after) = &self.after {
            filter = filter.after(Resource::new(after)?);
        }
        Ok(filter)
    }

    pub(crate) fn history(&self) -> Result<HistoryFilter> {
        let mut filter = HistoryFilter::new(self.names()?).failures(self.failures == Some(true));
        if let Some(limit) = self.limit {
            filter = filter.limit(limit as usize);
        }
        if let Some(since) = self.since {
            filter = filter.since(timestamp(since)?);
        }
        if let Some(until) = self.until {
            filter = filter.until(timestamp(until)?);
        }
        Ok(filter)
    }
}

pub(crate) fn seconds(option: &str, length: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(length)
        .map_err(|_| Error::invalid_config(format!("{option} is a number of seconds, not {length}")))
}

fn timestamp(millis: f64) -> Result<Timestamp> {
    let since_1970 = seconds("a date after 1970", millis / 1000.0)?;
    Ok(Timestamp::from_micros(0).after(since_1970))
}

fn json_object(text: &str) -> Result<Metadata> {
    serde_json::from_str(text).map_err(|error| Error::invalid_config("metadata is a JSON object").caused_by(error))
}
