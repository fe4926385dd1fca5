//! A call of the library that Python polls from an event loop or waits for in a thread.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use leasehold::{
    Error,
    clock::{Clock, SystemClock},
};
use parking_lot::Mutex;
use pyo3::{IntoPyObjectExt, prelude::*};
use tokio::runtime::{Builder, Runtime};

use crate::{errors, instance::seconds, lease::Lease, mailbox::Notifier, of_process::OfProcess, watch::Watch};

/// How long a thread reads answers itself. A wait that takes longer needs no descriptors and no timer.
const QUICK: Duration = Duration::from_millis(20);
/// How often the main thread of a waiting program looks for signals, such as that of Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);
/// The most idle runtimes for quick calls.
const KEPT_RUNTIMES: usize = 4;

/// What a call gives to Python.
pub(crate) enum Value {
    Nothing,
    Flag(bool),
    Text(String),
    Lease(Lease),
    Watch(Watch),
}

impl Value {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::Nothing => Ok(py.None()),
            Self::Flag(flag) => flag.into_py_any(py),
            Self::Text(text) => text.into_py_any(py),
            Self::Lease(lease) => lease.into_py_any(py),
            Self::Watch(watch) => watch.into_py_any(py),
        }
    }
}

type Running = Pin<Box<dyn Future<Output = Result<Value, Error>> + Send>>;

enum Stage {
    Running(Running),
    Done(Result<Value, Error>),
    /// The result was taken, or the call was cancelled.
    Over,
}

impl Stage {
    /// Polls a call that runs; returns whether it has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        if let Self::Running(running) = self {
            match running.as_mut().poll(context) {
                Poll::Ready(result) => *self = Self::Done(result),
                Poll::Pending => return false,
            }
        }
        true
    }
}

/// A call that has not begun yet, runs, or has ended.
#[pyclass(frozen, module = "leasehold._native")]
pub(crate) struct Call {
    stage: OfProcess<Mutex<Stage>>,
    notifier: OfProcess<Mutex<Option<Arc<Notifier>>>>,
}

impl Call {
    pub(crate) fn new(running: impl Future<Output = Result<Value, Error>> + Send + 'static) -> Self {
        Self {
            stage: OfProcess::new(Mutex::new(Stage::Running(Box::pin(running)))),
            notifier: OfProcess::new(Mutex::new(None)),
        }
    }

    /// Begins the call; returns whether it has ended. If not, it tells the notifier when it has to be polled.
    pub(crate) fn start(&self, py: Python<'_>, notifier: Arc<Notifier>) -> PyResult<bool> {
        *self.notifier.get()?.lock() = Some(notifier);
        self.poll(py)
    }

    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match std::mem::replace(&mut *self.stage.get()?.lock(), Stage::Over) {
            Stage::Done(result) => finish(py, Some(result)),
            Stage::Running(_) | Stage::Over => finish(py, None),
        }
    }
}

#[pymethods]
impl Call {
    /// Goes on with a call that was started; returns whether it has ended.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        let stage = self.stage.get()?;
        let Some(notifier) = self.notifier.get()?.lock().clone() else { return Ok(false) };
        Ok(py.detach(|| notifier.poll(|waker| stage.lock().poll(&mut Context::from_waker(waker)))))
    }

    /// The result of a call that has ended.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.take(py)
    }

    /// Drops the call and whatever it has got: a lease, or a position in a queue, is given back in the background.
    fn cancel(&self, py: Python<'_>) {
        if let Some(stage) = self.stage.if_own() {
            py.detach(|| drop(std::mem::replace(&mut *stage.lock(), Stage::Over)));
        }
    }

    /// Waits on this thread until the call has ended, for at most this many seconds; returns whether it has. A signal
    /// handler that raises, as that of Ctrl-C does, cancels the call.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let stage = self.stage.get()?;
        let limit = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
        wait_until_ended(py, &mut |context| stage.lock().poll(context), limit).inspect_err(|_raised| self.cancel(py))
    }
}

