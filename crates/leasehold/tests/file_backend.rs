//! The `file:` backend on a real directory, with real processes that are stopped and killed.

#![cfg(feature = "file")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by its panic")]

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{
    ErrorKind, Fence, Holder, Resource, Ttl,
    backend::{Backend, Finding, Hint, Hints, Liveness, Severity},
    backends::file::{FileBackend, FileOptions},
    clock::{Clock, ManualClock, SystemClock},
    lease::{
        Claim, Decision, Ending, EventKind, Evicted, Grant, HistoryFilter, LeaseId, LeaseKey, LeaseState, Lifetime,
        ListFilter, Metadata, Names, Outcome, Patience, Released, Renewal, Request, Standing, Timestamp,
    },
};

// ---- what the tests are written with ----

type Tried = Result<(), Box<dyn std::error::Error>>;

fn run(test: impl Future<Output = Tried>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await }).unwrap().unwrap();
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

fn name(text: &str) -> Resource {
    Resource::new(text).unwrap()
}

fn request(resource: &str) -> Request {
    Request {
        key: LeaseKey { resource: name(resource), id: LeaseId::random() },
        claim: Claim::EXCLUSIVE,
        ttl: Ttl::DEFAULT,
        patience: Patience::Queue,
        max_waiters: None,
        lifetime: Lifetime::Attached,
        holder: Holder::unique(),
        note: None,
        metadata: Metadata::new(),
        fence_floor: None,
    }
}

fn detached(resource: &str) -> Request {
    Request { lifetime: Lifetime::Detached, ..request(resource) }
}

async fn granted(backend: &FileBackend, request: &Request) -> Grant {
    match backend.acquire(request).await.unwrap().value {
        Decision::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
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

fn changed(resource: &str) -> Hint {
    Hint::Changed { resource: name(resource) }
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

    fn start_by(mut program: Command, part: &str, root: &Path, resource: &str) -> Self {
        let mut child = program
            .args(["--exact", "child", "--nocapture"])
            .env("LEASEHOLD_TEST_PART", part)
            .env("LEASEHOLD_TEST_ROOT", root)
            .env("LEASEHOLD_TEST_NAME", resource)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let process = Self(child);
        assert!(output.lines().map_while(Result::ok).any(|line| line.ends_with("ready")), "{part} was not ready");
        process
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
                let shared = Request { claim: Claim::SHARED, ..request(&resource) };
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

// ---- exclusion, order, hand-off ----

#[test]
fn two_instances_exclude_each_other_and_queue_in_order() {
    run(async {
        let root = tempfile::tempdir()?;
        let (a, b) = (open(root.path()).await, open(root.path()).await);
        let (first, second, third) = (request("x"), request("x"), request("x"));
        let one = granted(&a, &first).await;
        let hasty = Request { patience: Patience::Try, ..request("x") };
        assert!(matches!(b.acquire(&hasty).await?.value, Decision::Busy(busy) if busy.holders[0].fence == one.fence));
        assert_eq!(queued(&b, &second).await, 0);
        assert_eq!(queued(&a, &third).await, 1);
        assert_eq!(release(&a, &first).await, Released::Freed);
        let Standing::Holding(two) = renewed(&b, &second).await else { panic!("the second was next") };
        assert!(two.fence > one.fence);
        assert!(matches!(renewed(&a, &third).await, Standing::Waiting(place) if place.ahead == 0));
        release(&b, &second).await;
        assert!(matches!(renewed(&a, &third).await, Standing::Holding(three) if three.fence > two.fence));
        assert_eq!(renewed(&a, &first).await, Standing::Gone);
        Ok(())
    });
}

#[test]
fn a_release_rings_the_next_and_nobody_else() {
    run(async {
        let root = tempfile::tempdir()?;
        let (a, b, c) = (open(root.path()).await, open(root.path()).await, open(root.path()).await);
        let (mut to_b, mut to_c) = (b.hints(), c.hints());
        let (first, second, third, fourth) = (request("x"), request("x"), request("x"), request("x"));
        granted(&a, &first).await;
        queued(&b, &second).await;
        queued(&c, &third).await;
        queued(&b, &fourth).await;
        release(&a, &first).await;
        let Standing::Holding(grant) = renewed(&b, &second).await else { panic!("not handed over") };
        assert_eq!(hint(&mut to_b).await, Hint::Granted { id: second.key.id, fence: grant.fence });
        no_hint(&mut to_c).await;
        release(&b, &second).await;
        assert!(matches!(hint(&mut to_c).await, Hint::Granted { id, .. } if id == third.key.id));
        release(&c, &third).await;
        assert!(matches!(hint(&mut to_b).await, Hint::Granted { id, .. } if id == fourth.key.id));
        Ok(())
    });
}

#[test]
fn two_leases_of_one_instance_hand_over_too() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        let mut hints = a.hints();
        let (first, second) = (request("x"), request("x"));
        granted(&a, &first).await;
        queued(&a, &second).await;
        release(&a, &first).await;
        assert!(matches!(hint(&mut hints).await, Hint::Granted { id, .. } if id == second.key.id));
        Ok(())
    });
}

#[test]
fn an_evicted_holder_is_told() {
    run(async {
        let root = tempfile::tempdir()?;
        let (a, b) = (open(root.path()).await, open(root.path()).await);
        let mut hints = a.hints();
        let first = request("x");
        let grant = granted(&a, &first).await;
        let stale = Fence::new(grant.fence.get() - 1);
        let refused = b.evict(&name("x"), stale, "wrong").await?;
        assert_eq!(refused, Evicted::NoSuchFence { current: vec![grant.fence] });
        assert!(matches!(b.evict(&name("x"), grant.fence, "stuck").await?, Evicted::Evicted { .. }));
        assert_eq!(hint(&mut hints).await, Hint::Evicted { id: first.key.id });
        assert_eq!(renewed(&a, &first).await, Standing::Gone);
        assert_eq!(endings(&a, "x").await, [Ending::Evicted]);
        Ok(())
    });
}

#[test]
fn an_instance_can_be_used_from_many_threads() {
    let root = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let backends = [Arc::new(open(root.path()).await), Arc::new(open(root.path()).await)];
        let inside = Arc::new(AtomicU32::new(0));
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..8 {
            let (backend, inside) = (Arc::clone(&backends[worker % 2]), Arc::clone(&inside));
            workers.spawn(async move {
                for _ in 0..20 {
                    let mine = request("x");
                    let mut hints = backend.hints();
                    let mut holding = matches!(backend.acquire(&mine).await.unwrap().value, Decision::Granted(_));
                    while !holding {
                        hint(&mut hints).await;
                        holding = holds(&backend, &mine).await;
                    }
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(release(&backend, &mine).await, Released::Freed);
                }
            });
        }
        while let Some(worker) = workers.join_next().await {
            worker.unwrap();
        }
    });
}

