//! One worker process: runs lanes, obeys the conductor's commands on its input, and ends with that input.

use std::{
    io::{self, BufRead},
    process,
    sync::Arc,
    thread,
    time::Duration,
};

use leasehold::{ErrorKind, Leasehold, blocking};
use leasehold_testkit::Dice;
use tokio::{runtime, sync::mpsc, task::JoinSet, time::sleep};

use crate::{
    args::{ClientKind, Role},
    broken,
    event::{Log, LogEvent},
    instant::{Micros, millis, now},
    lane::{self, WorkerState},
    probe,
    target::TTL,
};

/// How long a worker tries to connect.
const CONNECT_LIMIT: Micros = millis(30_000);

/// Runs the worker until the conductor ends it.
pub(crate) fn run(role: &Role) -> io::Result<()> {
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(work(role))
}

async fn work(role: &Role) -> io::Result<()> {
    let log = Log::open(&role.log)?;
    let locks = connect(&role.url).await.map_err(io::Error::other)?;
    let shared = Arc::new(WorkerState::new(locks, log, role.clone()));
    let mut tasks = start_tasks(&shared);
    let mut commands = read_commands();
    while let Some(command) = commands.recv().await {
        match command.as_str() {
            "fork idle" => *shared.fork_idle.lock() = Some(true),
            "fork use" => *shared.fork_idle.lock() = Some(false),
            "callback" => {
                let (shared, name) = (Arc::clone(&shared), format!("callback:{}", role.label));
                tasks.spawn(async move { probe::block_in_callback(&shared, &name).await.unwrap_or_default() });
            }
            "settle" => {
                shared.settle();
                while tasks.join_next().await.is_some() {}
                shared.log.write(LogEvent::Idle);
            }
            "list" => {
                let left = probe::list_leftovers(&shared.locks).await;
                shared.log.write(LogEvent::Listed { left });
            }
            "finish" => return shared.locks.close().await.map_err(io::Error::other),
            other => return Err(io::Error::other(format!("unknown command {other:?}"))),
        }
    }
    Ok(())
}

/// Connects, again and again while the servers are replacing one of them.
async fn connect(url: &str) -> Result<Leasehold, leasehold::Error> {
    let until = now() + CONNECT_LIMIT;
    loop {
        match Leasehold::builder().ttl(TTL).connect(url).await {
            Err(error) if error.kind() == ErrorKind::Unavailable && now() < until => {
                sleep(Duration::from_millis(100)).await;
            }
            connected => return connected,
        }
    }
}

fn start_tasks(shared: &Arc<WorkerState>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut dice = Dice::new(shared.role.seed);
    for _ in 0..shared.role.lanes {
        let (shared, dice) = (Arc::clone(shared), dice.split());
        tasks.spawn(async move { take_turns(&shared, dice).await });
    }
    let queues = Arc::clone(shared);
    tasks.spawn(async move { probe::watch_queues(&queues).await });
    let probed = Arc::clone(shared);
    // On a thread of its own, since the disk may hold up the threads of this runtime:
    // 1. operations on the directory were fast, so that the next one runs on the thread of its caller, without a hop
    // 2. the disk stalls in the middle of it, which nobody can know before: that thread waits, and every task on it
    // 3. the operation ends and was slow: the following ones run on threads that may block
    // `lost` is woken in time all the same, but a task that waits for it on the stalled thread does not run.
    tasks.spawn_blocking(move || complain(blocking::wait(probe::lose_again_and_again(&probed))));
    tasks
}

/// Ends the worker, which the conductor reports, when something failed that no fault explains.
fn complain(result: Result<(), leasehold::Error>) {
    if let Err(error) = result {
        eprintln!("worker: {error}");
        process::exit(3);
    }
}

/// Reads commands on a thread of its own: a blocked runtime must not keep the worker from seeing its input end.
fn read_commands() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                return;
            }
        }
        // The conductor is gone, and nobody will read the log.
        process::exit(1);
    });
    receiver
}

/// Takes locks until the worker settles.
async fn take_turns(shared: &WorkerState, mut dice: Dice) {
    let turns = async {
        loop {
            if shared.role.client == ClientKind::Ours {
                lane::turn(shared, &mut dice).await;
            } else {
                broken::turn(shared, &mut dice).await;
            }
            sleep(Duration::from_micros(dice.below(millis(5)))).await;
        }
    };
    // Drops whatever the task does: requests are cancelled, and guards release their leases.
    tokio::select! {
        () = turns => {}
        () = shared.settled() => {}
    }
}
