//! A server process that ends with its owner, however that ends.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::Duration,
};

/// Starts the server and waits for the end of its input, which comes with the end of our process at the latest.
const SHELL: &str = r#"log=$1; shift; "$@" >"$log" 2>&1 & echo $!; read -r _; kill -9 $! 2>/dev/null; wait"#;

/// A running server.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    shell: Child,
    input: Option<ChildStdin>,
    pid: u32,
}

impl ServerProcess {
    /// Starts a program whose output goes to `log`.
    pub(crate) fn start(program: &str, arguments: &[String], log: &Path) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", SHELL, "sh"])
            .arg(log)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh can be started");
        let mut line = String::new();
        let output = shell.stdout.take().expect("its output is piped");
        BufReader::new(output).read_line(&mut line).expect("sh tells the pid");
        let pid = line.trim().parse().expect("a pid");
        Self { input: shell.stdin.take(), shell, pid }
    }

    /// Sends a signal, such as `KILL`, `STOP` or `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        let _gone_already = Command::new("kill").arg(format!("-{name}")).arg(self.pid.to_string()).status();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.signal("KILL");
        drop(self.input.take());
        for _ in 0..500 {
            if matches!(self.shell.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _last_resort = self.shell.kill();
    }
}
