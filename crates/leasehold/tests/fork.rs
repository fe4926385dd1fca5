//! Processes that fork while they hold leases: the child is another process.
//!
//! Each part runs in a process of its own, this test binary, whose only other threads are the library's.

#![cfg(all(unix, feature = "file", feature = "memory"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by its panic")]

#[cfg(feature = "postgres")]
mod postgres_schema;

use std::{
    env,
    future::pending,
    io::{self, BufRead, BufReader, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::{self, Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use fork::Fork;
use leasehold::{
    Guard, LeaseHealth, Leasehold, Loss, Result,
    backend::{Backend, OpenOptions, Opening},
    backends::memory::MemoryBackend,
    clock::SystemClock,
    lease::{HistoryFilter, LeaseId, ListFilter, Names, Outcome, Released},
};
use rustix::process::{Pid, Signal, getpid, kill_process};
use tokio::runtime::{Builder, Runtime};

// ---- what the tests are written with ----

const PART: &str = "LEASEHOLD_TEST_PART";
const URL: &str = "LEASEHOLD_TEST_URL";
/// Longer than any call takes that does not hang.
const LIMIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);
/// Longer than any of these tests takes.
const IDLE: Duration = Duration::from_secs(120);
const TTL: Duration = Duration::from_secs(60);

fn file_url(root: &Path) -> String {
    format!("file://{}", root.display())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Starts this test binary to play a part.
fn start(part: &str, url: &str) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "parts", "--nocapture"])
        .env(PART, part)
        .env(URL, url)
        .env("LEASEHOLD_URL", url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Plays a part to its end, which must be a good one.
#[track_caller]
fn play(part: &str, url: &str) {
    let played = start(part, url).wait_with_output().unwrap();
    assert!(played.status.success(), "{part} on {url}: {}", String::from_utf8_lossy(&played.stdout));
}

/// Not a test of its own: the parts that other processes play.
#[test]
fn parts() {
    let Ok(part) = env::var(PART) else { return };
    let url = env::var(URL).unwrap();
    match part.as_str() {
        "inherited calls" => inherited_calls(&url),
        "children that end" => children_that_end(&url),
        "wake-ups" => wake_ups(&url),
        "new connection" => new_connection(&url),
        "idle child" => idle_child(&url),
        "shared instance" => shared_instance(),
        "hold" => hold(&url),
        "ids" => ids(),
        other => panic!("no part {other}"),
    }
}

/// Forks a child that does this and exits well if it was so.
fn fork_child(check: impl FnOnce() -> bool) -> i32 {
    match fork::fork().unwrap() {
        Fork::Child => process::exit(i32::from(!catch_unwind(AssertUnwindSafe(check)).unwrap_or(false))),
        Fork::Parent(pid) => pid,
    }
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// Returns a child's status as `waitpid` has it; fails if the child hangs.
#[track_caller]
fn status_of(child: i32, what: &str) -> i32 {
    for _ in 0..(LIMIT.as_millis() / PAUSE.as_millis()) {
        if let Some(status) = fork::waitpid_nohang(child).unwrap() {
            return status;
        }
        thread::sleep(PAUSE);
    }
    kill(child);
    fork::waitpid(child).unwrap();
    panic!("{what} hangs in a forked child");
}

/// One instance with one lease.
struct Held {
    runtime: Runtime,
    locks: Leasehold,
    guard: Option<Guard>,
}

impl Held {
    fn new(url: &str) -> Self {
        let runtime = runtime();
        let locks = runtime.block_on(Leasehold::connect(url)).unwrap();
        let guard = runtime.block_on(locks.mutex("held").ttl(TTL).try_acquire()).unwrap();
        assert!(guard.is_some());
        Self { runtime, locks, guard }
    }

    fn guard(&self) -> &Guard {
        self.guard.as_ref().unwrap()
    }

    /// Fails unless the lease is as good as before.
    fn assert_undisturbed(&mut self) {
        self.guard().check().unwrap();
        self.runtime.block_on(self.guard().renew(TTL)).unwrap();
        let other = self.runtime.block_on(self.locks.mutex("held").try_acquire()).unwrap();
        assert!(other.is_none(), "the lock was granted twice");
    }

    fn release(&mut self) {
        let released = self.runtime.block_on(self.guard.take().unwrap().release()).unwrap();
        assert_eq!(released, Released::Freed);
    }
}

// ---- inherited instances ----

type Call = (&'static str, fn(&Runtime, &Leasehold, Guard) -> Result<()>);

/// The calls that a child may make on what it inherited.
const CALLS: &[Call] = &[
    ("check", |_, _, guard| guard.check()),
    ("renew", |runtime, _, guard| runtime.block_on(guard.renew(TTL))),
    ("release", |runtime, _, guard| runtime.block_on(guard.release()).map(drop)),
    ("acquire", |runtime, locks, _| runtime.block_on(locks.mutex("free").acquire()).map(drop)),
    ("acquire of what the parent holds", |runtime, locks, _| {
        runtime.block_on(locks.mutex("held").wait_forever().acquire()).map(drop)
    }),
    ("try_acquire", |runtime, locks, _| runtime.block_on(locks.mutex("free").try_acquire()).map(drop)),
    ("read", |runtime, locks, _| runtime.block_on(locks.read("free").acquire()).map(drop)),
    ("acquire of a permit", |runtime, locks, _| runtime.block_on(locks.semaphore("permits", 2).acquire()).map(drop)),
    ("acquire of two", |runtime, locks, _| runtime.block_on(locks.all(["free", "more"]).acquire()).map(drop)),
    ("start of an election", |runtime, locks, _| runtime.block_on(locks.election("leader").start()).map(drop)),
    ("list", |runtime, locks, _| runtime.block_on(locks.list(&ListFilter::new(Names::All))).map(drop)),
    ("history", |runtime, locks, _| runtime.block_on(locks.history(&HistoryFilter::new(Names::All))).map(drop)),
    ("watch", |runtime, locks, _| runtime.block_on(locks.watch(Names::All)).map(drop)),
    ("find by handle", |runtime, locks, guard| runtime.block_on(locks.find(&guard.handle())).map(drop)),
    ("renew by handle", |runtime, locks, guard| runtime.block_on(locks.renew(&guard.handle(), TTL)).map(drop)),
    ("release by handle", |runtime, locks, guard| {
        runtime.block_on(locks.release(&guard.handle(), Outcome::Completed)).map(drop)
    }),
    ("release_all", |runtime, locks, _| runtime.block_on(locks.release_all()).map(drop)),
    ("close", |runtime, locks, _| runtime.block_on(locks.close())),
];

fn inherited_calls(url: &str) {
    let mut held = Held::new(url);
    let mut wrong = Vec::new();
    for (name, call) in CALLS {
        let child = fork_child(|| match call(&runtime(), &held.locks, held.guard.take().unwrap()) {
            Err(error) if error.to_string().contains("connect again") => true,
            Err(error) => {
                eprintln!("{name} in a forked child fails without saying what to do: {error}");
                false
            }
            Ok(()) => {
                eprintln!("{name} in a forked child succeeds");
                false
            }
        });
        if status_of(child, name) != 0 {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "on {url}: {wrong:?}");
    looks_at_a_lease_that_threads_use(&held);
    let child = fork_child(|| {
        let state = (held.guard().health(), held.guard().loss());
        state == (LeaseHealth::Lost, Some(Loss::Gone))
    });
    assert_eq!(status_of(child, "health and loss"), 0, "on {url}: the child holds what its parent holds");
    held.assert_undisturbed();
    held.release();
}

/// Forks while other threads look at the lease: what they have locked stays locked in the child.
fn looks_at_a_lease_that_threads_use(held: &Held) {
    let lease = held.guard().lease();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    let _ = (lease.metadata(), lease.mode());
                }
            });
        }
        for _ in 0..30 {
            let child = fork_child(|| {
                let _ = (lease.fence(), lease.mode(), lease.metadata(), lease.handle(), lease.acquired_at());
                let _ = (lease.waited(), lease.ttl(), lease.remaining(), format!("{lease:?}"));
                true
            });
            let status = catch_unwind(|| status_of(child, "a look at a lease"));
            if status.as_ref().ok() != Some(&0) {
                done.store(true, Relaxed);
            }
            assert_eq!(status.ok(), Some(0));
        }
        done.store(true, Relaxed);
    });
}