/// Runs a call to its end on this thread, and returns what it gives to Python. A signal handler that raises cancels it.
pub(crate) fn block(py: Python<'_>, running: impl Future<Output = Result<Value, Error>> + Send) -> PyResult<Py<PyAny>> {
    let (mut running, mut result) = (pin!(running), None);
    let mut poll = |context: &mut Context<'_>| match running.as_mut().poll(context) {
        Poll::Ready(ended) => {
            result = Some(ended);
            true
        }
        Poll::Pending => false,
    };
    wait_until_ended(py, &mut poll, None)?;
    finish(py, result)
}

/// The result of a call for Python.
fn finish(py: Python<'_>, result: Option<Result<Value, Error>>) -> PyResult<Py<PyAny>> {
    match result {
        Some(Ok(value)) => value.into_python(py),
        Some(Err(error)) => Err(errors::exception(&error)),
        None => Err(errors::invalid("the call has no result")),
    }
}

/// Polls a call; returns whether it has ended.
type PollCall<'a> = &'a mut (dyn FnMut(&mut Context<'_>) -> bool + Send);

/// Polls a call on this thread until it has ended, for at most this long; returns whether it has. Fails if a signal handler
/// raises.
fn wait_until_ended(py: Python<'_>, poll: PollCall<'_>, limit: Option<Duration>) -> PyResult<bool> {
    let until = limit.map(|limit| SystemClock.now().after(limit));
    if py.detach(|| wait_quickly(poll, limit.map_or(QUICK, |limit| limit.min(QUICK)))) {
        return Ok(true);
    }
    let longest = if is_main_thread(py)? { SIGNALS } else { Duration::MAX };
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let left = until.map_or(Duration::MAX, |until| until.since(SystemClock.now()));
        if py.detach(|| wait_for(poll, &waker, left.min(longest))) {
            return Ok(true);
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(false);
        }
    }
}

/// Polls a call for a short while on a runtime of this thread, which reads the answer itself: no other thread has to be
/// woken. Returns whether the call has ended.
fn wait_quickly(poll: PollCall<'_>, limit: Duration) -> bool {
    let Some(runtime) = take_runtime() else { return false };
    let ended = poll_fn(|context| if poll(context) { Poll::Ready(()) } else { Poll::Pending });
    let in_time = runtime.block_on(async { tokio::time::timeout(limit, ended).await }).is_ok();
    keep_runtime(runtime);
    in_time
}

/// Polls a call now and when it is woken, for at most about this long; returns whether it has ended.
fn wait_for(poll: PollCall<'_>, waker: &Waker, limit: Duration) -> bool {
    let mut context = Context::from_waker(waker);
    poll(&mut context) || {
        thread::park_timeout(limit);
        poll(&mut context)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main: u64 = threading.call_method0("main_thread")?.getattr("ident")?.extract()?;
    Ok(main == threading.call_method0("get_ident")?.extract::<u64>()?)
}

/// Runtimes of threads that do not wait just now, each with the fork generation that it was made in.
static RUNTIMES: Mutex<Vec<(u32, Runtime)>> = Mutex::new(Vec::new());

fn take_runtime() -> Option<Runtime> {
    // A forked child may find it locked for ever.
    let kept = RUNTIMES.try_lock().and_then(|mut runtimes| runtimes.pop());
    match kept {
        Some((generation, runtime)) if generation == leasehold_fork::generation() => return Some(runtime),
        Some((_, inherited)) => std::mem::forget(inherited),
        None => {}
    }
    Builder::new_current_thread().enable_all().build().ok()
}

fn keep_runtime(runtime: Runtime) {
    if let Some(mut runtimes) = RUNTIMES.try_lock()
        && runtimes.len() < KEPT_RUNTIMES
    {
        runtimes.push((leasehold_fork::generation(), runtime));
    }
}
