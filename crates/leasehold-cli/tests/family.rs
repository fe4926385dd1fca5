//! A family of five whose run, supervisor, or both are killed or stopped: the next holder finds nobody of it alive.
//!
//! `LEASEHOLD_KILLS=100` does so a hundred times on each backend.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that cannot go on fails, on real time")]

mod sandbox;

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use leasehold_testkit::{postgres::Postgres, redis::Server};
use rustix::process::Signal;
use sandbox::{Ran, Running, Sandbox, is_alive, kill, parent_of, read_soon, state_of, until};

/// What happens to those who watch over the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    RunKilled,
    SupervisorKilled,
    /// For longer than the ttl.
    RunStopped,
    BothKilled,
}

/// How a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// With the last process that has inherited it.
    Process,
    /// By the clock.
    Ttl,
}

fn on(sandbox: &Sandbox, url: &str, args: &[&str]) -> Command {
    let mut command = sandbox.bare(args);
    command.env("LEASEHOLD_URL", url);
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command
}

/// One lock, and the families that hold it one after the other.
struct Lane<'a> {
    number: usize,
    sandbox: &'a Sandbox,
    url: &'a str,
    life: Life,
}

impl Lane<'_> {
    fn leasehold(&self, args: &[&str]) -> Command {
        let mut command = on(self.sandbox, self.url, args);
        command.stderr(Stdio::null());
        command
    }

    fn name(&self) -> String {
        format!("x{}", self.number)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.sandbox.path(&format!("{name}-{}", self.number))
    }

    /// Starts a command with a child in its group, two in a group of their own, and a daemon; none listens to TERM.
    fn start_family(&self) -> (Running, Vec<i32>) {
        let (pids, own, away) = (self.file("pids"), self.file("own"), self.file("away"));
        let stubborn = "trap \"\" TERM; while :; do sleep .1; done";
        let script = format!(
            "trap '' TERM; sh -c '{stubborn}' & near=$!; timeout 999 sh -c 'echo $$ > {0}; {stubborn}' & timeout=$!; \
             setsid sh -c 'echo $$ > {1}; {stubborn}' & while ! test -s {0} || ! test -s {1}; do sleep .01; done; \
             echo $$ $near $timeout $(cat {0} {1}) > {2}; while :; do sleep .1; done",
            own.display(),
            away.display(),
            pids.display(),
        );
        let times = ["--ttl", "4s", "--kill-after", "800ms"];
        let holder =
            Running::of(self.leasehold(&[&["run"], &times[..], &[self.name().as_str(), "-c", &script]].concat()));
        let family: Vec<i32> = read_soon(&pids).split(' ').map(|pid| pid.parse().unwrap()).collect();
        for file in [pids, own, away] {
            fs::remove_file(file).unwrap();
        }
        (holder, family)
    }

    /// Starts the next holder, which tells who of these can still run; comes back when it waits.
    ///
    /// One that exits (flag 4) or has KILL pending is listed for a moment, and executes nothing any more.
    fn start_next(&self, family: &[i32]) -> Running {
        let pids = family.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
        let script = format!(
            "for pid in {pids}; do \
             if read -r _ _ state _ _ _ _ _ flags _ 2> /dev/null < /proc/$pid/stat && [ $((flags & 4)) = 0 ]; then \
                 killed=0; while read -r key mask; do case $key in SigPnd:|ShdPnd:) \
                     killed=$((killed | 0x$mask & 0x100));; \
                 esac; done 2> /dev/null < /proc/$pid/status; \
                 [ $killed != 0 ] || found=\"$found $pid($state)\"; \
             fi; done; echo \"alive:$found\" > {}",
            self.file("seen").display()
        );
        let next = Running::of(self.leasehold(&["run", &self.name(), "-c", &script]));
        // A busy server may take longer to accept one more connection than commands that only look wait by default.
        let name = self.name();
        let inspect = ["--connect-timeout", "30s", "inspect", "--json", &name];
        let waiters = || Ran::of(self.leasehold(&inspect)).json()["waiters"].clone();
        until("the next one waits", || waiters().as_array().is_some_and(|waiters| waiters.len() == 1));
        next
    }

    fn suffer(&self, fate: Fate) {
        let (mut holder, family) = self.start_family();
        // The command dies with its supervisor. What it started has nobody left to kill it, and no lease to keep.
        let doomed = if fate == Fate::BothKilled && self.life == Life::Ttl { &family[..1] } else { &family[..] };
        let mut next = self.start_next(doomed);
        let supervisor = parent_of(family[0]);
        assert!(family.len() == 5 && family.iter().all(|pid| is_alive(*pid)), "{family:?}");
        match fate {
            Fate::RunKilled => holder.signal(Signal::KILL),
            Fate::SupervisorKilled => kill(supervisor),
            Fate::RunStopped => holder.signal(Signal::STOP),
            Fate::BothKilled => {
                // A run that is stopped cannot act on the death of its supervisor. The other way round the kernel would
                // wake the supervisor, whose group is orphaned when its run dies.
                holder.signal(Signal::STOP);
                until("the run is stopped", || state_of(holder.pid()) == Some('T'));
                kill(supervisor);
                holder.signal(Signal::KILL);
                until("the command is dead", || !is_alive(family[0]));
                if self.life == Life::Process {
                    // A waiter finds the end of a connection within about 0.3 s.
                    thread::sleep(Duration::from_secs(1));
                    assert!(family[1..].iter().all(|pid| is_alive(*pid)), "nobody is left to kill them");
                    assert!(!self.file("seen").exists(), "those who live on keep the lock");
                    family[1..].iter().copied().for_each(kill);
                }
            }
        }
        assert_eq!(read_soon(&self.file("seen")), "alive:", "{fate:?} of {family:?}");
        assert_eq!(next.code(), 0);
        if fate == Fate::RunStopped {
            holder.signal(Signal::CONT);
            assert_eq!(holder.code(), 121);
        }
        if fate == Fate::BothKilled && self.life == Life::Ttl {
            family[1..].iter().copied().for_each(kill);
        }
        holder.wait();
        fs::remove_file(self.file("seen")).unwrap();
    }
}