#[test]
fn every_call_on_an_inherited_instance_says_to_connect_again() {
    let root = tempfile::tempdir().unwrap();
    for url in [file_url(root.path()), String::from("memory:")] {
        play("inherited calls", &url);
    }
}

// ---- children that end ----

type End = (&'static str, fn(Leasehold, Guard) -> bool);

/// The ways in which a child leaves what it inherited.
const ENDS: &[End] = &[
    ("exit", |locks, guard| process::exit(i32::from(locks.holder() != guard.holder()))),
    ("end without a destructor or exit handler", |_, _| kill_process(getpid(), Signal::KILL).is_ok()),
    ("drop", |locks, guard| {
        drop(guard);
        drop(locks);
        true
    }),
    ("drop while a panic unwinds", |locks, guard| {
        let _dropped = (guard, locks);
        panic!("on purpose");
    }),
];

fn children_that_end(url: &str) {
    let mut held = Held::new(url);
    for (name, end) in ENDS {
        let child = fork_child(|| end(held.locks.clone(), held.guard.take().unwrap()));
        status_of(child, name);
        held.assert_undisturbed();
    }
    held.release();
}

#[test]
fn a_child_that_ends_leaves_the_parents_lease_alone() {
    let root = tempfile::tempdir().unwrap();
    for url in [file_url(root.path()), String::from("memory:")] {
        play("children that end", &url);
    }
}

fn hold(url: &str) {
    let _held = Held::new(url);
    println!("ready");
    thread::sleep(IDLE);
}

/// Waits for a lock that another process holds, after a child dropped all that it inherited.
fn wake_ups(url: &str) {
    let runtime = runtime();
    let mut locks = Some(runtime.block_on(Leasehold::connect(url)).unwrap());
    let mut holder = start("hold", url);
    assert!(lines_of(&mut holder).any(|line| line.ends_with("ready")));
    let child = fork_child(|| {
        drop(locks.take());
        true
    });
    assert_eq!(status_of(child, "drop"), 0);
    let waited = runtime.block_on(async {
        let mutex = locks.as_ref().unwrap().mutex("held").wait(LIMIT);
        let killed = async {
            until_queued(locks.as_ref().unwrap()).await;
            holder.kill().unwrap();
        };
        tokio::join!(mutex.acquire(), killed).0
    });
    holder.wait().unwrap();
    drop(waited.unwrap());
}

async fn until_queued(locks: &Leasehold) {
    while locks.list(&ListFilter::new(Names::All)).await.unwrap().leases.len() < 2 {
        tokio::time::sleep(PAUSE).await;
    }
}

#[test]
fn a_child_that_drops_what_it_inherited_does_not_deafen_the_parent() {
    let root = tempfile::tempdir().unwrap();
    play("wake-ups", &file_url(root.path()));
}

// ---- children that connect again ----

fn new_connection(url: &str) {
    let mut held = Held::new(url);
    let (mut locked, mut says_locked) = io::pipe().unwrap();
    let (mut may_die, mut lets_die) = io::pipe().unwrap();
    let child = fork_child(|| {
        let runtime = runtime();
        let locks = runtime.block_on(Leasehold::connect(url)).unwrap();
        assert!(runtime.block_on(locks.mutex("held").try_acquire()).unwrap().is_none(), "the parent holds it");
        let guard = runtime.block_on(locks.mutex("free").acquire()).unwrap();
        let blocking = leasehold::blocking::Leasehold::connect(url).unwrap();
        let more = blocking.mutex("more").acquire().unwrap();
        guard.check().and(more.check()).unwrap();
        says_locked.write_all(b".").unwrap();
        may_die.read_exact(&mut [0]).unwrap();
        kill_process(getpid(), Signal::KILL).is_ok()
    });
    drop(says_locked);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(locked.read_exact(&mut [0]).is_ok()));
    if receiver.recv_timeout(LIMIT) != Ok(true) {
        kill(child);
        panic!("a forked child cannot connect again and lock");
    }
    for name in ["free", "more"] {
        let busy = held.runtime.block_on(held.locks.mutex(name).try_acquire()).unwrap();
        assert!(busy.is_none(), "{name} was granted twice");
    }
    lets_die.write_all(b".").unwrap();
    status_of(child, "connecting anew");
    for name in ["free", "more"] {
        let mutex = held.locks.mutex(name).wait(LIMIT);
        drop(held.runtime.block_on(mutex.acquire()).expect("a dead child holds nothing"));
    }
    held.assert_undisturbed();
    held.release();
}

