//! A process that is stopped between a provisional grant and its confirmation: the lease passes on without it.
//!
//! The stopped process is this test binary. A gate holds back its renewals, so that the stop falls into that span for
//! certain: the grant is in the record and the confirmation is on its way.

#![cfg(all(feature = "file", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by its panic")]

use std::{
    env,
    io::{self, BufRead, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use leasehold::{
    Fence, Holder, Leasehold,
    backends::file::{FileBackend, FileOptions},
    clock::SystemClock,
    lease::{LeaseState, ListFilter, Names},
};
use leasehold_conformance::{BackendCall, Faulty};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

const ROOT: &str = "LEASEHOLD_TEST_ROOT";
/// What must come, comes within this, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(40);
const STOPPED: &str = "stopped";

/// Another process, which is killed at the end however the test ends.
struct Process {
    child: Child,
    output: Option<Lines<BufReader<ChildStdout>>>,
}

impl Process {
    fn start(root: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(ROOT, root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, output: Some(output) }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Lets it go on, and send what it held back.
    fn proceed(&mut self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
        drop(self.child.stdin.take());
    }

    fn is_stopped(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), options).unwrap().is_some()
    }

    /// The fence of the guard that the process gets.
    async fn fence(&mut self) -> Fence {
        let mut output = self.output.take().unwrap();
        let line = tokio::task::spawn_blocking(move || {
            output.find_map(|line| line.unwrap().split_once("fence ").map(|(_, fence)| fence.parse().unwrap()))
        });
        timeout(LIMIT, line).await.expect("it gets its turn").unwrap().map(Fence::new).expect("it prints a fence")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

async fn open(root: &Path) -> Arc<Faulty> {
    let options = FileOptions::from_url(&format!("file://{}", root.display()), "test", Arc::new(SystemClock)).unwrap();
    Faulty::new(Arc::new(FileBackend::open(options).await.unwrap()))
}

async fn soon(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_so().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"));
}

/// Who waits, in order.
async fn waiters(locks: &Leasehold) -> Vec<String> {
    let leases = locks.list(&ListFilter::new(Names::All)).await.unwrap().leases.into_iter();
    let waiting = leases.filter(|lease| matches!(lease.state, LeaseState::Waiting { .. }));
    waiting.map(|lease| lease.holder.as_str().to_owned()).collect()
}

/// Whether someone with this label holds, confirmed or not.
async fn holds(locks: &Leasehold, label: &str) -> bool {
    let leases = locks.list(&ListFilter::new(Names::All)).await.unwrap().leases;
    leases.iter().any(|lease| lease.holder.as_str() == label && matches!(lease.state, LeaseState::Holding { .. }))
}

#[tokio::test]
async fn a_process_stopped_before_it_confirms_loses_its_turn_and_does_not_believe_when_it_continues() {
    let root = tempfile::tempdir().unwrap();
    let locks = Leasehold::builder().open(open(root.path()).await).unwrap();
    let first = locks.mutex("x").acquire().await.unwrap();
    let mut stopped = Process::start(root.path());
    soon("the other process waits", async || waiters(&locks).await == [STOPPED]).await;
    let next = locks.mutex("x").holder(Holder::new("next").unwrap()).wait(LIMIT * 2);
    let mut next = JoinSet::from_iter([async move { next.acquire().await }]);
    soon("both wait", async || waiters(&locks).await == [STOPPED, "next"]).await;

    first.release().await.unwrap();
    soon("it is stopped", async || stopped.is_stopped()).await;
    let next = timeout(LIMIT, next.join_next()).await.expect("the turn passes on");
    let next = next.expect("it was spawned").unwrap().unwrap();

    stopped.proceed();
    soon("it waits again", async || waiters(&locks).await == [STOPPED]).await;
    next.check().unwrap();
    let fence = next.fence();
    next.release().await.unwrap();
    assert!(stopped.fence().await > fence, "it believed in the grant that it had not confirmed");
}

/// Not a test of its own: the process that is stopped.
#[tokio::test]
async fn child() {
    let Some(root) = env::var_os(ROOT).map(PathBuf::from) else { return };
    let backend = open(&root).await;
    let locks = Leasehold::builder().open(Arc::clone(&backend) as _).unwrap();
    let gate = backend.hold_requests_of(BackendCall::Renew);
    let lock = locks.mutex("x").holder(Holder::new(STOPPED).unwrap()).wait(LIMIT * 2);
    let mut acquire = JoinSet::from_iter([async move { lock.acquire().await }]);
    soon("it is its turn", async || holds(&locks, STOPPED).await).await;
    soon("it confirms", async || backend.in_flight() > 0).await;
    kill_process(getpid(), Signal::STOP).unwrap();
    // A thread may run on for a moment before the stop reaches it: nothing is sent before the other process says so.
    tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new())).await.unwrap().unwrap();
    gate.open();
    let guard = acquire.join_next().await.expect("it was spawned").unwrap().unwrap();
    println!("fence {}", guard.fence());
    guard.release().await.unwrap();
}
