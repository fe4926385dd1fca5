//! The native part of the npm package `leasehold`: a thin layer over the library, which the TypeScript face calls.
//!
//! Every call has an id that the face chooses, and its reply names the id. A lease has the id of the call that acquired it.

mod calls;
mod held;
mod libuv;
mod report;
mod request;

use std::{
    cell::RefCell,
    collections::HashMap,
    future::{Future, poll_fn},
    os::unix::process::CommandExt,
    process::Command,
    sync::Arc,
    thread,
};

use leasehold::{
    Builder, Error, Fence, Holder, Leasehold, Loss, Outcome, Resource,
    backend::{EventStream, Missed},
    lease::{Event, Evicted},
};
use napi::{Env, bindgen_prelude::Function};
use napi_derive::napi;
use rustix::{
    io::{FdFlags, fcntl_setfd},
    stdio::{stderr, stdin, stdout},
};
use tokio::sync::{Mutex, OnceCell};

use crate::{
    calls::Calls,
    held::{Held, OneOrAll},
    request::{ExtraOptions, Filter, LockRequest, seconds},
};

/// What came of a call: the fence of a lease that was acquired, or one of the numbers below.
///
/// Making an object for JavaScript costs more than all else that a call without an answer needs.
type Answer = f64;

/// The call succeeded and has no value to return: a lock that was tried is busy, say, or a watch has begun.
const NOTHING: Answer = -1.0;
/// `details` has it.
const DETAILS: Answer = -2.0;
/// It is under way.
const PENDING: Answer = -3.0;

/// What a number cannot tell about a call, or the loss of a lease.
#[napi(object)]
#[derive(Default)]
pub struct Details {
    /// The fence of a lease that was lost already; several are in `json`.
    pub fence: Option<f64>,
    /// Why a lease was lost.
    pub loss: Option<String>,
    /// What a call returned, as JSON.
    pub json: Option<String>,
    /// What went wrong, as JSON.
    pub error: Option<String>,
}

/// What a call came to.
enum Done {
    Acquired(Held),
    Lost(Loss),
    Watching(EventStream),
    Json(String),
    /// The call has no value to return: a lock that was tried is busy, say, or nobody leads.
    Nothing,
}

/// How to connect.
#[napi(object)]
pub struct ConnectOptions {
    pub namespace: Option<String>,
    pub holder: Option<String>,
    pub connect_seconds: Option<f64>,
}

/// The instance, once something used it.
struct Connection {
    url: String,
    builder: Builder,
    locks: OnceCell<Leasehold>,
}

impl Connection {
    async fn get(&self) -> Result<Leasehold, Error> {
        self.locks.get_or_try_init(|| self.builder.clone().connect(&self.url)).await.cloned()
    }
}

/// One connection to a backend, of one thread of JavaScript.
#[napi]
pub struct Client {
    /// `None` once it is closed: its sockets must not stay open until JavaScript collects the client.
    connection: RefCell<Option<Arc<Connection>>>,
    calls: RefCell<Calls<Result<Done, Error>>>,
    held: RefCell<HashMap<u32, Held>>,
    watches: RefCell<HashMap<u32, Arc<Mutex<EventStream>>>>,
    /// Of calls that ended, until JavaScript takes them.
    details: RefCell<HashMap<u32, Details>>,
}

#[napi]
impl Client {
    /// Connects on first use. `wake` is called when `poll` has something to do. The event loop reads answers itself if it is
    /// that of Node.
    #[napi(constructor)]
    pub fn new(
        env: Env,
        url: String,
        options: ConnectOptions,
        wake: Function<'_, (), ()>,
        is_node: bool,
    ) -> napi::Result<Self> {
        let builder = configure(options).map_err(|error| napi::Error::from_reason(report::error(&error)))?;
        let connection = RefCell::new(Some(Arc::new(Connection { url, builder, locks: OnceCell::new() })));
        Ok(Self {
            connection,
            calls: RefCell::new(Calls::new(env, &wake, is_node)?),
            held: RefCell::default(),
            watches: RefCell::default(),
            details: RefCell::default(),
        })
    }

    /// Acquires; replies with a fence, or with nothing if it is busy and was only tried.
    #[napi]
    #[allow(clippy::too_many_arguments, reason = "arguments are cheaper than an object")]
    pub fn acquire(
        &self,
        id: u32,
        mode: String,
        name: String,
        only_try: bool,
        wait_seconds: Option<f64>,
        ttl_seconds: Option<f64>,
        extra: Option<ExtraOptions>,
    ) -> Answer {
        let extra = extra.unwrap_or_default();
        let request = LockRequest { mode, name, only_try, wait_seconds, ttl_seconds, extra };
        self.start(id, async move |locks| {
            Ok(request::acquire(&locks, &request).await?.map_or(Done::Nothing, Done::Acquired))
        })
    }

