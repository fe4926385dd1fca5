//! Process groups and trees, seen through /proc: who is left, and a signal for all of them.

use std::{
    collections::{HashMap, HashSet},
    fs, thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{self, Pid},
};

use crate::{KillMode, signal::Signal};

/// Attempts, and interval, to check that killed processes are gone.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);
/// How often at most to look for descendants while some of them end.
const MAX_LOOKS: u32 = 10;

/// Sends the signal to the child, or to its whole group.
pub(crate) fn send(mode: KillMode, pid: Pid, signal: Signal) {
    let _nobody_left = match mode {
        KillMode::Group => process::kill_process_group(pid, signal.raw()),
        KillMode::Process => process::kill_process(pid, signal.raw()),
    };
}

/// A process that outlives the command that started it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// Its process id.
    pub pid: i32,
    /// Its name, as `ps -o comm` shows it.
    pub name: String,
}

/// Running descendants of `root`, without zombies.
///
/// May miss processes forked meanwhile; repeat until empty.
pub(crate) fn living(root: Pid) -> Vec<ProcessRow> {
    descendants(root).into_iter().filter(|process| process.runs).collect()
}

/// Whoever in [`living`] has not left our session, as a daemon does: the group of the child, and groups of their own
/// (`timeout`, `set -m`).
pub(crate) fn living_in_session(root: Pid) -> Vec<ProcessRow> {
    let session = look_at(process::getpid().as_raw_pid()).map(|own| own.session);
    living(root).into_iter().filter(|process| Some(process.session) == session).collect()
}

/// Sends the signal to each of these.
pub(crate) fn send_each<'a>(processes: impl IntoIterator<Item = &'a ProcessRow>, signal: Signal) {
    for pid in processes.into_iter().filter_map(|process| Pid::from_raw(process.pid)) {
        send(KillMode::Process, pid, signal);
    }
}

/// Kills each of these; returns those whom we may not signal.
pub(crate) fn kill_each(processes: Vec<ProcessRow>) -> Vec<Straggler> {
    processes.into_iter().filter_map(kill_one).collect()
}

/// The processes that descend from us.
pub(crate) fn own_descendants() -> HashSet<i32> {
    descendants(process::getpid()).into_iter().map(|process| process.pid).collect()
}

/// Kills our children, save those that are spared, with all who descend from them; comes back when they are dead, or
/// when it cannot.
pub(crate) fn end_children(is_spared: impl Fn(i32) -> bool) {
    let own = process::getpid();
    for _ in 0..TRIES {
        let mut ours = descendants(own);
        ours.retain(|process| process.parent == own.as_raw_pid() && !is_spared(process.pid));
        if ours.is_empty() {
            return;
        }
        for (pid, child) in ours.into_iter().filter_map(|child| Some((Pid::from_raw(child.pid)?, child))) {
            kill_each(living(pid));
            kill_each(vec![child]);
            let _not_dead_yet = process::waitpid(Some(pid), process::WaitOptions::NOHANG);
        }
        thread::sleep(PAUSE);
    }
}

/// Kills the child; returns it if we may not.
pub(crate) fn kill_child(pid: Pid) -> Option<Straggler> {
    look_at(pid.as_raw_pid()).and_then(kill_one)
}

fn kill_one(process: ProcessRow) -> Option<Straggler> {
    let killed = process::kill_process(Pid::from_raw(process.pid)?, process::Signal::KILL);
    (killed == Err(Errno::PERM)).then(|| process.into())
}

/// Whether a process is stopped, runs, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessStatus {
    /// It runs, or could.
    Running,
    /// It waits for CONT.
    Stopped,
    /// It has ended.
    Gone,
}

/// How a process is.
pub(crate) fn state(pid: Pid) -> ProcessStatus {
    match look_at(pid.as_raw_pid()) {
        Some(process) if process.is_stopped => ProcessStatus::Stopped,
        Some(process) if process.runs => ProcessStatus::Running,
        _ => ProcessStatus::Gone,
    }
}