/// Has families suffer every fate, several at a time.
fn try_all(sandbox: &Sandbox, url: &str, life: Life) {
    let times: usize = env::var("LEASEHOLD_KILLS").map_or(3, |times| times.parse().unwrap());
    let lanes = times.min(5);
    let fates = [Fate::RunKilled, Fate::SupervisorKilled, Fate::RunStopped, Fate::BothKilled];
    // A stopped holder keeps a lease that has no clock.
    let fates = || fates.into_iter().filter(|fate| life == Life::Ttl || *fate != Fate::RunStopped);
    thread::scope(|scope| {
        for number in 0..lanes {
            let lane = Lane { number, sandbox, url, life };
            scope.spawn(move || {
                for _ in (number..times).step_by(lanes) {
                    fates().for_each(|fate| lane.suffer(fate));
                }
            });
        }
    });
    println!("{times} families suffered each of {:?}: nobody outlived the lock", fates().collect::<Vec<_>>());
}

#[test]
fn no_family_outlives_its_lock_on_a_directory() {
    let sandbox = Sandbox::new();
    try_all(&sandbox, &sandbox.url(), Life::Process);
}

#[test]
fn no_family_outlives_its_lock_on_redis() {
    let (sandbox, server) = (Sandbox::new(), Server::start());
    try_all(&sandbox, &server.url(), Life::Ttl);
}

#[test]
fn no_family_outlives_its_lock_on_postgres() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    server.psql("create database family");
    let url = server.url_of("postgres", "family");
    Ran::of(on(&sandbox, &url, &["init"])).assert_code(0);
    try_all(&sandbox, &url, Life::Ttl);
}

#[test]
fn no_family_outlives_its_lock_by_connection() {
    let (sandbox, server) = (Sandbox::new(), Postgres::shared());
    server.psql("create database family_by_connection");
    let url = format!("{}?liveness=connection", server.url_of("postgres", "family_by_connection"));
    Ran::of(on(&sandbox, &url, &["init"])).assert_code(0);
    try_all(&sandbox, &url, Life::Process);
}