// ---- life and death of processes ----

#[test]
fn a_killed_holder_wakes_the_waiter_at_once() {
    run(async {
        let root = tempfile::tempdir()?;
        let mut holder = Process::start("hold", root.path(), "x");
        let a = open(root.path()).await;
        let mut hints = a.hints();
        let waiter = request("x");
        queued(&a, &waiter).await;
        holder.kill();
        assert_eq!(hint(&mut hints).await, changed("x"));
        assert!(holds(&a, &waiter).await);
        assert_eq!(endings(&a, "x").await, [Ending::Disconnected]);
        assert_eq!(files(root.path().join("test/presence")).len(), 1, "the dead one's presence is tidied");
        Ok(())
    });
}

#[test]
fn whoever_dies_together_the_first_survivor_hears_of_it() {
    run(async {
        let root = tempfile::tempdir()?;
        let mut dying = vec![Process::start("hold", root.path(), "x")];
        dying.extend((0..3).map(|_| Process::start("queue", root.path(), "x")));
        let a = open(root.path()).await;
        let mut hints = a.hints();
        let waiter = request("x");
        assert_eq!(queued(&a, &waiter).await, 3);
        dying.iter_mut().for_each(Process::kill);
        assert_eq!(hint(&mut hints).await, changed("x"));
        assert!(holds(&a, &waiter).await);
        Ok(())
    });
}

#[test]
fn a_waiter_whose_neighbour_leaves_watches_the_next_one_ahead() {
    run(async {
        let root = tempfile::tempdir()?;
        let (a, c, d) = (open(root.path()).await, open(root.path()).await, open(root.path()).await);
        let mut hints = d.hints();
        let (first, third, fourth) = (request("x"), request("x"), request("x"));
        granted(&a, &first).await;
        let mut second = Process::start("queue", root.path(), "x");
        queued(&c, &third).await;
        queued(&d, &fourth).await;
        assert_eq!(release(&c, &third).await, Released::LeftQueue);
        assert_eq!(hint(&mut hints).await, changed("x"));
        assert!(waits(&d, &fourth).await);
        release(&a, &first).await;
        no_hint(&mut hints).await;
        second.kill();
        assert_eq!(hint(&mut hints).await, changed("x"));
        assert!(holds(&d, &fourth).await);
        Ok(())
    });
}

#[test]
fn the_first_waiter_hears_of_every_holder_even_of_one_granted_later() {
    run(async {
        let root = tempfile::tempdir()?;
        let (a, d) = (open(root.path()).await, open(root.path()).await);
        let mut hints = d.hints();
        let writer = request("x");
        granted(&a, &writer).await;
        let mut reader = Process::start("queue shared", root.path(), "x");
        let _other = Process::start("queue shared", root.path(), "x");
        let waiter = request("x");
        queued(&d, &waiter).await;
        release(&a, &writer).await;
        assert_eq!(hint(&mut hints).await, changed("x"), "the first reader is someone new to watch");
        assert!(waits(&d, &waiter).await);
        reader.kill();
        assert_eq!(hint(&mut hints).await, changed("x"));
        assert!(waits(&d, &waiter).await, "the other reader still holds");
        Ok(())
    });
}

#[test]
fn a_stopped_holder_keeps_its_lock() {
    run(async {
        let root = tempfile::tempdir()?;
        let holder = Process::start("hold", root.path(), "x");
        holder.signal("-STOP");
        let a = open(root.path()).await;
        let mut hints = a.hints();
        let waiter = request("x");
        queued(&a, &waiter).await;
        no_hint(&mut hints).await;
        assert!(waits(&a, &waiter).await);
        holder.signal("-CONT");
        assert!(waits(&a, &waiter).await);
        Ok(())
    });
}

#[test]
fn a_stopped_waiter_loses_its_turn_to_the_next_when_it_does_not_confirm_it() {
    run(async {
        let root = tempfile::tempdir()?;
        let clock = ManualClock::new();
        let (a, b) = (open_by(root.path(), &clock).await, open_by(root.path(), &clock).await);
        let (holder, next) = (request("x"), request("x"));
        granted(&a, &holder).await;
        let stopped = Process::start("queue", root.path(), "x");
        stopped.signal("-STOP");
        assert_eq!(queued(&b, &next).await, 1);
        assert_eq!(release(&a, &holder).await, Released::Freed);
        let Standing::Waiting(place) = renewed(&b, &next).await else { panic!("the stopped one has its turn") };
        clock.advance(place.ask_again_in.expect("the next one learns when to ask"));
        assert!(holds(&b, &next).await);
        assert_eq!(endings(&b, "x").await, [Ending::Expired, Ending::Released]);
        Ok(())
    });
}

#[test]
fn the_handle_of_a_killed_process_is_gone() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        for resource in ["renewed", "released"] {
            let mut holder = Process::start("hold", root.path(), resource);
            let record: serde_json::Value = serde_json::from_slice(&fs::read(record_of(root.path(), resource))?)?;
            let id = record["state"]["entries"][0]["id"].as_str().expect("an id").parse()?;
            let handed_on = Request { key: LeaseKey { resource: name(resource), id }, ..request(resource) };
            assert!(holds(&a, &handed_on).await, "a handle works while its process lives");
            holder.kill();
            match resource {
                "renewed" => assert_eq!(renewed(&a, &handed_on).await, Standing::Gone),
                _ => assert_eq!(release(&a, &handed_on).await, Released::Gone),
            }
            assert_eq!(endings(&a, resource).await, [Ending::Disconnected]);
        }
        Ok(())
    });
}

