//! Has the event loop of Node read the answers to the calls of its thread.
//!
//! Otherwise they come by way of a thread of the library, which has to wake the event loop for each. This is the only file
//! with unsafe code of its own: it calls libuv, which Node contains.
//!
//! A thread of JavaScript has one event loop and at most one poll handle. It is made with the first client, and closed when
//! the environment of that client ends; clients that are left then do without. All that is here stays on its thread.

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_void},
    mem::{self, ManuallyDrop},
    os::fd::{AsFd, AsRawFd},
    ptr,
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
};

use leasehold::event_loop::EventLoop;
use napi::{
    Env, JsValue,
    bindgen_prelude::{Function, FunctionRef},
    check_status, sys,
};

/// `UV_POLL` of `uv_handle_type`.
const POLL: c_int = 8;
/// `UV_READABLE` of `uv_poll_event`.
const READABLE: c_int = 1;

/// A `uv_poll_t`, of which only libuv knows the fields.
type Handle = *mut c_void;
type OnEvents = extern "C" fn(Handle, status: c_int, events: c_int);
type OnClosed = extern "C" fn(Handle);

/// Delivers what came of the calls of a client.
type Deliver = FunctionRef<(), ()>;

thread_local! {
    /// Dropped by `on_end` at the latest, while the environment still exists.
    static HERE: RefCell<ManuallyDrop<Here>> = RefCell::default();
    /// The clients of which calls were woken while the event loop read; `None` while it does not.
    static WOKEN: RefCell<Option<Vec<u32>>> = const { RefCell::new(None) };
}

/// What this thread has.
#[derive(Default)]
struct Here {
    reader: Option<Reader>,
    clients: HashMap<u32, (sys::napi_env, Rc<Deliver>)>,
}

/// The event loop of this thread, and the handle that watches its descriptor.
struct Reader {
    event_loop: EventLoop,
    libuv: Libuv,
    /// A `uv_poll_t`: libuv says how large it is, and uses it until it is closed.
    handle: Box<[u64]>,
    hook: sys::napi_async_cleanup_hook_handle,
}

/// The functions of libuv that are needed.
struct Libuv {
    handle_size: unsafe extern "C" fn(c_int) -> usize,
    poll_init: unsafe extern "C" fn(*mut sys::uv_loop_s, Handle, c_int) -> c_int,
    poll_start: unsafe extern "C" fn(Handle, c_int, OnEvents) -> c_int,
    unref: unsafe extern "C" fn(Handle),
    close: unsafe extern "C" fn(Handle, OnClosed),
}

impl Libuv {
    /// Looks them up in the process, since the package must load without them too.
    fn find() -> Option<Self> {
        // SAFETY: these are their types, in each version 1 of libuv.
        unsafe {
            Some(Self {
                handle_size: function(c"uv_handle_size")?,
                poll_init: function(c"uv_poll_init")?,
                poll_start: function(c"uv_poll_start")?,
                unref: function(c"uv_unref")?,
                close: function(c"uv_close")?,
            })
        }
    }
}

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A function of the process.
///
/// # Safety
/// `F` must be the type of a pointer to that function.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: null stands for all that is loaded, and the type is as the caller says.
    unsafe {
        let address = dlsym(ptr::null_mut(), name.as_ptr());
        (!address.is_null()).then(|| mem::transmute_copy(&address))
    }
}

/// Lets the event loop of this thread read; forgets its client when it is dropped.
pub(crate) struct Client(u32);

impl Client {
    /// `deliver` is called when calls of the client were woken while the event loop read. Without Node there is no libuv,
    /// even if there are functions of these names.
    pub(crate) fn new(env: Env, deliver: &Function<'_, (), ()>, is_node: bool) -> napi::Result<Self> {
        static LAST_ID: AtomicU32 = AtomicU32::new(0);
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed);
        let deliver = Rc::new(deliver.create_ref()?);
        let start = || if is_node { Reader::start(env) } else { None };
        let reader = HERE.with_borrow_mut(|here| here.reader.take()).or_else(start);
        HERE.with_borrow_mut(|here| {
            here.reader = reader;
            here.clients.insert(id, (env.raw(), deliver));
        });
        Ok(Self(id))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _dropped_after_the_borrow = HERE.with_borrow_mut(|here| here.clients.remove(&self.0));
    }
}

/// Polls calls of this thread, whose event loop reads the answers if it can.
pub(crate) fn poll_here<T>(poll: impl FnOnce() -> T) -> T {
    let event_loop = HERE.with_borrow(|here| Some(here.reader.as_ref()?.event_loop.clone()));
    match event_loop {
        Some(event_loop) => event_loop.poll_here(poll),
        None => poll(),
    }
}

