//! Dead before expiry: on a backend whose leases end by the clock, a command whose lease cannot be renewed is gone
//! before anybody else can have it.
//!
//! Supervision reaps every child of its process, so each test is a process of its own: the tests of this file start
//! this binary again, and the copy does the work.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on fails, on real time")]

#[path = "sandbox/mod.rs"]
mod sandbox;

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{Guard, Lease, Leasehold, Loss, backends::memory::MemoryBackend, clock::SystemClock};
use leasehold_conformance::Faulty;
use leasehold_supervise::{
    Cause, ChildEnd, KillMode, Launch, Limits, NotStarted, Notice, OnLost, Signals, Status, Stragglers, supervise,
};
use rustix::process::Signal;

use crate::sandbox::{Ran, Running, Sandbox, is_alive, read_soon, state_of, until};

const ON_STAGE: &str = "LEASEHOLD_TEST_SCENE";

/// Runs one test in a process of its own.
///
/// It makes its own sandbox within this one, so that nothing is left of it even if it is killed.
fn play(sandbox: &Sandbox, scene: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = sandbox.command(env::current_exe().unwrap());
    command.env("TMPDIR", sandbox.path("."));
    command.args(["--exact", scene, "--nocapture", "--test-threads=1"]);
    command.env(ON_STAGE, "1").envs(variables.iter().copied()).stdin(Stdio::null());
    command
}

/// A scene is played by a copy of this process; the harness, which calls it too, sees it do nothing.
fn is_on_stage() -> bool {
    env::var_os(ON_STAGE).is_some()
}

/// Plays the scene of the test of this name in a process of its own, in which only that test runs.
fn plays(test: &str, scene: impl AsyncFnOnce(Stage)) {
    if is_on_stage() {
        run(scene(Stage::set()));
    } else {
        assert_played(&Ran::of(play(&Sandbox::new(), test, &[])));
    }
}

fn assert_played(ran: &Ran) {
    assert!(ran.status.success() && ran.stdout.contains("1 passed"), "{}\n{}", ran.stdout, ran.stderr);
}

/// Two processes in one: the first reaches the leases through a connection that can be cut.
struct Stage {
    sandbox: Sandbox,
    connection: Arc<Faulty>,
    first: Leasehold,
    second: Leasehold,
}

impl Stage {
    fn set() -> Self {
        let memory = MemoryBackend::private(Arc::new(SystemClock));
        let second = Leasehold::builder().open(Arc::new(memory.sibling())).unwrap();
        let connection = Faulty::new(Arc::new(memory));
        let first = Leasehold::builder().open(Arc::clone(&connection) as _).unwrap();
        Self { sandbox: Sandbox::new(), connection, first, second }
    }

    fn launch(&self, script: &str) -> Launch {
        Launch {
            command: ["sh", "-c", script].map(Into::into).to_vec(),
            env: vec![self.sandbox.mark()],
            supervisor: [env!("CARGO_BIN_EXE_leasehold"), "__supervise", "text"].map(Into::into).to_vec(),
            ..Launch::default()
        }
    }

    async fn hold(&self, ttl: Duration) -> Guard {
        self.first.mutex("x").ttl(ttl).acquire().await.unwrap()
    }

    /// A command and a grandchild that both do not listen to TERM, and where they tell their pids.
    fn stubborn(&self) -> Launch {
        let pids = self.sandbox.path("pids");
        self.launch(&format!(
            "trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep .2; done' & echo $$ $! > {}; while :; do sleep .2; done",
            pids.display()
        ))
    }
}

fn family(pids: &Path) -> Vec<i32> {
    read_soon(pids).split(' ').map(|pid| pid.parse().unwrap()).collect()
}

/// Whether the process can execute another instruction: with KILL pending it cannot, though it may take the kernel a
/// moment on a busy machine to end it.
fn can_run(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let is_doomed =
        status.lines().filter(|line| line.starts_with("SigPnd:") || line.starts_with("ShdPnd:")).any(|line| {
            let mask = line.split_whitespace().nth(1).and_then(|mask| u64::from_str_radix(mask, 16).ok());
            mask.is_some_and(|mask| mask & (1 << (Signal::KILL.as_raw() - 1)) != 0)
        });
    is_alive(pid) && !is_doomed
}

fn limits(ttl: Duration, kill_after: Duration) -> Limits {
    Limits {
        ttl,
        kill_after,
        kill_mode: KillMode::Group,
        on_lost: OnLost::Terminate,
        max_hold: None,
        kill_on_term: false,
        stragglers: Stragglers::Stop,
    }
}