#[test]
fn a_lent_presence_lives_until_the_child_is_gone() {
    run(async {
        let root = tempfile::tempdir()?;
        let mut parent = Process::start("lend", root.path(), "x");
        let a = open(root.path()).await;
        let mut hints = a.hints();
        let waiter = request("x");
        queued(&a, &waiter).await;
        parent.kill();
        no_hint(&mut hints).await;
        assert!(waits(&a, &waiter).await, "the child still has it");
        assert_eq!(hint(&mut hints).await, changed("x"));
        assert!(holds(&a, &waiter).await);
        Ok(())
    });
}

#[test]
fn a_closed_instance_is_dead_to_others() {
    run(async {
        let root = tempfile::tempdir()?;
        let (a, b) = (open(root.path()).await, open(root.path()).await);
        let mut hints = b.hints();
        granted(&a, &request("x")).await;
        let waiter = request("x");
        queued(&b, &waiter).await;
        drop(a);
        assert_eq!(hint(&mut hints).await, changed("x"));
        assert!(holds(&b, &waiter).await);
        assert_eq!(files(root.path().join("test/presence")).len(), 1);
        Ok(())
    });
}

fn remove_presences(root: &Path) {
    for presence in files(root.join("test/presence")) {
        fs::remove_file(root.join("test/presence").join(presence)).unwrap();
    }
}

#[test]
fn an_instance_whose_presence_was_removed_gives_up_what_it_held_and_asks_for_nothing() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        let mut hints = a.hints();
        let (held, kept) = (request("x"), detached("kept"));
        let fence = granted(&a, &held).await.fence;
        granted(&a, &kept).await;
        remove_presences(root.path());
        let b = open(root.path()).await;
        let error = a.acquire(&request("y")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("connect again"), "{error}");
        granted(&b, &request("y")).await;
        assert_eq!(hint(&mut hints).await, Hint::Missed, "all leases are to be asked about");
        assert_eq!(renewed(&a, &held).await, Standing::Gone);
        assert!(holds(&a, &kept).await, "what no process keeps is kept");
        assert_eq!(release(&a, &held).await, Released::Gone);
        assert!(a.acquire(&held).await.is_err());
        assert!(a.list(&ListFilter::new(Names::All)).await.is_err());
        assert!(a.watch(Names::All).await.is_err());
        assert!(failures(&a.examine().await?).iter().any(|finding| finding.subject == "presence"));
        assert!(granted(&b, &request("x")).await.fence > fence);
        assert_eq!(endings(&b, "x").await, [Ending::Disconnected]);
        no_hint(&mut hints).await;
        Ok(())
    });
}

#[test]
fn an_instance_whose_directory_was_removed_or_replaced_gives_up_what_it_held() {
    run(async {
        for replaced in [false, true] {
            let root = tempfile::tempdir()?;
            let a = open(root.path()).await;
            let held = request("x");
            granted(&a, &held).await;
            if replaced {
                fs::rename(root.path().join("test"), root.path().join("moved"))?;
                granted(&open(root.path()).await, &request("x")).await;
            } else {
                fs::remove_dir_all(root.path().join("test"))?;
            }
            assert_eq!(renewed(&a, &held).await, Standing::Gone);
            assert_eq!(release(&a, &held).await, Released::Gone);
            assert!(a.acquire(&request("x")).await.unwrap_err().to_string().contains("connect again"));
        }
        Ok(())
    });
}

#[test]
fn a_guard_whose_presence_was_removed_is_lost_at_the_next_use_of_its_instance() {
    run(async {
        let root = tempfile::tempdir()?;
        let url = format!("file://{}", root.path().display());
        let a = leasehold::Leasehold::builder().namespace("test").connect(&url).await?;
        let guard = a.mutex("x").acquire().await?;
        remove_presences(root.path());
        guard.check()?;
        assert!(a.mutex("y").try_acquire().await.is_err());
        tokio::time::timeout(Duration::from_secs(5), guard.lost()).await.expect("long before the next renewal");
        assert!(guard.check().is_err());
        Ok(())
    });
}

#[test]
fn dead_presences_are_tidied_and_live_ones_never() {
    run(async {
        let root = tempfile::tempdir()?;
        Process::start("hold", root.path(), "killed").kill();
        let a = open(root.path()).await;
        let held = request("kept");
        granted(&a, &held).await;
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| Process::start("wander", root.path(), "crossroads"));
            }
        });
        assert!(holds(&a, &held).await);
        assert_eq!(files(root.path().join("test/presence")).len(), 1);
        assert_eq!(files(root.path().join("test/records")).len(), 2, "the killed one's record waits to be looked at");
        assert_eq!(a.list(&ListFilter::new(Names::All)).await?.leases.len(), 1);
        assert_eq!(endings(&a, "killed").await, [Ending::Disconnected]);
        Ok(())
    });
}

#[test]
fn a_presence_that_is_only_being_made_is_left_alone() {
    run(async {
        let root = tempfile::tempdir()?;
        let _a = open(root.path()).await;
        let make = |name: &str, age: &str| {
            let path = root.path().join("test/presence").join(name);
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            assert!(Command::new("touch").args(["-d", age]).arg(&path).status().unwrap().success());
            path
        };
        let young = make(".new-0b1f8a54c2a14f7e9a3d7e61d0c5b2a1", "10 seconds ago");
        let old = make(".new-1b1f8a54c2a14f7e9a3d7e61d0c5b2a1", "2 minutes ago");
        let dead = make("2b1f8a54c2a14f7e9a3d7e61d0c5b2a1", "now");
        let _b = open(root.path()).await;
        assert_eq!([young, old, dead].map(|path| path.exists()), [true, false, false]);
        assert_eq!(files(root.path().join("test/presence")).len(), 3);
        Ok(())
    });
}

// ---- leases without a process ----