#[test]
fn a_child_connects_again_and_what_it_locks_ends_with_it() {
    let root = tempfile::tempdir().unwrap();
    play("new connection", &file_url(root.path()));
}

static IS_CONNECTING: AtomicBool = AtomicBool::new(false);
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Forks while another thread connects the instance that the process shares.
fn shared_instance() {
    let open = |_: &str, _: &OpenOptions| -> Opening {
        Box::pin(async {
            if IS_CHILD.load(Relaxed) {
                return Ok(Arc::new(MemoryBackend::private(Arc::new(SystemClock))) as Arc<dyn Backend>);
            }
            IS_CONNECTING.store(true, Relaxed);
            pending().await
        })
    };
    leasehold::backends::register("stuck", open).unwrap();
    thread::spawn(|| runtime().block_on(Leasehold::global()).map(drop));
    while !IS_CONNECTING.load(Relaxed) {
        thread::sleep(PAUSE);
    }
    let child = fork_child(|| {
        IS_CHILD.store(true, Relaxed);
        runtime().block_on(Leasehold::global()).is_ok()
    });
    assert_eq!(status_of(child, "the shared instance"), 0);
}

#[test]
fn a_child_has_a_shared_instance_of_its_own() {
    play("shared instance", "stuck:");
}

// ---- a parent that is killed ----