fn look_at(pid: i32) -> Option<ProcessRow> {
    // The kernel cuts names wherever their length ends, in the middle of a character, too.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(&String::from_utf8_lossy(&stat))
}

/// Everybody who descends from `root`, as long as nobody ends while we look:
///
/// 1. We read that A is a child of `root`.
/// 2. A ends, and its child B becomes a child of `root`.
/// 3. We read the children of A: there are none, and B is missed.
///
/// So we look again, unless A was a zombie before the last look. One that was reaped meanwhile may have hidden its
/// sibling from the kernel's list, too.
fn descendants(root: Pid) -> Vec<ProcessRow> {
    let mut zombies = HashSet::new();
    let mut found = Vec::new();
    for _ in 0..MAX_LOOKS {
        let (seen, is_steady) = descendants_now(root, &mut zombies);
        found = seen;
        if is_steady {
            break;
        }
    }
    found
}

/// What one look finds, and whether nobody ended meanwhile, save the zombies that were known before.
fn descendants_now(root: Pid, zombies: &mut HashSet<i32>) -> (Vec<ProcessRow>, bool) {
    let (mut found, mut is_steady) = (Vec::new(), true);
    let Some(mut unseen) = children(root.as_raw_pid()) else { return (descendants_among(root, processes()), true) };
    while let Some(pid) = unseen.pop() {
        unseen.extend(children(pid).unwrap_or_default());
        match look_at(pid) {
            Some(process) => {
                is_steady &= process.runs || !zombies.insert(pid);
                found.push(process);
            }
            None => is_steady = false,
        }
    }
    (found, is_steady)
}

/// The children of a process; `None` if it is gone, or on kernels that do not tell.
fn children(pid: i32) -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let text = fs::read_to_string(task.path().join("children")).ok()?;
        children.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Some(children)
}

/// The same from the whole process table: slower, and known to every kernel.
fn descendants_among(root: Pid, processes: Vec<ProcessRow>) -> Vec<ProcessRow> {
    let mut tree = HashSet::from([root.as_raw_pid()]);
    let mut rest = processes;
    let mut found = Vec::new();
    loop {
        let (members, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|process| tree.contains(&process.parent));
        if members.is_empty() {
            return found;
        }
        tree.extend(members.iter().map(|member| member.pid));
        found.extend(members);
        rest = others;
    }
}

/// Whether nobody could wake us once we are stopped: no shell watches over our group.
///
/// The kernel calls such a group orphaned and does not stop it on Ctrl-Z either.
pub(crate) fn is_orphaned() -> bool {
    let processes: HashMap<i32, ProcessRow> = processes().into_iter().map(|process| (process.pid, process)).collect();
    let Some(own) = processes.get(&process::getpid().as_raw_pid()) else {
        return true;
    };
    let mut at = own;
    while let Some(parent) = processes.get(&at.parent) {
        if parent.group != own.group {
            return parent.session != own.session;
        }
        at = parent;
    }
    true
}

/// One line of the process table.
#[derive(Debug)]
pub(crate) struct ProcessRow {
    pid: i32,
    name: String,
    parent: i32,
    pub(crate) group: i32,
    session: i32,
    runs: bool,
    pub(crate) is_stopped: bool,
}

impl From<ProcessRow> for Straggler {
    fn from(process: ProcessRow) -> Self {
        Self { pid: process.pid, name: process.name }
    }
}