#[test]
fn a_detached_lease_outlives_its_instance_and_ends_by_the_clock() {
    run(async {
        let root = tempfile::tempdir()?;
        let clock = ManualClock::new();
        let (a, b) = (open_by(root.path(), &clock).await, open_by(root.path(), &clock).await);
        let lease = detached("x");
        granted(&a, &lease).await;
        drop(a);
        let waiter = request("x");
        let Decision::Queued(place) = b.acquire(&waiter).await?.value else { panic!("the lease was lost") };
        assert_eq!(place.ask_again_in, Some(Ttl::DEFAULT.get()));
        clock.advance(Duration::from_secs(20));
        assert!(holds(&b, &lease).await, "whoever has the id renews");
        clock.advance(Duration::from_secs(20));
        assert!(waits(&b, &waiter).await);
        clock.advance(Duration::from_secs(10));
        assert!(holds(&b, &waiter).await);
        assert_eq!(endings(&b, "x").await, [Ending::Expired]);
        Ok(())
    });
}

#[test]
fn a_detached_lease_survives_the_kill_of_its_asker_and_a_detached_wait_does_not() {
    run(async {
        let root = tempfile::tempdir()?;
        let mut holder = Process::start("hold detached", root.path(), "x");
        let mut waiter = Process::start("queue detached", root.path(), "x");
        let a = open(root.path()).await;
        let list = async || a.list(&ListFilter::new(Names::All)).await.unwrap().leases;
        assert_eq!(list().await.len(), 2);
        holder.kill();
        waiter.kill();
        let left = list().await;
        assert_eq!(left.len(), 1);
        assert!(matches!(left[0].state, LeaseState::Holding { .. }));
        assert!(left[0].expires_in.is_some_and(|left| left <= Ttl::DEFAULT.get()));
        assert_eq!(endings(&a, "x").await, [Ending::Disconnected]);
        Ok(())
    });
}

#[test]
fn after_a_reboot_the_wall_clock_tells_what_is_left() {
    run(async {
        let root = tempfile::tempdir()?;
        let clock = ManualClock::new();
        let a = open_by(root.path(), &clock).await;
        granted(&a, &detached("x")).await;
        let path = record_of(root.path(), "x");
        let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
        record["boot"] = "another life".into();
        record["state"]["entries"][0]["expires_at"] = 1.into();
        fs::write(&path, serde_json::to_vec(&record)?)?;
        let left = async || a.list(&ListFilter::new(Names::All)).await.unwrap().leases[0].expires_in;
        clock.advance(Duration::from_secs(10));
        assert_eq!(left().await, Some(Duration::from_secs(20)));
        clock.set_wall(Timestamp::from_micros(0));
        clock.advance(Duration::from_secs(5));
        assert_eq!(left().await, Some(Duration::from_secs(15)), "from then on the steady clock counts");
        fs::write(&path, serde_json::to_vec(&record)?)?;
        clock.set_wall(Timestamp::from_micros(0));
        assert_eq!(left().await, Some(Ttl::DEFAULT.get()), "never more than the ttl");
        Ok(())
    });
}

#[test]
fn what_a_power_loss_tore_is_removed_once_and_fences_keep_rising() {
    run(async {
        let root = tempfile::tempdir()?;
        let clock = ManualClock::new();
        let a = open_by(root.path(), &clock).await;
        let before = granted(&a, &request("x")).await.fence;
        granted(&a, &detached("y")).await;
        drop(a);
        fs::write(record_of(root.path(), "x"), "")?;
        let b = open_by(root.path(), &clock).await;
        assert!(b.acquire(&request("x")).await.is_err(), "in the same life of the machine it is garbage");
        drop(b);
        fs::write(root.path().join("test/boot"), "another life")?;
        let c = open_by(root.path(), &clock).await;
        assert!(granted(&c, &request("x")).await.fence > before);
        queued(&c, &request("y")).await;
        Ok(())
    });
}

#[test]
fn a_directory_torn_by_a_power_loss_is_repaired_and_fences_keep_rising() {
    run(async {
        let root = tempfile::tempdir()?;
        let clock = ManualClock::new();
        for torn in [&b""[..], b"\0\0\0\0\0\0\0\0"] {
            let a = open_by(root.path(), &clock).await;
            let before = granted(&a, &request("x")).await.fence;
            drop(a);
            fs::write(root.path().join("test/format"), torn)?;
            fs::remove_dir(root.path().join("test/watchers"))?;
            fs::remove_file(root.path().join("test/latches/05"))?;
            let b = open_by(root.path(), &clock).await;
            assert_eq!(fs::read(root.path().join("test/format"))?, b"leasehold-file 1\n");
            assert!(root.path().join("test/watchers").is_dir() && root.path().join("test/latches/05").is_file());
            clock.set_wall(Timestamp::from_micros(0));
            assert!(granted(&b, &request("x")).await.fence > before);
        }
        assert!(!files(root.path().join("test")).iter().any(|name| name.starts_with(".new-")));
        fs::write(root.path().join("test/format"), "")?;
        fs::write(root.path().join("test/thesis.tex"), "")?;
        let error = FileBackend::open(options(root.path(), "")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "it may be another's");
        Ok(())
    });
}

#[test]
fn directories_whose_maker_died_are_tidied() {
    run(async {
        let root = tempfile::tempdir()?;
        let make = |name: &str, age: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.join("latches")).unwrap();
            assert!(Command::new("touch").args(["-d", age]).arg(&path).status().unwrap().success());
            path
        };
        let young = make(".new-0b1f8a54c2a14f7e9a3d7e61d0c5b2a1", "10 minutes ago");
        let old = make(".new-1b1f8a54c2a14f7e9a3d7e61d0c5b2a1", "2 hours ago");
        let other = make(".new-ideas", "2 hours ago");
        let _a = open(root.path()).await;
        assert_eq!([young, old, other].map(|path| path.exists()), [true, false, true]);
        Ok(())
    });
}

// ---- what goes wrong on disk ----

