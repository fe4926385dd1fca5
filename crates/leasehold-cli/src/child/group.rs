//! Process groups and trees, seen through /proc: who is left, and a signal for all of them.

use std::{collections::HashMap, fs};

use rustix::{
    io::Errno,
    process::{self, Pid},
};

use super::{KillMode, signal::Signal};

/// Sends the signal to the child, or to its whole group.
pub(crate) fn send(mode: KillMode, pid: Pid, signal: Signal) {
    let _nobody_left = match mode {
        KillMode::Group => process::kill_process_group(pid, signal.raw()),
        KillMode::Process => process::kill_process(pid, signal.raw()),
    };
}

/// Whether anybody in the group still runs; the dead that nobody has buried do not count.
pub(crate) fn is_alive(group: Pid) -> bool {
    if process::test_kill_process_group(group) == Err(Errno::SRCH) {
        return false;
    }
    processes().iter().any(|process| process.group == group.as_raw_pid() && process.runs)
}

/// Everybody who descends from us and still runs, in no order.
pub(crate) fn descendants() -> Vec<Pid> {
    let processes = processes();
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in &processes {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut unseen = vec![process::getpid().as_raw_pid()];
    while let Some(parent) = unseen.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            unseen.push(child.pid);
            if child.runs {
                found.extend(Pid::from_raw(child.pid));
            }
        }
    }
    found
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
    parent: i32,
    group: i32,
    session: i32,
    runs: bool,
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(|c: char| c.is_ascii_digit())))
        .filter_map(|entry| parse(&fs::read_to_string(entry.path().join("stat")).ok()?))
        .collect()
}

/// `pid (name) state ppid pgrp session …`; the name may hold spaces and parentheses.
fn parse(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(' ')?;
    let mut fields = rest.get(rest.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    Some(Process {
        pid: pid.parse().ok()?,
        parent: number()?,
        group: number()?,
        session: number()?,
        runs: !matches!(state, "Z" | "X" | "x"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_process_table_is_read_whatever_the_name() {
        let process = parse("42 (a) b (c) S 7 8 9 0 -1 4194560 0").unwrap();
        assert_eq!((process.pid, process.parent, process.group, process.session), (42, 7, 8, 9));
        assert!(process.runs && !parse("42 (x) Z 7 8 9").unwrap().runs);
        assert!(parse("").is_none() && parse("42 (x").is_none());
    }

    #[test]
    fn our_own_group_is_alive() {
        assert!(is_alive(process::getpgrp()));
    }
}