/// Returns how the command ended, and the names of the notices meanwhile.
async fn watch_over(launch: &Launch, lease: &Lease, kill_after: Duration) -> (ChildEnd, Vec<&'static str>) {
    let mut notices = Vec::new();
    let (mut signals, limits) = (Signals::catch().unwrap(), limits(lease.ttl(), kill_after));
    let mut notify = |notice: Notice| notices.push(name_of(&notice));
    let leases = std::slice::from_ref(lease);
    let ended = supervise(launch, leases, limits, None, &mut signals, &mut notify).await.unwrap();
    (ended, notices)
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

#[test]
fn scene_of_cut_connections() {
    if !is_on_stage() {
        return;
    }
    let times: usize = env::var("TIMES").unwrap().parse().unwrap();
    let (ttl, kill_after) = (Duration::from_secs(2), Duration::from_millis(400));
    let mut spare = Vec::new();
    for time in 0..times {
        let stage = Stage::set();
        let launch = stage.stubborn();
        let (ended, notices, alive, gap) = run(async {
            let guard = stage.hold(ttl).await;
            let lease = guard.lease().clone();
            let (second, pids) = (stage.second.clone(), stage.sandbox.path("pids"));
            // Another thread, so that it has the lock the moment it is granted, whatever this one is busy with.
            let next = std::thread::spawn(move || {
                let acquire = async { second.mutex("x").ttl(ttl).wait_forever().acquire().await };
                let taken = leasehold::blocking::wait(acquire).unwrap();
                let alive: Vec<i32> = family(&pids).into_iter().filter(|pid| can_run(*pid)).collect();
                let taken_at = Instant::now();
                leasehold::blocking::wait(taken.release()).unwrap();
                (alive, taken_at)
            });
            let cut = async {
                // At any phase between two renewals.
                tokio::time::sleep(Duration::from_millis(150 + u64::try_from(time * 67 % 700).unwrap())).await;
                stage.connection.cut();
            };
            let work = watch_over(&launch, &lease, kill_after);
            let ((ended, notices), ()) = tokio::join!(work, cut);
            let died = Instant::now();
            let (alive, taken_at) = next.join().unwrap();
            std::mem::forget(guard);
            (ended, notices, alive, taken_at.saturating_duration_since(died))
        });
        assert_eq!(alive, [0; 0], "time {time}: still at it when the lock had passed on");
        spare.push(gap);
        assert_eq!(ended.cause, Some(Cause::Lost(Loss::RenewTimeout)));
        assert_eq!(ended.status, Status::Killed(Signal::KILL.as_raw()), "it did not listen to TERM");
        assert_eq!(notices, ["started", "in doubt", "stopping"]);
    }
    spare.sort_unstable();
    println!("known dead before the next had it by {:?} at least, {:?} in the median", spare[0], spare[times / 2]);
}

fn name_of(notice: &Notice) -> &'static str {
    match notice {
        Notice::Started { .. } => "started",
        Notice::InDoubt { .. } => "in doubt",
        Notice::Stopping { .. } => "stopping",
        Notice::ContinuesWithoutLease { .. } => "goes on",
        Notice::FoundLost { .. } => "found lost",
        Notice::Stragglers { .. } => "stragglers",
        Notice::Overdue => "overdue",
        _ => "of the supervisor",
    }
}

/// How often the connection is cut: `LEASEHOLD_CUTS=1000` takes four minutes, the usual two dozen seconds.
#[test]
fn a_cut_connection_kills_the_family_before_the_lock_passes_on() {
    let cuts: usize = env::var("LEASEHOLD_CUTS").map_or(24, |cuts| cuts.parse().unwrap());
    let workers = (cuts / 6).clamp(1, 10).min(if cuts > 100 { 10 } else { 4 });
    let times = cuts.div_ceil(workers).to_string();
    let sandbox = Sandbox::new();
    let mut crew: Vec<Running> = (0..workers)
        .map(|_| {
            let mut command = play(&sandbox, "scene_of_cut_connections", &[("TIMES", &times)]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            Running::of(command)
        })
        .collect();
    while let Some(worker) = crew.pop() {
        let ran = worker.finish_within(Duration::from_secs(600));
        assert_played(&ran);
        println!("{}", ran.stdout.lines().find(|line| line.contains("known dead")).unwrap_or_default());
    }
}

#[test]
fn a_connection_that_comes_back_in_time_costs_a_warning() {
    plays("a_connection_that_comes_back_in_time_costs_a_warning", async |stage| {
        let guard = stage.hold(Duration::from_millis(1500)).await;
        let lease = guard.lease().clone();
        let hiccup = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            stage.connection.cut();
            // Past the middle of the lease, and before TERM would be due.
            while lease.remaining().unwrap() > Duration::from_millis(600) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stage.connection.heal();
        };
        let launch = stage.launch("sleep 2.5; exit 7");
        let work = watch_over(&launch, &lease, Duration::from_millis(300));
        let ((ended, notices), ()) = tokio::join!(work, hiccup);
        guard.release().await.unwrap();
        assert_eq!((ended.status, ended.cause), (Status::Exited(7), None));
        assert_eq!(notices, ["started", "in doubt"], "reported once, and then it was well again");
    });
}