    /// Releases a lease; replies with the loss if it was lost before.
    #[napi]
    pub fn release(&self, id: u32, lease: u32, problem: Option<String>, details: Option<String>) -> Answer {
        // Otherwise the release itself would be told as a loss.
        self.calls.borrow_mut().cancel(lease);
        let held = self.held.borrow_mut().remove(&lease);
        let outcome = match problem {
            Some(kind) => Outcome::failed(kind, details.unwrap_or_default()),
            None => Outcome::Completed,
        };
        self.start_any(id, async move {
            let Some(held) = held else { return Ok(Done::Lost(Loss::Gone)) };
            Ok(held.release(outcome).await?.map_or(Done::Nothing, Done::Lost))
        })
    }

    /// Renews a lease for a number of seconds from now.
    #[napi]
    pub fn renew(&self, id: u32, lease: u32, ttl: f64) -> Answer {
        let leases = self.held.borrow().get(&lease).map(|held| held.leases.clone()).unwrap_or_default();
        self.start_any(id, async move {
            let ttl = seconds("the ttl", ttl)?;
            for lease in leases {
                lease.renew(ttl).await?;
            }
            Ok(Done::Nothing)
        })
    }

    /// Lists leases and waiters.
    #[napi]
    pub fn list(&self, id: u32, filter: Filter) -> Answer {
        self.start(id, async move |locks| Ok(Done::Json(report::page(&locks.list(&filter.listing()?).await?))))
    }

    /// Returns ended leases.
    #[napi]
    pub fn history(&self, id: u32, filter: Filter) -> Answer {
        self.start(id, async move |locks| Ok(Done::Json(report::history(&locks.history(&filter.history()?).await?))))
    }

    /// Begins to watch; the watch has the id of this call.
    #[napi]
    pub fn watch(&self, id: u32, filter: Filter) -> Answer {
        self.start(id, async move |locks| Ok(Done::Watching(locks.watch(filter.names()?).await?)))
    }

    /// Returns the next event of a watch, or nothing if it has ended.
    #[napi]
    pub fn next_event(&self, id: u32, watch: u32) -> Answer {
        let events = self.watches.borrow().get(&watch).cloned();
        self.start_any(id, async move {
            let Some(events) = events else { return Ok(Done::Nothing) };
            let mut events = events.lock().await;
            let next: Option<Result<Event, Missed>> = poll_fn(|context| events.as_mut().poll_next(context)).await;
            Ok(next.map_or(Done::Nothing, |event| {
                Done::Json(event.map_or_else(|_| report::missed(), |event| report::event(&event)))
            }))
        })
    }

    /// Ends a watch.
    #[napi]
    pub fn unwatch(&self, watch: u32) {
        self.watches.borrow_mut().remove(&watch);
    }

    /// Takes a lease away from its holder; replies with whether that fence held it.
    #[napi]
    pub fn evict(&self, id: u32, name: String, fence: f64, reason: String) -> Answer {
        self.start(id, async move |locks| {
            let evicted = locks.evict(&Resource::new(&name)?, fence_of(fence)?, &reason).await?;
            Ok(Done::Json(matches!(evicted, Evicted::Evicted { .. }).to_string()))
        })
    }

    /// Returns the leader of an election, or nothing.
    #[napi]
    pub fn leader(&self, id: u32, name: String) -> Answer {
        self.start(id, async move |locks| {
            let leader = locks.election(&name).leader().await?;
            Ok(leader.map_or(Done::Nothing, |leader| Done::Json(report::leader(&leader))))
        })
    }

    /// Ends every wait and releases every lease.
    #[napi]
    pub fn close(&self, id: u32) -> Answer {
        let connection = self.connection.take();
        self.start_any(id, async move {
            let Some(connection) = connection else { return Ok(Done::Nothing) };
            let closed = match connection.locks.get() {
                Some(locks) => locks.close().await,
                None => Ok(()),
            };
            // What a backend does when it is dropped may take a while, and this is the thread of JavaScript.
            thread::spawn(move || drop(connection));
            closed.map(|()| Done::Nothing)
        })
    }

    /// Returns the replies that came in, and the losses: the id of each call or lease, and what came of it.
    #[napi]
    pub fn poll(&self) -> Vec<f64> {
        let done = self.calls.borrow_mut().poll();
        done.into_iter().flat_map(|(id, result)| [f64::from(id), self.reply(id, result)]).collect()
    }

    /// Takes the details of a call.
    #[napi]
    pub fn details(&self, id: u32) -> Option<Details> {
        self.details.borrow_mut().remove(&id)
    }

    /// Undoes a call that is under way.
    #[napi]
    pub fn cancel(&self, id: u32) {
        self.calls.borrow_mut().cancel(id);
    }

    /// Lets go of a lease that was lost.
    #[napi]
    pub fn forget(&self, lease: u32) {
        self.calls.borrow_mut().cancel(lease);
        self.held.borrow_mut().remove(&lease);
    }