#[test]
fn a_garbage_record_is_named_and_after_its_removal_fences_keep_rising() {
    run(async {
        let root = tempfile::tempdir()?;
        let clock = ManualClock::new();
        let a = open_by(root.path(), &clock).await;
        let before = granted(&a, &request("x")).await.fence;
        granted(&a, &request("y")).await;
        let path = record_of(root.path(), "x");
        let whole = fs::read(&path)?;
        let other = fs::read(record_of(root.path(), "y"))?;
        for garbage in [b"{\"v\":1,", &b""[..], b"\0\0\0\0", &whole[..whole.len() / 2], &other] {
            fs::write(&path, garbage)?;
            let error = a.acquire(&request("x")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("x.json") && error.to_string().contains("remove the file"), "{error}");
            assert_eq!(fs::read(&path)?, garbage, "nothing was changed");
            assert!(a.list(&ListFilter::new(Names::Exactly(name("x")))).await.is_err());
            assert_eq!(a.list(&ListFilter::new(Names::All)).await?.leases.len(), 1, "the rest is listed");
            assert!(failures(&a.examine().await?).iter().any(|finding| finding.words.contains("x.json")));
        }
        fs::write(&path, b"{\"v\":2}")?;
        assert_eq!(a.acquire(&request("x")).await.unwrap_err().kind(), ErrorKind::Unsupported);
        fs::remove_file(&path)?;
        clock.set_wall(Timestamp::from_micros(1_000_000));
        assert!(granted(&a, &request("x")).await.fence > before, "the latch remembers");
        Ok(())
    });
}

#[test]
fn a_hostile_record_is_refused_and_spoils_nothing_else() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        let held = request("order:42");
        granted(&a, &held).await;
        queued(&a, &request("order:42")).await;
        let path = record_of(root.path(), "order%3A42");
        let latch = root.path().join("test/latches/1a");
        let fence = fs::read(&latch)?;
        let sound: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
        let permit = serde_json::json!({"mode": "permit", "units": 1, "capacity": 2});
        let second = sound["state"]["entries"][1]["id"].clone();
        for (place, value) in [
            ("/state/last_fence", 10_000_000_000_000_000_u64.into()),
            ("/state/last_fence", Fence::MAX.get().into()),
            ("/state/last_fence", u64::MAX.into()),
            ("/state/entries/0/grant/fence", 10_000_000_000_000_000_u64.into()),
            ("/state/entries/0/grant/fence", (Fence::MAX.get() - 1).into()),
            ("/state/entries/0/claim/units", 1.into()),
            ("/state/entries/0/claim/capacity", 1.into()),
            ("/state/entries/0/claim/mode", "permit".into()),
            ("/state/entries/0/claim/mode", "leader".into()),
            ("/state/entries/1/claim", permit),
            ("/state/entries/0/ttl/secs", 0.into()),
            ("/state/entries/0/ttl/secs", u64::MAX.into()),
            ("/state/entries/0/id", second),
            ("/resource", "order:43".into()),
        ] {
            let mut hostile = sound.clone();
            *hostile.pointer_mut(place).expect(place) = value.clone();
            fs::write(&path, serde_json::to_vec(&hostile)?)?;
            let error = a.acquire(&request("order:42")).await.expect_err(place);
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("cannot be understood"), "{place}: {error}");
            assert!(a.release(&held.key, &Outcome::Completed).await.is_err());
            assert_eq!(fs::read(&latch)?, fence, "{place} = {value} poisoned the latch");
        }
        fs::remove_file(&path)?;
        granted(&a, &request("order:42")).await;
        Ok(())
    });
}

#[test]
fn a_renewal_of_many_tells_which_one_is_in_doubt() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        let held = [request("x"), request("y"), request("x")];
        granted(&a, &held[0]).await;
        granted(&a, &held[1]).await;
        queued(&a, &held[2]).await;
        let renewals = held.each_ref().map(|request| Renewal::new(request.key.clone(), request.ttl));
        let told = a.renew(&renewals).await?.value;
        assert!(matches!(told[..], [Standing::Holding(_), Standing::Holding(_), Standing::Waiting(_)]), "{told:?}");
        fs::write(record_of(root.path(), "x"), "")?;
        let told = a.renew(&renewals).await?.value;
        assert!(matches!(told[..], [Standing::Unknown, Standing::Holding(_), Standing::Unknown]), "{told:?}");
        assert!(a.renew(&renewals[..1]).await.is_err());
        Ok(())
    });
}

#[test]
fn a_latch_that_passes_from_process_to_process_is_waited_for() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        let held = request("a");
        granted(&a, &held).await;
        // Three in a row, each longer than the looks at who has it are apart.
        let latch = root.path().join("test/latches/0a");
        let spawn = || Command::new("flock").arg(&latch).args(["sleep", "1.2"]).spawn().unwrap();
        let row = [spawn(), spawn(), spawn()];
        let inode = format!(":{} ", fs::metadata(&latch)?.ino());
        while fs::read_to_string("/proc/locks")?.lines().filter(|line| line.contains(&inode)).count() < row.len() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let started = SystemClock.now();
        assert_eq!(a.release(&held.key, &Outcome::Completed).await?.value, Released::Freed);
        assert!(SystemClock.now().since(started) > Duration::from_secs(2), "it was not their latch");
        for mut process in row {
            process.wait()?;
        }
        Ok(())
    });
}

#[test]
fn a_latch_held_by_a_stopped_process_is_an_error_that_names_it() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        let held = request("x");
        granted(&a, &held).await;
        let mut stopped = Process::start("hold latches", root.path(), "x");
        stopped.signal("-STOP");
        let asked = request("x");
        let started = SystemClock.now();
        let (error, other) = tokio::join!(a.acquire(&asked), a.acquire(&asked));
        let took = SystemClock.now().since(started);
        assert!(took > Duration::from_millis(1500) && took < Duration::from_secs(5), "{took:?}");
        for error in [error.unwrap_err(), other.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains(&format!("process {}", stopped.pid())), "{error}");
            assert!(error.to_string().contains("latches/"), "{error}");
        }
        let started = SystemClock.now();
        a.acquire(&asked).await.unwrap_err();
        assert!(SystemClock.now().since(started) < Duration::from_secs(1), "what is known to be stuck is said at once");
        stopped.kill();
        assert!(holds(&a, &held).await, "the abandoned wait does not keep the latch");
        assert_eq!(renewed(&a, &asked).await, Standing::Gone);
        Ok(())
    });
}