/// Notes that a call of this client was woken; returns false unless the event loop of the client reads on this thread just
/// now: somebody has to wake it then.
pub(crate) fn note_woken(client: u32) -> bool {
    let note = |woken: &RefCell<Option<Vec<u32>>>| {
        let mut woken = woken.borrow_mut();
        let Some(woken) = woken.as_mut() else { return false };
        if !HERE.with_borrow(|here| here.clients.contains_key(&client)) {
            return false;
        }
        if !woken.contains(&client) {
            woken.push(client);
        }
        true
    };
    WOKEN.try_with(note).unwrap_or(false)
}

/// Reads, and delivers what came of it.
extern "C" fn on_readable(_: Handle, _: c_int, _: c_int) {
    let event_loop = HERE.with_borrow(|here| Some(here.reader.as_ref()?.event_loop.clone()));
    let Some(event_loop) = event_loop else { return };
    WOKEN.set(Some(Vec::new()));
    let answered = event_loop.read();
    for client in WOKEN.take().unwrap_or_default() {
        let deliver = HERE.with_borrow(|here| here.clients.get(&client).cloned());
        if let Some((env, deliver)) = deliver {
            // It fails while the environment ends, and then nobody waits.
            let _ended = call(env, &deliver);
        }
    }
    drop(answered);
}

/// Calls a function from the event loop, and then all that waits for what it resolves.
fn call(env: sys::napi_env, function: &Deliver) -> napi::Result<()> {
    // SAFETY: the environment is that of a client of this thread, whose finalizer has not run.
    unsafe {
        let mut scope = ptr::null_mut();
        check_status!(sys::napi_open_handle_scope(env, &raw mut scope))?;
        let called = call_in_scope(env, function);
        check_status!(sys::napi_close_handle_scope(env, scope))?;
        called
    }
}

/// # Safety
/// The environment must be one of this thread, with an open scope of handles.
unsafe fn call_in_scope(env: sys::napi_env, function: &Deliver) -> napi::Result<()> {
    let of_function = Env::from_raw(env);
    let function = function.borrow_back(&of_function)?;
    let (mut receiver, mut returned) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: as above; the function takes no arguments, and without a context none is entered.
    unsafe {
        check_status!(sys::napi_get_global(env, &raw mut receiver))?;
        let function = function.raw();
        let status =
            sys::napi_make_callback(env, ptr::null_mut(), receiver, function, 0, ptr::null(), &raw mut returned);
        if status == sys::Status::napi_pending_exception {
            let mut thrown = ptr::null_mut();
            check_status!(sys::napi_get_and_clear_last_exception(env, &raw mut thrown))?;
            check_status!(sys::napi_fatal_exception(env, thrown))?;
        }
    }
    Ok(())
}

impl Reader {
    /// Has the event loop of this thread watch a new one of the library; `None` if it cannot, which only costs time.
    fn start(env: Env) -> Option<Self> {
        let (event_loop, libuv) = (EventLoop::new().ok()?, Libuv::find()?);
        let of_thread = env.get_uv_event_loop().ok()?;
        let mut hook = ptr::null_mut();
        // SAFETY: `on_end` closes the handle while the loop still exists; until then, its memory and the descriptor stay.
        unsafe {
            let added = sys::napi_add_async_cleanup_hook(env.raw(), Some(on_end), ptr::null_mut(), &raw mut hook);
            check_status!(added).ok()?;
            let size = (libuv.handle_size)(POLL).div_ceil(size_of::<u64>());
            let mut reader = Self { event_loop, libuv, handle: vec![0; size].into_boxed_slice(), hook };
            let handle = reader.handle();
            if (reader.libuv.poll_init)(of_thread, handle, reader.event_loop.as_fd().as_raw_fd()) != 0 {
                sys::napi_remove_async_cleanup_hook(hook);
                return None;
            }
            // It alone keeps no process alive.
            (reader.libuv.unref)(handle);
            // If it fails, nothing is read here, which the library notices.
            (reader.libuv.poll_start)(handle, READABLE, on_readable);
            Some(reader)
        }
    }

    fn handle(&mut self) -> Handle {
        self.handle.as_mut_ptr().cast()
    }
}

/// Closes the handle when the environment ends, which waits for `on_closed`.
unsafe extern "C" fn on_end(_: sys::napi_async_cleanup_hook_handle, _: *mut c_void) {
    let _dropped_after_the_borrow = HERE.with_borrow_mut(|here| {
        if let Some(reader) = &mut here.reader {
            let handle = reader.handle();
            // SAFETY: it is closed here alone, and stays in `HERE` until that is done.
            unsafe { (reader.libuv.close)(handle, on_closed) };
        }
        mem::take(&mut here.clients)
    });
}

extern "C" fn on_closed(_: Handle) {
    let reader = HERE.with_borrow_mut(|here| here.reader.take());
    if let Some(reader) = reader {
        // SAFETY: the environment waits for this.
        unsafe { sys::napi_remove_async_cleanup_hook(reader.hook) };
    }
}
