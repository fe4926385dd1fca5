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

/// How often to look whether who was killed is dead, and the time between two looks.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);

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

/// Whoever in the group still runs; the dead that nobody has buried do not count.
pub(crate) fn members(group: Pid) -> Vec<Straggler> {
    if process::test_kill_process_group(group) == Err(Errno::SRCH) {
        return Vec::new();
    }
    let among = |processes: Vec<Process>| -> Vec<Straggler> {
        let members = processes.into_iter().filter(|process| process.group == group.as_raw_pid() && process.runs);
        members.map(|process| Straggler { pid: process.pid, name: process.name }).collect()
    };
    let found = among(descendants(process::getpid()));
    if found.is_empty() { among(processes()) } else { found }
}

/// Sends TERM to everybody who descends from this process.
pub(crate) fn ask_descendants(root: Pid) {
    for process in living_descendants(root) {
        if let Some(pid) = Pid::from_raw(process.pid) {
            send(KillMode::Process, pid, Signal::TERM);
        }
    }
}

/// Kills everybody who descends from this process; returns those whom we may not signal.
///
/// Someone born or orphaned meanwhile may be missed: whoever wants them all dead calls again until none is left.
pub(crate) fn kill_descendants(root: Pid) -> Vec<Straggler> {
    living_descendants(root).filter_map(|process| kill_named(process.pid, process.name)).collect()
}

/// Kills everybody who descends from us, and comes back when they are dead, or when it cannot.
pub(crate) fn end_descendants() {
    for _ in 0..TRIES {
        let own = process::getpid();
        if living_descendants(own).next().is_none() {
            return;
        }
        kill_descendants(own);
        while let Ok(Some(_)) = process::wait(process::WaitOptions::NOHANG) {}
        thread::sleep(PAUSE);
    }
}

/// Kills whoever is in the group; returns those whom we may not signal.
pub(crate) fn kill_members(group: Pid) -> Vec<Straggler> {
    members(group).into_iter().filter_map(|member| kill_named(member.pid, member.name)).collect()
}

/// Kills a process; returns it if we may not.
pub(crate) fn kill_one(pid: Pid) -> Option<Straggler> {
    let process = look_at(pid.as_raw_pid())?;
    kill_named(process.pid, process.name)
}

fn kill_named(pid: i32, name: String) -> Option<Straggler> {
    let killed = process::kill_process(Pid::from_raw(pid)?, process::Signal::KILL);
    (killed == Err(Errno::PERM)).then_some(Straggler { pid, name })
}

/// Whether a process is stopped, runs, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs, or could.
    Running,
    /// It waits for CONT.
    Stopped,
    /// It has ended.
    Gone,
}

/// How a process is.
pub(crate) fn state(pid: Pid) -> State {
    match look_at(pid.as_raw_pid()) {
        Some(process) if process.is_stopped => State::Stopped,
        Some(process) if process.runs => State::Running,
        _ => State::Gone,
    }
}

fn look_at(pid: i32) -> Option<Process> {
    // The kernel cuts names wherever their length ends, in the middle of a character, too.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(&String::from_utf8_lossy(&stat))
}

fn living_descendants(root: Pid) -> impl Iterator<Item = Process> {
    descendants(root).into_iter().filter(|process| process.runs)
}

fn descendants(root: Pid) -> Vec<Process> {
    let mut found = Vec::new();
    let Some(mut unseen) = children(root.as_raw_pid()) else { return descendants_among(root, processes()) };
    while let Some(pid) = unseen.pop() {
        unseen.extend(children(pid).unwrap_or_default());
        found.extend(look_at(pid));
    }
    found
}

/// The children of a process; `None` if it is gone, or on kernels that do not tell.
fn children(pid: i32) -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let told = fs::read_to_string(task.path().join("children")).ok()?;
        children.extend(told.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Some(children)
}

/// The same from the whole process table: slower, and known to every kernel.
fn descendants_among(root: Pid, processes: Vec<Process>) -> Vec<Process> {
    let mut family = HashSet::from([root.as_raw_pid()]);
    let mut rest = processes;
    let mut found = Vec::new();
    loop {
        let (members, others): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|process| family.contains(&process.parent));
        if members.is_empty() {
            return found;
        }
        family.extend(members.iter().map(|member| member.pid));
        found.extend(members);
        rest = others;
    }
}

/// Whether nobody could wake us once we are stopped: no shell watches over our group.
///
/// The kernel calls such a group orphaned and does not stop it on Ctrl-Z either.
pub(crate) fn is_orphaned() -> bool {
    let processes: HashMap<i32, Process> = processes().into_iter().map(|process| (process.pid, process)).collect();
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
struct Process {
    pid: i32,
    name: String,
    parent: i32,
    group: i32,
    session: i32,
    runs: bool,
    is_stopped: bool,
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| look_at(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// `pid (name) state ppid pgrp session …`; the name may hold spaces and parentheses.
fn parse(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(' ')?;
    let end = rest.rfind(')')?;
    let mut fields = rest[end + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    // A process whose first thread has ended looks dead while others run on.
    let threads: u32 = fields.nth(13).and_then(|threads| threads.parse().ok()).unwrap_or(1);
    Some(Process {
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
        let family = |found: Vec<Process>| -> HashSet<i32> {
            let grandchildren = found.iter().filter(|process| process.parent == pid).map(|process| process.pid);
            grandchildren.chain(found.iter().any(|process| process.pid == pid).then_some(pid)).collect()
        };
        let own = process::getpid();
        while family(descendants(own)).len() < 2 {
            thread::yield_now();
        }
        let quick = family(descendants(own));
        assert_eq!(quick, family(descendants_among(own, processes())));
        for pid in quick {
            send(KillMode::Process, Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_found_whatever_bytes_its_name_has() {
        use std::os::unix::{ffi::OsStrExt, process::CommandExt};
        let folder = std::env::temp_dir().join(format!("leasehold-supervise-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join(std::ffi::OsStr::from_bytes(b"sl\xffeep"));
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("5").process_group(0).spawn().unwrap();
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let found = members(group);
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_group_is_empty_once_its_last_member_has_ended() {
        use std::os::unix::process::CommandExt;
        let mut child = std::process::Command::new("sleep").arg("5").process_group(0).spawn().unwrap();
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        assert_eq!(members(group).len(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(members(group), []);
    }
}