fn idle_child(url: &str) {
    let _held = Held::new(url);
    fork_child(|| {
        println!("child {}", process::id());
        thread::sleep(IDLE);
        true
    });
    thread::sleep(IDLE);
}

fn lines_of(process: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(process.stdout.take().unwrap()).lines().map_while(io::Result::ok)
}

/// Kills a process that holds the lease and has an idle child; another process gets it within this wait.
fn kill_beside_an_idle_child(url: &str, wait: Duration) {
    let mut parent = start("idle child", url);
    let child = lines_of(&mut parent).find_map(|line| line.rsplit_once("child ")?.1.parse().ok()).unwrap();
    let runtime = runtime();
    let locks = runtime.block_on(Leasehold::connect(url)).unwrap();
    let before = runtime.block_on(locks.mutex("held").try_acquire()).unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    let after = runtime.block_on(locks.mutex("held").wait(wait).acquire());
    kill(child);
    assert!(before.is_none(), "the parent holds it");
    drop(after.expect("the idle child keeps its parent's lease"));
}

#[test]
fn a_parent_that_is_killed_beside_an_idle_child_frees_its_lease() {
    let root = tempfile::tempdir().unwrap();
    kill_beside_an_idle_child(&file_url(root.path()), Duration::ZERO);
}

#[cfg(feature = "postgres")]
#[test]
fn a_parent_that_is_killed_beside_an_idle_child_frees_what_its_connection_keeps() {
    let server = postgres_schema::server_with_schema(&[]);
    kill_beside_an_idle_child(&format!("{}?liveness=connection", server.url()), LIMIT);
}

// ---- ids ----

/// Two leases with one id would each be renewed and released by the other's process.
#[test]
fn a_child_never_draws_the_ids_that_its_parent_draws() {
    play("ids", "memory:");
}

fn ids() {
    // The generator of this thread is seeded before the fork.
    let before = LeaseId::random();
    let draw = || [LeaseId::random(), LeaseId::random(), LeaseId::random()].map(|id| id.to_string());
    let (mut reader, mut writer) = io::pipe().unwrap();
    let child = fork_child(|| writer.write_all(draw().join(" ").as_bytes()).is_ok());
    drop(writer);
    let mut drawn = String::new();
    reader.read_to_string(&mut drawn).unwrap();
    assert_eq!(status_of(child, "drawing ids"), 0);
    assert_eq!(drawn.split(' ').count(), 3, "{drawn}");
    for id in draw().iter().chain([&before.to_string()]) {
        assert!(!drawn.contains(id.as_str()), "{id} was drawn twice");
    }
}