#[test]
fn a_full_disk_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(root.path()).output();
    if !mounted.is_ok_and(|mount| mount.status.success()) {
        eprintln!("mounting is not permitted here: the full disk was not tried");
        return;
    }
    let tried = std::panic::catch_unwind(|| run(on_a_full_disk(root.path())));
    assert!(Command::new("umount").arg("-l").arg(root.path()).status().unwrap().success());
    tried.unwrap();
}

async fn on_a_full_disk(root: &Path) -> Tried {
    let (a, b) = (open(root).await, open(root).await);
    let held = request("x");
    let before = granted(&a, &held).await;
    let record = fs::read(record_of(root, "x"))?;
    let _full = fs::write(root.join("ballast"), vec![0; 2 << 20]).unwrap_err();
    for busy_or_free in ["x", "y"] {
        let error = b.acquire(&request(busy_or_free)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("free some space"), "{error}");
    }
    assert_eq!(fs::read(record_of(root, "x"))?, record);
    assert_eq!(files(root.join("test/records")), ["x.json"], "nothing is left aside");
    assert!(matches!(renewed(&a, &held).await, Standing::Holding(grant) if grant.fence == before.fence));
    assert_eq!(release(&a, &held).await, Released::Freed, "a release needs no space");
    fs::remove_file(root.join("ballast"))?;
    assert!(granted(&b, &request("x")).await.fence > before.fence);
    Ok(())
}

#[test]
fn a_directory_that_cannot_be_made_or_is_gone_is_an_error_that_names_it() {
    run(async {
        let root = tempfile::tempdir()?;
        let file = root.path().join("file");
        fs::write(&file, "")?;
        let error = FileBackend::open(options(&file.join("below"), "")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("file/below"), "{error}");

        let a = open(root.path()).await;
        fs::rename(root.path().join("test"), root.path().join("moved"))?;
        let error = a.acquire(&request("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("test/latches"), "{error}");
        Ok(())
    });
}

#[test]
fn a_read_only_disk_is_a_matter_of_permission() {
    let root = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "ro", "tmpfs"]).arg(root.path()).output();
    if !mounted.is_ok_and(|mount| mount.status.success()) {
        eprintln!("mounting is not permitted here: the read-only disk was not tried");
        return;
    }
    let path = root.path().to_owned();
    let tried = std::panic::catch_unwind(|| {
        run(async {
            let error = FileBackend::open(options(&path, "")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            Ok(())
        });
    });
    assert!(Command::new("umount").arg("-l").arg(root.path()).status().unwrap().success());
    tried.unwrap();
}

#[test]
fn another_format_and_other_files_are_refused() {
    run(async {
        let root = tempfile::tempdir()?;
        drop(open(root.path()).await);
        fs::write(root.path().join("test/format"), "leasehold-file 2\n")?;
        let error = FileBackend::open(options(root.path(), "")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("leasehold-file 2"), "{error}");

        let other = tempfile::tempdir()?;
        fs::create_dir(other.path().join("test"))?;
        fs::write(other.path().join("test/thesis.tex"), "")?;
        let error = FileBackend::open(options(other.path(), "")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert_eq!(files(other.path().to_owned()), ["test"], "nothing is left aside");
        Ok(())
    });
}

#[test]
fn a_file_system_that_is_not_known_to_be_local_is_refused() {
    run(async {
        let error = FileBackend::open(options(Path::new("/proc/leasehold"), "")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("0x9fa0"), "{error}");
        Ok(())
    });
}

/// For what might block the thread itself, where no timer of a runtime could tell.
fn within_ten_seconds(work: impl FnOnce() + Send + 'static) {
    let (done, heard) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        let _late = done.send(());
    });
    let in_time = heard.recv_timeout(Duration::from_secs(10));
    assert!(in_time != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it hangs");
    worker.join().unwrap();
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    within_ten_seconds(|| {
        run(async {
            let root = tempfile::tempdir()?;
            let a = open(root.path()).await;
            let held = request("order:42");
            granted(&a, &held).await;
            let hashed = format!("records/~{}.json", "0".repeat(64));
            for name in ["records/x.json", &hashed, "history.ndjson", "boot", "latches/1a", "format"] {
                let path = root.path().join("test").join(name);
                let _if_there = fs::remove_file(&path);
                assert!(Command::new("mkfifo").arg(&path).status()?.success());
                let _either = a.history(&HistoryFilter::new(Names::All)).await;
                let _either = a.release(&held.key, &Outcome::Completed).await;
                let _either = FileBackend::open(options(root.path(), "")).await;
                a.list(&ListFilter::new(Names::All)).await?;
                a.examine().await?;
            }
            let error = a.acquire(&request("x")).await.unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{error}");
            Ok(())
        });
    });
}

#[test]
fn a_record_is_of_bounded_size() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        let wordy = Request { note: Some("n".repeat(17 << 20)), ..request("x") };
        let error = a.acquire(&wordy).await.unwrap_err();
        assert!(error.to_string().contains("16 MiB"), "{error}");
        granted(&a, &request("x")).await;
        File::create(record_of(root.path(), "y"))?.set_len(17 << 20)?;
        let error = a.acquire(&request("y")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("16 MiB"), "{error}");
        Ok(())
    });
}

#[test]
fn nothing_is_written_or_read_through_a_link() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        let victim = root.path().join("precious");
        let lay = |name: &str| {
            let path = root.path().join("test").join(name);
            let _if_there = fs::remove_file(&path);
            fs::write(&victim, "0000000000000000\n").unwrap();
            std::os::unix::fs::symlink(&victim, &path).unwrap();
        };
        let unharmed = || assert_eq!(fs::read_to_string(&victim).unwrap(), "0000000000000000\n");
        let id = files(root.path().join("test/presence")).remove(0);
        let held = request("order:42");

        lay(&format!("records/.{id}-1a"));
        granted(&a, &held).await;
        unharmed();
        lay("history.ndjson");
        release(&a, &held).await;
        unharmed();
        assert!(a.history(&HistoryFilter::new(Names::All)).await.is_err());
        lay(&format!("watchers/{id}"));
        let _events = a.watch(Names::All).await?;
        unharmed();
        lay("boot");
        lay(&format!("records/.{id}-ff"));
        a.examine().await?;
        drop(open(root.path()).await);
        unharmed();
        for link in ["records/order%3A42.json", "latches/1a"] {
            lay(link);
            let error = a.acquire(&held).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("symbolic link"), "{error}");
            unharmed();
        }
        lay("format");
        assert!(FileBackend::open(options(root.path(), "")).await.is_err());
        unharmed();
        Ok(())
    });
}