#[test]
fn one_that_listens_has_its_grace_before_the_deadline() {
    plays("one_that_listens_has_its_grace_before_the_deadline", async |stage| {
        let kill_after = Duration::from_millis(400);
        let said = stage.sandbox.path("said");
        let launch =
            stage.launch(&format!("trap 'echo TERM > {}; exit 3' TERM; while :; do sleep .01; done", said.display()));
        let guard = stage.hold(Duration::from_millis(1500)).await;
        stage.connection.cut();
        let (ended, _) = watch_over(&launch, guard.lease(), kill_after).await;
        let left = guard.remaining().unwrap();
        std::mem::forget(guard);
        assert_eq!((ended.status, ended.cause), (Status::Exited(3), Some(Cause::Lost(Loss::RenewTimeout))));
        assert_eq!(fs::read_to_string(said).unwrap(), "TERM\n");
        assert!(
            left > Duration::from_millis(200) && left <= kill_after + Duration::from_millis(100),
            "TERM came {left:?} before the deadline"
        );
    });
}

#[test]
fn a_healthy_lease_outlives_many_ttls_in_silence() {
    plays("a_healthy_lease_outlives_many_ttls_in_silence", async |stage| {
        // Long enough that a busy machine renews in time.
        let guard = stage.hold(Duration::from_secs(3)).await;
        let launch = stage.launch("sleep 10; exit 4");
        let (ended, notices) = watch_over(&launch, guard.lease(), Duration::from_millis(150)).await;
        assert_eq!((ended.status, ended.cause), (Status::Exited(4), None));
        assert_eq!(notices, ["started"], "a renewal always comes before TERM");
    });
}

/// Fails unless the command is not started, since the lease was lost so.
async fn is_not_started(launch: &Launch, lease: &Lease, ran: &Path, loss: Loss) {
    let mut signals = Signals::catch().unwrap();
    let (leases, limits) = ([lease.clone()], limits(lease.ttl(), Duration::from_millis(100)));
    let result = supervise(launch, &leases, limits, None, &mut signals, &mut |_notice| ()).await;
    assert!(matches!(result, Err(NotStarted::Lost(found)) if found == loss) && !ran.exists(), "{result:?}");
}

#[test]
fn a_command_is_not_started_under_a_lease_that_is_lost() {
    plays("a_command_is_not_started_under_a_lease_that_is_lost", async |stage| {
        let ran = stage.sandbox.path("ran");
        let mut launch = stage.launch(&format!("touch {}", ran.display()));
        let guard = stage.first.mutex("x").acquire().await.unwrap();
        stage.second.evict(guard.resource(), guard.fence(), "too late").await.unwrap();
        guard.lease().lost().await;
        is_not_started(&launch, guard.lease(), &ran, Loss::Evicted).await;
        let guard = stage.hold(Duration::from_millis(800)).await;
        stage.connection.cut();
        // The supervisor takes longer to start than the lease lasts.
        launch.supervisor.splice(0..0, ["sh", "-c", "sleep 1; exec \"$0\" \"$@\""].map(Into::into));
        is_not_started(&launch, guard.lease(), &ran, Loss::RenewTimeout).await;
        std::mem::forget(guard);
    });
}

#[test]
fn scene_of_a_long_stop() {
    if !is_on_stage() {
        return;
    }
    let stage = Stage::set();
    let (pid, ticks) = (env::var("PID_FILE").unwrap(), env::var("TICKS").unwrap());
    let ttl = Duration::from_secs(3);
    let launch = stage.launch(&format!("echo $$ > {pid}; while :; do printf . >> {ticks}; sleep .005; done"));
    let (ended, notices) = run(async {
        let guard = stage.hold(ttl).await;
        let ended_and_notices = watch_over(&launch, guard.lease(), Duration::from_millis(150)).await;
        std::mem::forget(guard);
        ended_and_notices
    });
    assert_eq!(ended.status, Status::Killed(Signal::KILL.as_raw()));
    assert_eq!(ended.cause, Some(Cause::Lost(Loss::RenewTimeout)));
    let losses = notices.iter().filter(|notice| ["stopping", "found lost"].contains(notice)).count();
    assert_eq!(losses, 1, "the loss is reported once: {notices:?}");
}

#[test]
fn stopped_past_its_ttl_the_child_never_runs_another_instruction() {
    let sandbox = Sandbox::new();
    let ticks = sandbox.path("ticks");
    let mut command = play(&sandbox, "scene_of_a_long_stop", &[("TICKS", ticks.to_str().unwrap())]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::of(command);
    let child = sandbox.told_pid();
    let count = || fs::metadata(&ticks).map_or(0, |file| file.len());
    until("it ticks", || count() > 3);
    running.signal(Signal::TSTP);
    until("both stop", || state_of(running.pid()) == Some('T') && matches!(state_of(child), Some('T' | 'D')));
    // A write that was under way when the signal came is done by then.
    std::thread::sleep(Duration::from_secs(2));
    let before = count();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(count(), before);
    running.signal(Signal::CONT);
    assert_played(&running.finish());
    assert_eq!(count(), before);
    assert!(!is_alive(child));
}
