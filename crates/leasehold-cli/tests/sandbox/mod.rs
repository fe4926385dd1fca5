//! A private directory for one test, the command run on its locks, and nothing left behind.

#![allow(dead_code, reason = "shared by test binaries that each use a part")]

pub(crate) mod on_any_backend;

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// No wait of a test takes longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// What is done at once takes less, also on a busy machine. What waits for something else takes longer: a minute
/// where word was lost, 30 s for another's lease to run out.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(5);

/// The variable by which every process of a test is known.
const MARK: &str = "LEASEHOLD_TEST_PLACE";

/// A private directory. Dropping it ends every process that was started on it.
pub(crate) struct Sandbox {
    dir: TempDir,
    /// The backend, if it is not a directory in here.
    server: Option<String>,
}

impl Sandbox {
    /// With its locks in a directory of its own.
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("leasehold-cli-").tempdir().unwrap(), server: None }
    }

    /// With its locks on a server.
    pub(crate) fn on(url: &str) -> Self {
        let mut sandbox = Self::new();
        sandbox.server = Some(url.to_owned());
        sandbox
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        self.server.clone().unwrap_or_else(|| format!("file://{}", self.path("locks").display()))
    }

    /// A command as it is printed for people to paste.
    pub(crate) fn to_paste(&self, words: &str) -> String {
        let url = self.url();
        if url.contains('?') { format!("leasehold -b '{url}' {words}") } else { format!("leasehold -b {url} {words}") }
    }

    /// The command with these arguments, on this sandbox, without any setting of the one who runs the tests.
    pub(crate) fn leasehold(&self, args: &[&str]) -> Command {
        let mut command = self.bare(args);
        command.env("LEASEHOLD_URL", self.url());
        command
    }

    /// The same, with no backend said.
    pub(crate) fn bare(&self, args: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_leasehold"));
        command.args(args);
        command
    }

    /// Any program on this sandbox, with every signal at its default.
    ///
    /// A process inherits the signals that its parent ignores: INT and QUIT where the tests are a background job of
    /// a script, HUP under `nohup`. `leasehold` leaves these ignored, as it should, and could not be tested.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("env");
        command.args(["--default-signal", "--"]).arg(program);
        for (name, _) in std::env::vars_os() {
            if ["LEASEHOLD_", "PG", "REDIS"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command
            .env(MARK, self.dir.path())
            .env("PID_FILE", self.path("pid"))
            .env("HOME", self.path("home"))
            .env("LEASEHOLD_MACHINE_DIR", self.path("machine"))
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_STATE_HOME")
            .env_remove("NO_COLOR")
            .env_remove("CLICOLOR_FORCE")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::null());
        command
    }

    /// Runs the command to its end, within the limit.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.leasehold(args))
    }

    /// Starts the command and lets it run.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::of(self.leasehold(args))
    }

    /// Starts the command while its server is away. Returns once it waits for it, with the file of its standard error.
    pub(crate) fn start_without_server(&self, url: &str, args: &[&str]) -> (Running, PathBuf) {
        let errors = self.path("errors");
        let mut command = self.bare(&[&["--connect-timeout", "1m"], args].concat());
        command.env("LEASEHOLD_URL", url).stdout(Stdio::piped()).stderr(fs::File::create(&errors).unwrap());
        let running = Running::of(command);
        let words = format!("waiting for {}://", url.split(':').next().unwrap());
        until("it says what it waits for", || fs::read_to_string(&errors).unwrap().contains(&words));
        (running, errors)
    }

    /// Starts a script under the lock `x`, and returns the process id that it writes to `$PID_FILE`.
    pub(crate) fn start_script(&self, options: &[&str], script: &str) -> (Running, i32) {
        let running = self.start(&[&["run"], options, &["x", "-c", script]].concat());
        (running, self.told_pid())
    }

    /// The same, and waits for its end.
    pub(crate) fn run_script(&self, options: &[&str], script: &str) -> (Ran, i32) {
        let ran = self.run(&[&["run"], options, &["x", "-c", script]].concat());
        (ran, self.told_pid())
    }

    /// Waits until a process has written an id to `$PID_FILE`.
    pub(crate) fn told_pid(&self) -> i32 {
        read_soon(&self.path("pid")).parse().unwrap()
    }

    /// Starts a holder of the lock and waits until its command runs.
    pub(crate) fn hold(&self, name: &str) -> Running {
        let ready = self.path(&format!("held-{name}"));
        let script = format!("touch {}; exec sleep 600", ready.display());
        let running = self.start(&["run", name, "-c", &script]);
        until("the holder runs", || ready.exists());
        fs::remove_file(ready).unwrap();
        running
    }

    /// Starts a script on any backend that takes `x` for itself as told, then does the rest; comes back when it has it.
    pub(crate) fn tied(&self, url: &str, acquire: &str, rest: &str) -> Running {
        let exe = env!("CARGO_BIN_EXE_leasehold");
        let lease = self.path("lease");
        let text = format!(
            "lease=$({exe} acquire x --while-pid $$ {acquire}) || exit 9; echo \"$lease\" > {}; {rest}",
            lease.display()
        );
        let mut command = self.command("sh");
        command.args(["-c", &text]).env("LEASEHOLD_URL", url);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = Running::of(command);
        assert!(read_soon(&lease).starts_with("lh2_"));
        fs::remove_file(lease).unwrap();
        running
    }

    /// The background process that keeps a lease for another (`acquire --while-pid`).
    pub(crate) fn keeper(&self) -> Option<i32> {
        let is_keeper = |pid: &i32| {
            let environ = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.contains("\0LEASEHOLD_KEEPER=")
        };
        self.processes().into_iter().find(is_keeper)
    }

    /// The one lock of this name as JSON.
    pub(crate) fn inspect(&self, name: &str) -> Value {
        let ran = self.run(&["inspect", "--json", name]);
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// What `history` prints with these arguments, newest first, as JSON.
    pub(crate) fn history(&self, args: &[&str]) -> Vec<Value> {
        let ran = self.run(&[&["history", "--json"], args].concat());
        ran.assert_code(0);
        json_lines(&ran.stdout)
    }

    pub(crate) fn holders(&self, name: &str) -> usize {
        self.inspect(name)["holders"].as_array().map_or(0, Vec::len)
    }

    pub(crate) fn waiters(&self, name: &str) -> usize {
        self.inspect(name)["waiters"].as_array().map_or(0, Vec::len)
    }

    pub(crate) fn fence(&self, name: &str) -> String {
        self.inspect(name)["fence"].to_string()
    }

    /// What makes a process one of this sandbox.
    pub(crate) fn mark(&self) -> (OsString, OsString) {
        (MARK.into(), self.dir.path().into())
    }

    /// Everything that still runs on this sandbox.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.dir.path().display()).into_bytes();
        let own = std::process::id().to_string();
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && *name != own)
            .filter(|pid| is_alive(pid.parse().unwrap()))
            .filter(|pid| {
                let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                // Or of a sandbox within this one.
                environ.split(|byte| *byte == 0).any(|variable| variable.starts_with(&mark))
            })
            .map(|pid| pid.parse().unwrap())
            .collect()
    }
}