// ---- names, modes, files ----

#[test]
fn odd_and_long_names_work_and_do_not_collide() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        let long = "l".repeat(512);
        let longer = format!("{}m", "l".repeat(511));
        let mut names =
            ["..", ".", "a/b", "a%2Fb", "a%b", "../../x", "~x", ".x", "замок:日本", "a b", "A", "a", &long, &longer];
        for text in names {
            granted(&a, &request(text)).await;
        }
        let page = a.list(&ListFilter::new(Names::All)).await?;
        let listed: Vec<&str> = page.leases.iter().map(|lease| lease.resource.as_str()).collect();
        names.sort_unstable();
        assert_eq!(listed, names);
        let prefixed = a.list(&ListFilter::new(Names::Prefix(String::from("l")))).await?;
        assert_eq!(prefixed.leases.len(), 2);
        assert_eq!(files(root.path().to_owned()), ["test"]);
        Ok(())
    });
}

#[test]
fn pages_follow_each_other() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        for text in ["c", "a", "e", "b", "d"] {
            granted(&a, &request(text)).await;
        }
        let mut filter = ListFilter { limit: 2, ..ListFilter::new(Names::All) };
        let mut seen = Vec::new();
        loop {
            let page = a.list(&filter).await?;
            seen.extend(page.leases.iter().map(|lease| lease.resource.as_str().to_owned()));
            match page.next {
                Some(next) => filter.after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, ["a", "b", "c", "d", "e"]);
        Ok(())
    });
}

#[test]
fn the_mode_is_honoured_whatever_the_umask() {
    run(async {
        let parent = tempfile::tempdir()?;
        fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o2750))?;
        let root = parent.path().join("shared");
        let mode = |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777;
        let a = FileBackend::open(options(&root, "?mode=0660")).await?;
        let held = request("x");
        granted(&a, &held).await;
        assert_eq!([mode(""), mode("test"), mode("test/records")], [0o2770; 3]);
        let presence = format!("test/presence/{}", files(root.join("test/presence"))[0]);
        assert_eq!(["test/records/x.json", "test/latches/00", "test/format", &presence].map(mode), [0o660; 4]);
        release(&a, &held).await;
        assert_eq!(mode("test/history.ndjson"), 0o660);
        assert_eq!(fs::metadata(parent.path())?.permissions().mode() & 0o7777, 0o2750, "what was there stays");

        let private = tempfile::tempdir()?;
        open(private.path()).await;
        assert_eq!(fs::metadata(private.path().join("test"))?.permissions().mode() & 0o777, 0o700);
        Ok(())
    });
}

#[test]
fn a_directory_keeps_its_mode_for_everyone() {
    run(async {
        let root = tempfile::tempdir()?;
        let _a = FileBackend::open(options(root.path(), "?mode=0660")).await?;
        let b = open(root.path()).await;
        granted(&b, &request("x")).await;
        assert_eq!(fs::metadata(record_of(root.path(), "x"))?.permissions().mode() & 0o777, 0o660);
        FileBackend::open(options(root.path(), "?mode=0660")).await?;
        let error = FileBackend::open(options(root.path(), "?mode=0600")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("0660") && error.to_string().contains("0600"), "{error}");
        Ok(())
    });
}

const NOBODY: u32 = 65534;
const SOMEBODY: u32 = 65533;

/// Whether other users can be tried here.
fn is_root() -> bool {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        eprintln!("not run by root: other users were not tried");
    }
    root
}

#[test]
fn root_gives_what_it_writes_to_the_owner_of_the_directory() {
    if !is_root() {
        return;
    }
    run(async {
        let root = tempfile::tempdir()?;
        let dead = open(root.path()).await;
        granted(&dead, &request("x")).await;
        let a = open(root.path()).await;
        queued(&a, &request("x")).await;
        drop(dead);
        let to = format!("{NOBODY}:{NOBODY}");
        assert!(Command::new("chown").args(["-R", &to]).arg(root.path()).status()?.success());
        let b = open(root.path()).await;
        assert_eq!(b.list(&ListFilter::new(Names::All)).await?.leases.len(), 1, "the dead one's record is rewritten");
        let mut written = vec![record_of(root.path(), "x"), root.path().join("test/history.ndjson")];
        let presences = root.path().join("test/presence");
        written.extend(files(presences.clone()).into_iter().map(|presence| presences.join(presence)));
        assert_eq!(written.len(), 4);
        for path in written {
            let file = fs::metadata(&path)?;
            assert_eq!((file.uid(), file.gid()), (NOBODY, NOBODY), "{}", path.display());
        }
        Ok(())
    });
}

#[test]
fn two_users_of_one_directory_exclude_and_wake_each_other() {
    if !is_root() {
        return;
    }
    run(async {
        let root = tempfile::tempdir()?;
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777))?;
        drop(FileBackend::open(options(root.path(), "?mode=0666")).await?);
        let mut first = Process::start_as(NOBODY, "hold", root.path(), "x");
        let mut second = Process::start_as(SOMEBODY, "queue", root.path(), "x");
        let a = open(root.path()).await;
        let mut hints = a.hints();
        let third = request("x");
        assert_eq!(queued(&a, &third).await, 1);
        let holder = async || {
            let leases = a.list(&ListFilter::new(Names::All)).await.unwrap().leases;
            leases.into_iter().find(|lease| matches!(lease.state, LeaseState::Holding { .. })).map(|lease| lease.holder)
        };
        let before = holder().await;
        first.kill();
        let after = holder().await;
        assert!(before.is_some() && after.is_some() && before != after, "handed from one user to the other");
        second.kill();
        assert_eq!(hint(&mut hints).await, changed("x"));
        assert!(holds(&a, &third).await);
        Ok(())
    });
}