    /// Returns why a lease was lost, as of now; nothing while it is held.
    #[napi]
    pub fn loss(&self, lease: u32) -> Option<&'static str> {
        self.held.borrow().get(&lease).and_then(Held::loss).map(Loss::as_str)
    }

    /// Returns for how many milliseconds a lease is valid without a renewal.
    #[napi]
    pub fn remaining(&self, lease: u32) -> f64 {
        match self.held.borrow().get(&lease) {
            Some(held) => held.remaining().map_or(f64::INFINITY, |left| left.as_secs_f64() * 1000.0),
            None => 0.0,
        }
    }

    /// Returns the handle of a lease; nothing once it was released or lost.
    #[napi]
    pub fn handle(&self, lease: u32) -> Option<String> {
        self.held.borrow().get(&lease).and_then(|held| held.leases.first()).map(|lease| lease.handle().to_string())
    }

    /// Starts a call that needs the connection.
    fn start<F>(&self, id: u32, call: impl FnOnce(Leasehold) -> F + 'static) -> Answer
    where
        F: Future<Output = Result<Done, Error>>,
    {
        let Some(connection) = self.connection.borrow().clone() else {
            return self.with_details(id, Details { error: Some(report::closed()), ..Details::default() });
        };
        self.start_any(id, async move { call(connection.get().await?).await })
    }

    fn start_any(&self, id: u32, call: impl Future<Output = Result<Done, Error>> + 'static) -> Answer {
        let done = self.calls.borrow_mut().start(id, call);
        done.map_or(PENDING, |result| self.reply(id, result))
    }

    fn reply(&self, id: u32, result: Result<Done, Error>) -> Answer {
        let details = match result {
            Ok(Done::Acquired(held)) => return self.keep(id, held),
            Ok(Done::Watching(events)) => {
                self.watches.borrow_mut().insert(id, Arc::new(Mutex::new(events)));
                return NOTHING;
            }
            Ok(Done::Nothing) => return NOTHING,
            Ok(Done::Lost(loss)) => Details { loss: Some(loss.as_str().to_owned()), ..Details::default() },
            Ok(Done::Json(json)) => Details { json: Some(json), ..Details::default() },
            Err(error) => Details { error: Some(report::error(&error)), ..Details::default() },
        };
        self.with_details(id, details)
    }

    fn with_details(&self, id: u32, details: Details) -> Answer {
        self.details.borrow_mut().insert(id, details);
        DETAILS
    }

    /// Keeps what was acquired until it is released, and watches it.
    fn keep(&self, id: u32, held: Held) -> Answer {
        let lost = held.lost();
        let watch = async move { Ok(Done::Lost(lost.await)) };
        let reason = match self.calls.borrow_mut().start(id, watch) {
            Some(Ok(Done::Lost(reason))) => Some(reason.as_str().to_owned()),
            _ => None,
        };
        let (fence, json) = match &held.guards {
            OneOrAll::One(guard) => (Some(as_number(guard.fence())), None),
            OneOrAll::Detached(detached) => (Some(as_number(detached.lease.fence())), None),
            OneOrAll::All(_) => (None, Some(report::fences(&held.leases))),
        };
        self.held.borrow_mut().insert(id, held);
        match fence {
            Some(fence) if reason.is_none() => fence,
            _ => self.with_details(id, Details { fence, loss: reason, json, error: None }),
        }
    }
}

/// Replaces this process by another program; returns why that failed.
#[napi]
pub fn exec(program: String, arguments: Vec<String>) -> String {
    // Node has marked its standard streams to be closed.
    for stream in [stdin(), stdout(), stderr()] {
        if let Err(error) = fcntl_setfd(stream, FdFlags::empty()) {
            return error.to_string();
        }
    }
    Command::new(program).args(arguments).exec().to_string()
}

fn configure(options: ConnectOptions) -> Result<Builder, Error> {
    let mut builder = Leasehold::builder();
    if let Some(namespace) = options.namespace {
        builder = builder.namespace(namespace);
    }
    if let Some(holder) = options.holder {
        builder = builder.holder(Holder::new(holder)?);
    }
    if let Some(limit) = options.connect_seconds {
        builder = builder.connect_limit(seconds("connectSeconds", limit)?);
    }
    Ok(builder)
}

#[allow(clippy::cast_precision_loss, reason = "a fence is below 2^53")]
fn as_number(fence: Fence) -> f64 {
    fence.get() as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was compared with both ends")]
fn fence_of(number: f64) -> Result<Fence, Error> {
    if number.fract() == 0.0 && (0.0..=as_number(Fence::MAX)).contains(&number) {
        return Ok(Fence::new(number as u64));
    }
    Err(Error::invalid_config(format!("a fence is a whole number below 2^53, not {number}")))
}
