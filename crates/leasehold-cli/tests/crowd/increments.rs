//! Sixteen processes, one counter: nothing is lost, and no two are at it at once.

use std::{
    env, fs,
    time::{Duration, Instant},
};

use crate::sandbox::{LIMIT, Running, Sandbox, kill, until};

const EXE: &str = env!("CARGO_BIN_EXE_leasehold");

fn shell(sandbox: &Sandbox, script: &str) -> Running {
    let mut command = sandbox.command("sh");
    command.args(["-c", script]).env("LEASEHOLD_URL", sandbox.url());
    Running::of(command)
}

/// Each process increments fifty times, or as often as `LEASEHOLD_INCREMENTS` says.
#[test]
fn no_increment_is_lost() {
    const PROCESSES: usize = 16;
    let _alone = crate::alone();
    let times: usize = env::var("LEASEHOLD_INCREMENTS").map_or(50, |times| times.parse().unwrap());
    let sandbox = Sandbox::new();
    let counter = sandbox.path("counter");
    fs::write(&counter, "0\n").unwrap();
    let step = format!("read n < {0}; echo $((n + 1)) > {0}", counter.display());
    let script = format!("i=0; while [ $i -lt {times} ]; do {EXE} run x -c '{step}' || exit 1; i=$((i + 1)); done");
    let started = Instant::now();
    let mut workers: Vec<Running> = (0..PROCESSES).map(|_| shell(&sandbox, &script)).collect();
    let (mut seen, mut changed) = (String::new(), started);
    while !workers.iter_mut().all(Running::has_ended) {
        let now = fs::read_to_string(&counter).unwrap();
        if now != seen {
            (seen, changed) = (now, Instant::now());
        }
        assert!(changed.elapsed() < LIMIT, "the lock did not pass on within {LIMIT:?}: {seen}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(workers.iter_mut().all(|worker| worker.code() == 0));
    assert_eq!(fs::read_to_string(&counter).unwrap(), format!("{}\n", PROCESSES * times));
    println!("{} increments by {PROCESSES} processes in {:?}", PROCESSES * times, started.elapsed());
}

#[test]
fn no_two_are_at_it_at_once_though_many_are_killed() {
    const PROCESSES: usize = 16;
    /// So many are killed, and so many get through.
    const OFTEN: usize = 150;
    let _alone = crate::alone();
    let sandbox = Sandbox::new();
    let (marker, log, violations) = (sandbox.path("marker"), sandbox.path("log"), sandbox.path("violations"));
    // The marker is made by the one inside; one whose owner lives (flag 4: it exits) means that two are inside.
    let inside = sandbox.path("inside.sh");
    fs::write(
        &inside,
        format!(
            "echo $$ > {marker}.$$\n\
             if ! ln {marker}.$$ {marker} 2>/dev/null; then\n\
             read owner < {marker}\n\
             if read -r _ _ state _ _ _ _ _ flags _ 2>/dev/null < /proc/$owner/stat && [ $((flags & 4)) = 0 ]; then\n\
             echo \"$$ found $owner ($state)\" >> {violations}\n\
             fi\n\
             rm -f {marker}; ln {marker}.$$ {marker}\n\
             fi\n\
             echo $LEASEHOLD_FENCE >> {log}\n\
             read owner < {marker}; [ \"$owner\" = $$ ] || echo \"$$ lost its marker to $owner\" >> {violations}\n\
             rm -f {marker} {marker}.$$\n",
            marker = marker.display(),
            log = log.display(),
            violations = violations.display(),
        ),
    )
    .unwrap();
    let script = format!("while :; do {EXE} run x sh {} || :; done 2> /dev/null", inside.display());
    let workers: Vec<Running> = (0..PROCESSES).map(|_| shell(&sandbox, &script)).collect();
    let started = Instant::now();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut kills = 0;
    let fences = || -> Vec<u64> {
        fs::read_to_string(&log).unwrap_or_default().lines().map(|line| line.parse().unwrap()).collect()
    };
    while kills < OFTEN || fences().len() < OFTEN {
        assert!(started.elapsed() < 10 * LIMIT, "{} runs, {kills} kills", fences().len());
        std::thread::sleep(Duration::from_millis(30));
        let runs: Vec<i32> = sandbox.processes().into_iter().filter(|pid| is_run(*pid)).collect();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if !runs.is_empty() {
            kill(runs[usize::try_from(seed >> 33).unwrap() % runs.len()]);
            kills += 1;
        }
    }
    drop(workers);
    until("the runs end", || !sandbox.processes().iter().any(|pid| is_run(*pid)));
    let fences = fences();
    let overlaps = fs::read_to_string(&violations).unwrap_or_default();
    assert_eq!(overlaps, "", "two were inside at once");
    assert!(fences.is_sorted_by(|a, b| a < b), "fences rise");
    println!("{} runs inside one at a time, {kills} killed", fences.len());
}

/// Whether it is a `leasehold run` itself, not its command.
fn is_run(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    words.first() == Some(&EXE.as_bytes()) && words.get(1) == Some(&&b"run"[..])
}
