//! The `file:` backend on a real directory, with real processes that are stopped and killed.

#![cfg(all(feature = "file", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by its panic")]

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Read as _, Write},
    os::unix::{
        fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use leasehold::{
    ErrorKind, Fence, Holder, Resource, Ttl,
    backend::{Backend, Decision, Finding, Hint, Hints, Inspect, Lifetime, Liveness, Renewal, Request, Severity},
    backends::file::{FileBackend, FileOptions},
    clock::{Clock, ManualClock, SystemClock},
    lease::{
        Claim, Ending, Grant, HistoryFilter, LeaseId, LeaseKey, LeaseState, ListFilter, Metadata, Names, Outcome,
        Released, Standing, Timestamp,
    },
};

mod bad_files;
mod disk;
mod files;
mod hostile;
mod latches;
mod line_files;
mod notifications;
mod power_loss;
mod presence;
mod processes;
mod user_directory;
mod users;

type Tried = Result<(), Box<dyn std::error::Error>>;

fn run(test: impl Future<Output = Tried>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await }).unwrap().unwrap();
}

/// Runs a test in a directory of its own.
fn in_directory(test: impl AsyncFnOnce(&Path) -> Tried) {
    let root = tempfile::tempdir().unwrap();
    run(test(root.path()));
}

/// The same, with an instance that is open already.
fn opened(test: impl AsyncFnOnce(&Path, FileBackend) -> Tried) {
    in_directory(async |root| test(root, open(root).await).await);
}

/// The same, by a clock that moves only when the test says so.
fn opened_by_clock(test: impl AsyncFnOnce(&Path, &ManualClock, FileBackend) -> Tried) {
    in_directory(async |root| {
        let clock = ManualClock::new();
        test(root, &clock, open_by(root, &clock).await).await
    });
}

fn options(root: &Path, query: &str) -> FileOptions {
    FileOptions::from_url(&format!("file://{}{query}", root.display()), "test", Arc::new(SystemClock)).unwrap()
}

async fn open(root: &Path) -> FileBackend {
    FileBackend::open(options(root, "")).await.unwrap()
}

async fn open_by(root: &Path, clock: &ManualClock) -> FileBackend {
    let mut options = options(root, "");
    options.clock = Arc::new(clock.clone());
    FileBackend::open(options).await.unwrap()
}

/// Why this directory cannot be opened.
async fn refused(root: &Path) -> leasehold::Error {
    FileBackend::open(options(root, "")).await.unwrap_err()
}

async fn connect(root: &Path) -> leasehold::Result<leasehold::Leasehold> {
    leasehold::Leasehold::builder().namespace("test").connect(&format!("file://{}", root.display())).await
}

fn name(text: &str) -> Resource {
    Resource::new(text).unwrap()
}

fn request(resource: &str) -> Request {
    Request::new(LeaseKey::new(name(resource), LeaseId::random()), Claim::EXCLUSIVE, Holder::unique()).ttl(Ttl::DEFAULT)
}

fn detached(resource: &str) -> Request {
    request(resource).lifetime(Lifetime::Detached)
}