#[test]
fn a_user_is_woken_by_the_death_of_another_users_process() {
    if !is_root() {
        return;
    }
    run(async {
        let root = tempfile::tempdir()?;
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777))?;
        // Made by the other user, so that root is the guest here.
        let mut maker = Process::start_as(NOBODY, "hold shared by all", root.path(), "x");
        assert_eq!(fs::metadata(root.path().join("test"))?.uid(), NOBODY);
        let mut holder = Process::start("hold", root.path(), "y");
        let mut waiter = Process::start_as(SOMEBODY, "queue until granted", root.path(), "y");
        holder.kill();
        assert!(waiter.0.wait()?.success(), "woken by the death of a process of root");
        let a = open(root.path()).await;
        let mut hints = a.hints();
        let next = request("x");
        queued(&a, &next).await;
        maker.kill();
        assert_eq!(hint(&mut hints).await, changed("x"));
        assert!(holds(&a, &next).await);
        Ok(())
    });
}

#[test]
fn a_renewal_that_changes_nothing_writes_nothing() {
    run(async {
        let root = tempfile::tempdir()?;
        let (a, b) = (open(root.path()).await, open(root.path()).await);
        let (held, waiting) = (request("x"), request("x"));
        granted(&a, &held).await;
        queued(&b, &waiting).await;
        let path = record_of(root.path(), "x");
        let identity = || {
            let file = fs::metadata(&path).unwrap();
            (file.ino(), file.mtime(), file.mtime_nsec(), file.ctime_nsec())
        };
        let before = identity();
        for _ in 0..3 {
            assert!(holds(&a, &held).await);
            assert!(waits(&b, &waiting).await);
            granted(&a, &held).await;
        }
        a.list(&ListFilter::new(Names::All)).await?;
        assert_eq!(identity(), before);
        let metadata = Metadata::from_iter([(String::from("leader"), true.into())]);
        let renewal = Renewal { metadata: Some(metadata), ..Renewal::new(held.key.clone(), held.ttl) };
        a.renew(&[renewal]).await?;
        assert_ne!(identity(), before);
        Ok(())
    });
}

#[test]
fn a_free_resource_leaves_no_record_and_its_fence_rises() {
    run(async {
        let root = tempfile::tempdir()?;
        let clock = ManualClock::new();
        let a = open_by(root.path(), &clock).await;
        let mut newest = Fence::new(0);
        for _ in 0..5 {
            let held = request("x");
            let fence = granted(&a, &held).await.fence;
            assert!(fence > newest);
            newest = fence;
            release(&a, &held).await;
            assert!(files(root.path().join("test/records")).is_empty());
            clock.set_wall(Timestamp::from_micros(0));
        }
        Ok(())
    });
}

#[test]
fn every_change_may_be_forced_to_the_disk() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = FileBackend::open(options(root.path(), "?fsync=1")).await?;
        let held = request("x");
        granted(&a, &held).await;
        assert_eq!(release(&a, &held).await, Released::Freed);
        Ok(())
    });
}

// ---- telling ----

#[test]
fn history_is_newest_first_bounded_and_survives_a_torn_line() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        let note = Some("n".repeat(60_000));
        for round in 0..200 {
            let held = Request { note: note.clone(), ..request(&format!("x{round}")) };
            granted(&a, &held).await;
            release(&a, &held).await;
        }
        let size = |file: &str| fs::metadata(root.path().join("test").join(file)).unwrap().len();
        let limit = (4 << 20) + 70_000;
        assert!(size("history.ndjson") < limit && size("history.1.ndjson") < limit);
        let newer = root.path().join("test/history.ndjson");
        let whole = fs::read(&newer)?;
        fs::write(&newer, &whole[..whole.len() - 10])?;
        let told = a.history(&HistoryFilter { limit: 90, ..HistoryFilter::new(Names::All) }).await?;
        assert_eq!(told[0].resource, name("x198"));
        assert_eq!(told.len(), 90);
        assert!(told.is_sorted_by_key(|ended| std::cmp::Reverse(ended.ended_at)));
        Ok(())
    });
}

#[test]
fn a_watcher_sees_what_another_instance_does_until_it_stops() {
    run(async {
        let root = tempfile::tempdir()?;
        let (a, b) = (open(root.path()).await, open(root.path()).await);
        let mut events = b.watch(Names::Prefix(String::from("x"))).await?;
        let mut next = async || {
            let event = std::future::poll_fn(|context| events.as_mut().poll_next(context));
            tokio::time::timeout(Duration::from_secs(5), event).await.expect("an event in time").unwrap().kind
        };
        let (first, second) = (request("x"), request("x"));
        let one = granted(&a, &first).await;
        granted(&a, &request("other")).await;
        assert_eq!(next().await, EventKind::Acquired { fence: one.fence });
        queued(&a, &second).await;
        assert_eq!(next().await, EventKind::Waiting);
        release(&a, &first).await;
        assert_eq!(next().await, EventKind::Ended { ending: Ending::Released, fence: Some(one.fence) });
        assert!(matches!(next().await, EventKind::Acquired { fence } if fence > one.fence));
        release(&b, &second).await;
        assert!(matches!(next().await, EventKind::Ended { .. }), "what the watcher does itself is told too");
        assert_eq!(files(root.path().join("test/watchers")).len(), 1);
        drop(events);
        assert!(files(root.path().join("test/watchers")).is_empty());
        Ok(())
    });
}

#[test]
fn a_healthy_directory_gets_a_clean_report() {
    run(async {
        let root = tempfile::tempdir()?;
        let a = open(root.path()).await;
        granted(&a, &request("x")).await;
        assert_eq!(a.guarantees().liveness, Liveness::Process);
        let findings = a.examine().await?;
        assert!(failures(&findings).is_empty(), "{findings:?}");
        fs::set_permissions(root.path().join("test"), fs::Permissions::from_mode(0o777))?;
        let findings = a.examine().await?;
        let warned = |finding: &Finding| finding.severity == Severity::Warning && finding.subject == "permissions";
        assert!(findings.iter().any(warned), "{findings:?}");
        Ok(())
    });
}
