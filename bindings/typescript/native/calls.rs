//! The calls that are under way: futures of the library, polled on the thread of JavaScript.
//!
//! A call is polled as soon as it starts, so that its request leaves on this thread; on a backend that never waits it is
//! done then. Afterwards whichever thread has its answer notes the call's id and wakes the event loop, which polls all
//! calls that were noted. While calls are under way, that thread is usually the event loop's own (`libuv.rs`). No runtime is
//! needed, and a call that waits costs nothing.

use std::{
    collections::HashMap,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use napi::{
    Env, Status,
    bindgen_prelude::Function,
    threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode},
};
use parking_lot::Mutex;

use crate::libuv;

/// Wakes the event loop without keeping it alive.
type WakeLoop = ThreadsafeFunction<(), (), (), Status, false, true>;

type Pending<T> = (Pin<Box<dyn Future<Output = T>>>, Waker);

pub(crate) struct Calls<T> {
    pending: HashMap<u32, Pending<T>>,
    ready: Arc<Ready>,
    _client: libuv::Client,
}

/// The ids of the calls to poll.
struct Ready {
    ids: Mutex<Vec<u32>>,
    wake: WakeLoop,
    client: u32,
}

struct CallWaker {
    id: u32,
    ready: Arc<Ready>,
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ids = self.ready.ids.lock();
        ids.push(self.id);
        let is_first = ids.len() == 1;
        drop(ids);
        if !libuv::note_woken(self.ready.client) && is_first {
            // Fails once the event loop has ended; nobody awaits the call then.
            let _ended = self.ready.wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }
}

impl<T> Calls<T> {
    /// `wake` is called on the event loop when there are calls to poll.
    pub(crate) fn new(env: Env, wake: &Function<'_, (), ()>, is_node: bool) -> napi::Result<Self> {
        let client = libuv::Client::new(env, wake, is_node)?;
        let wake = wake.build_threadsafe_function().weak::<true>().build()?;
        let ready = Arc::new(Ready { ids: Mutex::default(), wake, client: client.id() });
        Ok(Self { pending: HashMap::new(), ready, _client: client })
    }

    /// Starts a call; returns its result if it is done at once.
    pub(crate) fn start(&mut self, id: u32, call: impl Future<Output = T> + 'static) -> Option<T> {
        let mut call: Pin<Box<dyn Future<Output = T>>> = Box::pin(call);
        let waker = Waker::from(Arc::new(CallWaker { id, ready: Arc::clone(&self.ready) }));
        match libuv::poll_here(|| call.as_mut().poll(&mut Context::from_waker(&waker))) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => {
                self.pending.insert(id, (call, waker));
                None
            }
        }
    }

    /// Polls the calls that were woken, and returns those that are done.
    pub(crate) fn poll(&mut self) -> Vec<(u32, T)> {
        let ids = mem::take(&mut *self.ready.ids.lock());
        let mut done = Vec::with_capacity(ids.len());
        for id in ids {
            // A call may have been woken twice, or cancelled meanwhile.
            let Some((call, waker)) = self.pending.get_mut(&id) else { continue };
            if let Poll::Ready(result) = libuv::poll_here(|| call.as_mut().poll(&mut Context::from_waker(waker))) {
                self.pending.remove(&id);
                done.push((id, result));
            }
        }
        done
    }

    /// Drops a call, which undoes it.
    pub(crate) fn cancel(&mut self, id: u32) {
        self.pending.remove(&id);
    }
}