async fn granted(backend: &FileBackend, request: &Request) -> Grant {
    match backend.acquire(request).await.unwrap().value {
        Decision::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// A lease of this resource that was granted.
async fn take(backend: &FileBackend, resource: &str) -> Request {
    let request = request(resource);
    granted(backend, &request).await;
    request
}

/// How many wait ahead.
async fn queued(backend: &FileBackend, request: &Request) -> u32 {
    match backend.acquire(request).await.unwrap().value {
        Decision::Queued(place) => place.ahead,
        other => panic!("not queued: {other:?}"),
    }
}

async fn renewed(backend: &FileBackend, request: &Request) -> Standing {
    backend.renew(&[Renewal::new(request.key.clone(), request.ttl)]).await.unwrap().value[0]
}

async fn holds(backend: &FileBackend, request: &Request) -> bool {
    matches!(renewed(backend, request).await, Standing::Holding(_))
}

async fn waits(backend: &FileBackend, request: &Request) -> bool {
    matches!(renewed(backend, request).await, Standing::Waiting(_))
}

async fn release(backend: &FileBackend, request: &Request) -> Released {
    backend.release(&request.key, &Outcome::Completed).await.unwrap().value
}

async fn endings(backend: &FileBackend, resource: &str) -> Vec<Ending> {
    let filter = HistoryFilter::new(Names::Exactly(name(resource)));
    backend.history(&filter).await.unwrap().into_iter().map(|ended| ended.ending).collect()
}

async fn hint(hints: &mut Hints) -> Hint {
    tokio::time::timeout(Duration::from_secs(5), hints.next()).await.expect("a hint in time").unwrap()
}

async fn no_hint(hints: &mut Hints) {
    let quiet = tokio::time::timeout(Duration::from_millis(100), hints.next()).await;
    assert!(quiet.is_err(), "an unexpected hint: {quiet:?}");
}

/// Waits for what other threads do.
async fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..500 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 5 s: {what}");
}

fn changed(resource: &str) -> Hint {
    Hint::Changed { resource: name(resource) }
}

/// The lines of a record: its header, then its entries.
fn lines_of(path: &Path) -> Vec<serde_json::Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn write_lines(path: &Path, lines: &[serde_json::Value]) {
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    fs::write(path, lines.join("\n") + "\n").unwrap();
}

fn record_of(root: &Path, resource: &str) -> PathBuf {
    root.join("test/records").join(format!("{resource}.json"))
}

fn files(directory: PathBuf) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

fn failures(findings: &[Finding]) -> Vec<&Finding> {
    findings.iter().filter(|finding| finding.severity == Severity::Failure).collect()
}

/// An instance that waits for `x`.
struct Waiter {
    backend: FileBackend,
    hints: Hints,
    request: Request,
    /// How many waited ahead of it when it joined the queue.
    ahead: u32,
}

impl Waiter {
    async fn queue(backend: FileBackend) -> Self {
        let (hints, request) = (backend.hints(), request("x"));
        let ahead = queued(&backend, &request).await;
        Self { backend, hints, request, ahead }
    }

    /// Waits behind another process, which plays this part.
    async fn behind(part: &str, root: &Path) -> (Process, Self) {
        let process = Process::start(part, root, "x");
        (process, Self::queue(open(root).await).await)
    }

    async fn waits(&self) -> bool {
        waits(&self.backend, &self.request).await
    }

    /// Waits until it hears that its turn may have come, and asserts that it has.
    async fn gets_its_turn(&mut self) {
        assert_eq!(hint(&mut self.hints).await, changed("x"));
        assert!(holds(&self.backend, &self.request).await);
    }
}

/// Sets when a file was last changed, in the words of `touch`.
fn touch(path: &Path, when: &str) {
    assert!(Command::new("touch").args(["-d", when]).arg(path).status().unwrap().success());
}

/// Another process: this test binary, playing the part that `child` is told to.
struct Process(Child);

impl Process {
    fn start(part: &str, root: &Path, resource: &str) -> Self {
        Self::start_by(Command::new(env::current_exe().unwrap()), part, root, resource)
    }

    /// By another user, who may not be able to walk to where this program is.
    fn start_as(user: u32, part: &str, root: &Path, resource: &str) -> Self {
        let mut program = Command::new("/proc/self/exe");
        program.uid(user).gid(user).current_dir("/");
        Self::start_by(program, part, root, resource)
    }

    fn start_by(program: Command, part: &str, root: &Path, resource: &str) -> Self {
        Self::start_with_output(program, part, root, resource).0
    }

    /// The same, with what it prints once it is ready.
    fn start_with_output(
        mut program: Command,
        part: &str,
        root: &Path,
        resource: &str,
    ) -> (Self, BufReader<ChildStdout>) {
        let mut child = program
            .args(["--exact", "child", "--nocapture"])
            .env("LEASEHOLD_TEST_PART", part)
            .env("LEASEHOLD_TEST_ROOT", root)
            .env("LEASEHOLD_TEST_NAME", resource)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let process = Self(child);
        let ready = output.by_ref().lines().map_while(Result::ok).any(|line| line.ends_with("ready"));
        assert!(ready, "{part} was not ready");
        (process, output)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap().success());
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Not a test of its own: the parts that other processes play.
#[test]
fn child() {
    let Ok(part) = env::var("LEASEHOLD_TEST_PART") else { return };
    let root = PathBuf::from(env::var("LEASEHOLD_TEST_ROOT").unwrap());
    let resource = env::var("LEASEHOLD_TEST_NAME").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if part == "hold latches" {
            let latches = files(root.join("test/latches")).into_iter();
            let latches = latches.map(|latch| root.join("test/latches").join(latch));
            let latches: Vec<File> = latches.map(|latch| File::options().write(true).open(latch).unwrap()).collect();
            for latch in &latches {
                latch.lock().unwrap();
            }
            ready_for_ever().await;
        }
        if part == "wander" {
            wander(&root, &resource).await;
            println!("ready");
            return;
        }
        if part == "take again in the user's directory" {
            user_directory::take_again().await;
        }
        if part == "plant for ever" {
            hostile::plant_for_ever(&root);
        }
        if part == "go on" {
            hostile::go_on(&root).await;
        }
        if part == "hold shared by all" {
            let backend = FileBackend::open(options(&root, "?mode=0666")).await.unwrap();
            granted(&backend, &request(&resource)).await;
            ready_for_ever().await;
        }
        let backend = open(&root).await;
        match part.as_str() {
            "queue until granted" => {
                let (mut hints, mine) = (backend.hints(), request(&resource));
                queued(&backend, &mine).await;
                println!("ready");
                assert_eq!(hint(&mut hints).await, changed(&resource));
                assert!(holds(&backend, &mine).await);
                // Nobody reads what the test harness would print.
                std::process::exit(0);
            }
            "hold" => _ = granted(&backend, &request(&resource)).await,
            "hold detached" => _ = granted(&backend, &detached(&resource)).await,
            "queue" => _ = queued(&backend, &request(&resource)).await,
            "queue shared" => {
                let mut shared = request(&resource);
                shared.claim = Claim::SHARED;
                queued(&backend, &shared).await;
            }
            "queue detached" => _ = queued(&backend, &detached(&resource)).await,
            "lend" => {
                granted(&backend, &request(&resource)).await;
                let _lent = backend.inheritable().unwrap();
                let mut sleeper = Command::new("sleep");
                let mut sleeper = sleeper.arg("2").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
                assert_eq!(sleeper.try_wait().unwrap(), None);
            }
            "fail to evict" => {
                let held = backend.list(&ListFilter::new(Names::Exactly(name(&resource)))).await.unwrap().leases;
                let LeaseState::Holding { fence, .. } = held[0].state else { panic!("nobody holds: {held:?}") };
                backend.evict(&name(&resource), fence, "a test").await.unwrap_err();
            }
            other => panic!("no part {other}"),
        }
        ready_for_ever().await;
    });
}

async fn ready_for_ever() {
    println!("ready");
    std::future::pending::<()>().await;
}

/// Comes and goes; being taken for dead would show as a lease that is gone.
async fn wander(root: &Path, resource: &str) {
    for _ in 0..40 {
        let backend = open(root).await;
        let request = request(resource);
        let _either = backend.acquire(&request).await.unwrap();
        assert_ne!(release(&backend, &request).await, Released::Gone);
    }
}
