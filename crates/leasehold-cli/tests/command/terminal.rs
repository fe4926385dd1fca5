//! On a terminal: the keys reach the command, Ctrl-Z stops the job, waits explain themselves.

use std::{
    fs::File,
    io::{Read, Write},
    process::Stdio,
    sync::{Arc, Mutex},
    thread,
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, tcgetattr},
};

use crate::sandbox::{Running, Sandbox, read_soon, state_of, until};

const EXE: &str = env!("CARGO_BIN_EXE_leasehold");

/// A terminal of its own, and somebody who types.
struct Terminal {
    keys: File,
    line: File,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn new() -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
        let line = File::options().read(true).write(true).open(name).unwrap();
        let keys = File::from(controller);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, shown) = (keys.try_clone().unwrap(), Arc::clone(&screen));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Ends with an error when the last one closes the line.
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                shown.lock().unwrap().extend_from_slice(&buffer[..read]);
            }
        });
        Self { keys, line, screen }
    }

    /// Starts a command that has this terminal for its own.
    fn start(&self, sandbox: &Sandbox, args: &[&str]) -> Running {
        let mut command = sandbox.command("setsid");
        command.args(["--ctty"]).args(args);
        command.env("LEASEHOLD_URL", sandbox.url()).env("TERM", "xterm").env("PS1", "$ ");
        let line = || Stdio::from(self.line.try_clone().unwrap());
        command.stdin(line()).stdout(line()).stderr(line());
        Running::of(command)
    }

    fn type_in(&self, keys: &str) {
        (&self.keys).write_all(keys.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits until the screen shows this, after what it showed before.
    fn sees(&self, words: &str) {
        let started = std::time::Instant::now();
        while !self.text().contains(words) {
            assert!(started.elapsed() < crate::sandbox::LIMIT, "{words:?} is not in {:?}", self.text());
            thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// A clean screen.
    fn wipe(&self) {
        self.screen.lock().unwrap().clear();
    }
}

#[test]
fn the_keys_reach_the_command() {
    let (sandbox, terminal) = (Sandbox::new(), Terminal::new());
    let mut running =
        terminal.start(&sandbox, &[EXE, "run", "x", "--", "sh", "-c", "read line; echo \"<$line>\"; exec cat"]);
    terminal.type_in("hello\r");
    terminal.sees("<hello>");
    terminal.type_in("\x03");
    assert_eq!(running.code(), 130, "Ctrl-C ended the command, and nothing else");
    assert_eq!(sandbox.holders("x"), 0);
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let (sandbox, terminal) = (Sandbox::new(), Terminal::new());
    let mut shell = terminal.start(&sandbox, &["bash", "--norc", "--noprofile", "--noediting", "-i"]);
    terminal.sees("$ ");
    terminal.type_in(&format!(
        "{EXE} run x -- sh -c 'echo be\"\"gun; read line; echo \"<$line>\"; read line; echo \"[$line]\"'\r"
    ));
    terminal.sees("begun");
    terminal.wipe();
    terminal.type_in("\x1a");
    terminal.sees("Stopped");
    terminal.sees("$ ");
    terminal.wipe();
    terminal.type_in(&format!("{EXE} run -n x -- true; echo code=$?\r"));
    terminal.sees("code=75");
    terminal.wipe();
    terminal.type_in("fg\r");
    terminal.sees("run x");
    terminal.type_in("one\r");
    terminal.sees("<one>");
    terminal.wipe();
    terminal.type_in("\x1a");
    terminal.sees("Stopped");
    terminal.type_in("fg\r");
    terminal.type_in("two\r");
    terminal.sees("[two]");
    terminal.wipe();
    terminal.type_in("echo code=$?; exit\r");
    terminal.sees("code=0");
    shell.wait();
}

#[test]
fn ctrl_z_stops_those_who_are_waited_for_and_fg_continues_them() {
    let (sandbox, terminal) = (Sandbox::new(), Terminal::new());
    let (pid, go) = (sandbox.path("pid"), sandbox.path("go"));
    let mut shell = terminal.start(&sandbox, &["bash", "--norc", "--noprofile", "--noediting", "-i"]);
    terminal.sees("$ ");
    let worker = format!("echo $$ > {}; while ! test -e {}; do sleep .05; done", pid.display(), go.display());
    terminal.type_in(&format!("{EXE} run --stragglers wait x -- sh -c 'sh -c \"${{0}}\" &' '{worker}'\r"));
    terminal.sees("the lock is kept until sh (");
    let worker: i32 = read_soon(&pid).parse().unwrap();
    for _ in 0..2 {
        terminal.wipe();
        terminal.type_in("\x1a");
        terminal.sees("Stopped");
        terminal.sees("$ ");
        // Or waiting in the kernel for a child of its own that was stopped on its way to exec.
        until("it is stopped", || matches!(state_of(worker), Some('T' | 'D')));
        terminal.wipe();
        terminal.type_in("fg\r");
        terminal.sees("run --stragglers");
        until("it goes on", || !matches!(state_of(worker), Some('T')));
    }
    std::fs::write(go, "").unwrap();
    terminal.wipe();
    terminal.type_in("echo code=$?\r");
    terminal.sees("code=0");
    terminal.wipe();
    let reads = "sleep .5; read line < /dev/tty; echo \"<$line>\"";
    terminal.type_in(&format!("{EXE} run --stragglers wait x -- sh -c 'sh -c \"${{0}}\" &' '{reads}'\r"));
    terminal.sees("the lock is kept until");
    terminal.type_in("hello\r");
    terminal.sees("<hello>");
    terminal.wipe();
    terminal.type_in("echo code=$?; exit\r");
    terminal.sees("code=0");
    shell.wait();
}

#[test]
fn a_pipeline_keeps_the_terminal_until_the_command_asks_for_it() {
    let (sandbox, terminal) = (Sandbox::new(), Terminal::new());
    let mut shell = terminal.start(&sandbox, &["bash", "--norc", "--noprofile", "--noediting", "-i"]);
    terminal.sees("$ ");
    // The end of the pipeline reads keys, as a pager does.
    terminal
        .type_in(&format!("{EXE} run x -- echo page | sh -c 'read page; read key < /dev/tty; echo \"$page:$key\"'\r"));
    terminal.type_in("q\r");
    terminal.sees("page:q");
    terminal.wipe();
    // The command itself reads keys, though its input is a pipe.
    terminal.type_in(&format!("echo in | {EXE} run x -- sh -c 'read in; read key < /dev/tty; echo \"$in:$key\"'\r"));
    terminal.type_in("k\r");
    terminal.sees("in:k");
    terminal.wipe();
    terminal.type_in("echo code=$?; exit\r");
    terminal.sees("code=0");
    shell.wait();
}

#[test]
fn a_wait_explains_itself() {
    let (sandbox, terminal) = (Sandbox::new(), Terminal::new());
    let holder = sandbox.hold("migrate");
    let mut waiter = terminal.start(&sandbox, &[EXE, "run", "-w", "10m", "migrate", "--", "true"]);
    terminal.sees("leasehold: waiting for migrate — held by ");
    terminal.sees(&format!(":{} \"/bin/sh\" for ", holder.pid()));
    terminal.sees("; giving up in 9m5");
    let drawn = |terminal: &Terminal| terminal.text().matches("\r\x1b[Kleasehold: waiting for migrate").count();
    until("the line is drawn again", || drawn(&terminal) >= 2);
    assert!(!terminal.text().contains('\n'), "{:?}", terminal.text());
    drop(holder);
    assert_eq!(waiter.code(), 0);
    terminal.sees("\r\x1b[Kleasehold: acquired migrate after ");
    terminal.sees("(fence ");
}

#[test]
fn ctrl_c_ends_a_wait() {
    let (sandbox, terminal) = (Sandbox::new(), Terminal::new());
    let _holder = sandbox.hold("x");
    let mut waiter = terminal.start(&sandbox, &[EXE, "run", "x", "--", "true"]);
    until("it waits", || sandbox.waiters("x") == 1);
    terminal.type_in("\x03");
    assert_eq!(waiter.code(), 130);
    assert_eq!(sandbox.waiters("x"), 0);
}

#[test]
fn an_eviction_is_confirmed_by_typing_the_name() {
    let (sandbox, terminal) = (Sandbox::new(), Terminal::new());
    let mut holder = sandbox.hold("x");
    let fence = sandbox.fence("x");
    let evict = || terminal.start(&sandbox, &[EXE, "evict", "x", "--fence", &fence, "--reason", "host gone"]);
    let mut refused = evict();
    terminal.sees("type the name of the lock");
    terminal.type_in("y\r");
    assert_eq!(refused.code(), 1);
    terminal.sees("nothing was changed");
    assert_eq!(sandbox.holders("x"), 1);
    terminal.wipe();
    let mut confirmed = evict();
    terminal.sees("type the name of the lock");
    terminal.type_in("x\r");
    assert_eq!(confirmed.code(), 0);
    assert_eq!(holder.code(), 121);
}

#[test]
fn a_command_that_is_killed_leaves_the_terminal_usable() {
    let (sandbox, terminal) = (Sandbox::new(), Terminal::new());
    let echoes = || tcgetattr(&terminal.line).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON);
    assert!(echoes());
    let mut running = terminal.start(&sandbox, &[EXE, "run", "x", "--", "sh", "-c", "stty raw -echo; kill -9 $$"]);
    assert_eq!(running.code(), 137);
    assert!(echoes());
    let mut kept = terminal.start(&sandbox, &[EXE, "run", "x", "--", "stty", "-echo"]);
    assert_eq!(kept.code(), 0);
    assert!(!echoes(), "what a command does on purpose stays");
}