fn processes() -> Vec<ProcessRow> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| look_at(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// `pid (name) state ppid pgrp session …`; the name may hold spaces and parentheses.
fn parse(stat: &str) -> Option<ProcessRow> {
    let (pid, rest) = stat.split_once(' ')?;
    let end = rest.rfind(')')?;
    let mut fields = rest[end + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    // A process whose first thread has ended looks dead while others run on.
    let threads: u32 = fields.nth(13).and_then(|threads| threads.parse().ok()).unwrap_or(1);
    Some(ProcessRow {
        pid: pid.parse().ok()?,
        name: rest[..end].trim_start_matches('(').to_owned(),
        parent,
        group,
        session,
        runs: !matches!(state, "Z" | "X" | "x") || threads > 1,
        is_stopped: matches!(state, "T" | "t"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_process_table_is_read_whatever_the_name() {
        let process = parse("42 (a) b (c) S 7 8 9 0 -1 4194560 0").unwrap();
        assert_eq!(process.name, "a) b (c");
        assert_eq!((process.pid, process.parent, process.group, process.session), (42, 7, 8, 9));
        assert!(process.runs && !parse("42 (x) Z 7 8 9").unwrap().runs);
        let with_threads = |count| format!("42 (x) Z 7 8 9 0 -1 4 0 0 0 0 0 0 0 0 20 0 {count} 0");
        assert!(parse(&with_threads(2)).unwrap().runs && !parse(&with_threads(1)).unwrap().runs);
        assert!(parse("").is_none() && parse("42 (x").is_none());
    }

    #[test]
    fn descendants_are_found_both_ways() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 5 & wait"]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let tree = |found: Vec<ProcessRow>| -> HashSet<i32> {
            let grandchildren = found.iter().filter(|process| process.parent == pid).map(|process| process.pid);
            grandchildren.chain(found.iter().any(|process| process.pid == pid).then_some(pid)).collect()
        };
        let own = process::getpid();
        while tree(descendants(own)).len() < 2 {
            thread::yield_now();
        }
        let quick = tree(descendants(own));
        assert_eq!(quick, tree(descendants_among(own, processes())));
        for pid in quick {
            send(KillMode::Process, Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_child_that_is_spared_lives_and_another_ends_with_all_it_started() {
        let start = |script: &str| std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let (mut spared, mut ended) = (start("exec sleep 30"), start("sleep 30 & wait"));
        let pid = i32::try_from(ended.id()).unwrap();
        let below = || living(Pid::from_raw(pid).unwrap());
        while below().is_empty() {
            thread::yield_now();
        }
        let grandchild = below()[0].pid;
        // Other tests have children meanwhile.
        end_children(|other| other != pid);
        assert!(spared.try_wait().unwrap().is_none() && look_at(pid).is_none());
        while look_at(grandchild).is_some_and(|process| process.runs) {
            thread::yield_now();
        }
        spared.kill().unwrap();
        spared.wait().unwrap();
        assert!(ended.wait().is_err(), "it was reaped");
    }

    #[test]
    fn a_process_is_found_whatever_bytes_its_name_has() {
        use std::os::unix::ffi::OsStrExt;
        let folder = std::env::temp_dir().join(format!("leasehold-supervise-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join(std::ffi::OsStr::from_bytes(b"sl\xffeep"));
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("5").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let is_found = living(process::getpid()).iter().any(|process| process.pid == pid);
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(is_found);
    }

    #[test]
    fn a_group_of_its_own_stays_in_the_session_and_a_daemon_leaves_it() {
        use std::os::unix::process::CommandExt;
        let mut group = std::process::Command::new("sleep").arg("5").process_group(0).spawn().unwrap();
        let mut daemon = std::process::Command::new("setsid").args(["sleep", "5"]).spawn().unwrap();
        let (in_group, away) = (i32::try_from(group.id()).unwrap(), i32::try_from(daemon.id()).unwrap());
        let own = process::getpid();
        let has = |found: Vec<ProcessRow>, pid: i32| found.iter().any(|process| process.pid == pid);
        while has(living_in_session(own), away) {
            thread::yield_now();
        }
        assert!(has(living_in_session(own), in_group) && has(living(own), in_group) && has(living(own), away));
        for child in [&mut group, &mut daemon] {
            child.kill().unwrap();
        }
        while has(living(own), in_group) || has(living(own), away) {
            thread::yield_now();
        }
        for child in [&mut group, &mut daemon] {
            child.wait().unwrap();
        }
    }
}
