//! `leasehold run` beside flock(1): what wrapping a command costs, alone and in a crowd.
//!
//! `cargo bench -p leasehold-cli` prints medians over interleaved rounds and their ratio. The machine is
//! noisy and both pay for starting processes: the ratio is what counts.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads time")]
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const ROUNDS: usize = 15;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    report("one run, nobody waits", |round| alone(folder.path(), round));
    report("16 processes, 20 runs each, one lock", |round| crowd(folder.path(), round));
}

/// Medians of both over interleaved rounds, who goes first taking turns.
fn report(what: &str, mut measure: impl FnMut(Wrapper) -> Duration) {
    let (mut ours, mut flocks) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let order =
            if round % 2 == 0 { [Wrapper::Leasehold, Wrapper::Flock] } else { [Wrapper::Flock, Wrapper::Leasehold] };
        for wrapper in order {
            let took = measure(wrapper);
            match wrapper {
                Wrapper::Leasehold => ours.push(took),
                Wrapper::Flock => flocks.push(took),
            }
        }
    }
    let (ours, flocks) = (median(ours), median(flocks));
    println!("{what}: leasehold {ours:?}, flock {flocks:?}, ratio {:.2}", ours.as_secs_f64() / flocks.as_secs_f64());
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[derive(Clone, Copy)]
enum Wrapper {
    Leasehold,
    Flock,
}

impl Wrapper {
    /// The wrapper's part of a shell command.
    fn command(self, folder: &Path) -> String {
        let folder = folder.display();
        match self {
            Self::Leasehold => {
                format!("{} -b file://{folder}/locks run x --", env!("CARGO_BIN_EXE_leasehold"))
            }
            Self::Flock => format!("flock {folder}/x"),
        }
    }
}

fn alone(folder: &Path, wrapper: Wrapper) -> Duration {
    timed(|| wait(shell(&format!("for i in 1 2 3 4 5 6 7 8 9 10; do {} true; done", wrapper.command(folder))))) / 10
}

fn crowd(folder: &Path, wrapper: Wrapper) -> Duration {
    let script = format!("i=0; while [ $i -lt 20 ]; do {} true; i=$((i+1)); done", wrapper.command(folder));
    timed(|| {
        let all: Vec<Child> = (0..16).map(|_| shell(&script)).collect();
        all.into_iter().for_each(wait);
    })
}

fn shell(script: &str) -> Child {
    Command::new("sh").args(["-e", "-c", script]).stdin(Stdio::null()).spawn().unwrap()
}

fn wait(mut child: Child) {
    assert!(child.wait().unwrap().success());
}

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}