impl Sandbox {
    /// Fails if anything that was started here still runs.
    ///
    /// A supervisor that was dismissed is on its way out, and may be a moment later than the one who dismissed it.
    #[track_caller]
    pub(crate) fn assert_deserted(&self) {
        let is_supervisor = |pid: &i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.starts_with(b"leasehold\0") || words.is_empty()
        };
        let others: Vec<i32> = self.processes().into_iter().filter(|pid| !is_supervisor(pid)).collect();
        assert!(others.is_empty(), "{others:?} still run");
        until("the supervisor leaves", || self.processes().is_empty());
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        for _ in 0..100 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            left.into_iter().for_each(kill);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The values of a text that has one in each line.
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The name of the lock and what happened to it, of a line of `watch` or `history`.
pub(crate) fn lock_and_event(line: &Value) -> String {
    format!("{} {}", line["lock"].as_str().unwrap(), line["event"].as_str().unwrap())
}

/// A command that ran to its end.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Ran {
    pub(crate) fn of(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::of(command).finish()
    }

    /// The exit code; a death by signal is a failure of the test.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("died: {self:?}"))
    }

    pub(crate) fn assert_code(&self, code: i32) {
        assert_eq!(self.code(), code, "{self:?}");
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A command that runs; killed when dropped.
pub(crate) struct Running {
    child: Child,
    started: Instant,
    ended: Option<ExitStatus>,
}

impl Running {
    pub(crate) fn of(mut command: Command) -> Self {
        let started = Instant::now();
        Self { child: command.spawn().unwrap(), started, ended: None }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.ended.is_none(), "the process was reaped");
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap();
        }
        self.ended.is_some()
    }

    /// Waits for its end, within the limit.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("the command ends", || self.has_ended());
        self.ended.unwrap()
    }

    pub(crate) fn code(&mut self) -> i32 {
        let status = self.wait();
        status.code().unwrap_or_else(|| panic!("{status}"))
    }

    /// Waits for its end and takes what it wrote.
    pub(crate) fn finish(self) -> Ran {
        self.finish_within(LIMIT)
    }

    /// The same, within a limit of its own.
    pub(crate) fn finish_within(mut self, limit: Duration) -> Ran {
        let read = |pipe: Option<Box<dyn Read + Send>>| {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
                String::from_utf8_lossy(&bytes).into_owned()
            })
        };
        let stdout = read(self.child.stdout.take().map(|pipe| Box::new(pipe) as _));
        let stderr = read(self.child.stderr.take().map(|pipe| Box::new(pipe) as _));
        until_within(limit, "the command ends", || self.has_ended());
        let status = self.wait();
        let took = self.started.elapsed();
        Ran { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap(), took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ended_meanwhile = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}

/// Waits until it is so, within the limit.
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(LIMIT, what, is_so);
}

fn until_within(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the file is there, and reads it.
pub(crate) fn read_soon(path: &Path) -> String {
    until(&format!("{} is written", path.display()), || {
        fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n'))
    });
    fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Whether the process runs; a zombie does not.
pub(crate) fn is_alive(pid: i32) -> bool {
    state_of(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The state of a process: `R`, `S`, `T`, `Z`.
pub(crate) fn state_of(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.get(stat.rfind(')')? + 2..)?.chars().next()
}

/// The parent of a process.
pub(crate) fn parent_of(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(1).unwrap().parse().unwrap()
}

/// How often the threads of a process were put on a processor so far.
pub(crate) fn switches(pid: i32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("status")).ok())
        .flat_map(|status| {
            let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
            counts.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).collect::<Vec<_>>()
        })
        .sum()
}

/// Whether the tests run as root, who can become another user.
pub(crate) fn is_root() -> bool {
    geteuid().is_root()
}

/// Says that a test is skipped because this machine lacks what it needs.
///
/// Root has it, or can install it: where changes are checked as root, that is a failure.
pub(crate) fn skip(needs: &str) {
    let is_checked = std::env::var_os("CI").is_some() && is_root();
    assert!(!is_checked, "the test needs {needs}");
    eprintln!("skipped: the test needs {needs}");
}

pub(crate) fn kill(pid: i32) {
    let _gone = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// The lines of a file of `key value` pairs.
pub(crate) fn pairs(path: &Path) -> HashMap<String, String> {
    fs::read_to_string(path)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
