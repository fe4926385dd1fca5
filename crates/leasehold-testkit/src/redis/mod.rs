//! Private Redis servers: one, one with replicas and sentinels, or a cluster.

mod cluster;
mod resp;
mod sentinel;

use std::{env, fs, path::PathBuf, thread, time::Duration};

use tempfile::TempDir;

pub use self::{cluster::Cluster, resp::RespReply, sentinel::Sentinel};
use crate::{ports::Port, process::ServerProcess};

/// The program that every server here runs: `LEASEHOLD_REDIS_SERVER` names another version of it, or Valkey.
fn program() -> String {
    env::var("LEASEHOLD_REDIS_SERVER").unwrap_or_else(|_| String::from("redis-server"))
}

/// A Redis server on a port and in a folder of its own.
#[derive(Debug)]
pub struct Server {
    port: Port,
    folder: TempDir,
    settings: Vec<String>,
    process: Option<ServerProcess>,
}

impl Server {
    /// A server that keeps nothing on disk.
    pub fn start() -> Self {
        Self::with(&["--save", "", "--appendonly", "no"])
    }

    /// A server that writes everything to its append-only file before it answers.
    pub fn durable() -> Self {
        Self::with(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"])
    }

    /// A server with these settings, in the words of its command line.
    pub fn with(settings: &[&str]) -> Self {
        let mut server = Self {
            port: Port::claim(),
            folder: tempfile::tempdir().expect("a folder can be made"),
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            process: None,
        };
        server.launch();
        server
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port.number)
    }

    /// The folder it may write to.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same port and in the same folder.
    pub fn launch(&mut self) {
        let mut arguments: Vec<String> =
            ["--port", &self.port.number.to_string(), "--bind", "127.0.0.1", "--dir"].map(str::to_owned).to_vec();
        arguments.push(self.folder.path().display().to_string());
        arguments.extend(["--daemonize", "no", "--loglevel", "notice"].map(str::to_owned));
        arguments.extend(self.settings.iter().cloned());
        self.process = Some(ServerProcess::start(&program(), &arguments, &self.folder.path().join("log")));
        for _ in 0..1000 {
            if resp::ask(self.port.number, None, &["PING"]).is_ok_and(|reply| !reply.to_string().contains("LOADING")) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        panic!("redis-server did not start: {log}");
    }

    /// Sends a signal to its process, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        if let Some(process) = &self.process {
            process.signal(name);
        }
    }

    /// Sends one command on a connection of its own.
    pub fn ask(&self, command: &[&str]) -> RespReply {
        let words = self.settings.iter().skip_while(|word| *word != "--requirepass");
        let password = words.skip(1).map(String::as_str).next();
        resp::ask(self.port.number, password, command)
            .unwrap_or_else(|error| panic!("{command:?} was not answered: {error}"))
    }

    /// Sends one command that must not be refused.
    pub fn command(&self, command: &[&str]) -> RespReply {
        match self.ask(command) {
            RespReply::Error(refusal) => panic!("{command:?} was refused: {refusal}"),
            reply => reply,
        }
    }

    /// How often each of these was called by clients or scripts since the last reset.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.ask(&["INFO", "commandstats"]).to_string();
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// How many commands clients of the library have sent since the last reset; all others are called by scripts.
    pub fn sent(&self) -> u64 {
        ["evalsha", "eval", "hello", "subscribe", "ssubscribe", "ping", "xrevrange", "wait"]
            .iter()
            .map(|command| self.calls(command))
            .sum()
    }

    /// Starts counting anew.
    pub fn reset_calls(&self) {
        self.ask(&["CONFIG", "RESETSTAT"]);
    }

    /// Starts to time every call that takes 100 µs or more.
    pub fn time_calls(&self) {
        self.command(&["CONFIG", "SET", "slowlog-log-slower-than", "100"]);
        self.command(&["CONFIG", "SET", "slowlog-max-len", "10000"]);
        self.command(&["SLOWLOG", "RESET"]);
    }

    /// The longest call since [`time_calls`](Self::time_calls).
    pub fn longest_call(&self) -> Duration {
        let calls = self.ask(&["SLOWLOG", "GET", "10000"]);
        let micros = |call: &RespReply| call.parts().get(2).and_then(|micros| micros.to_string().parse().ok());
        calls.parts().iter().filter_map(micros).max().map_or(Duration::ZERO, Duration::from_micros)
    }

    /// How much processor time it has used.
    pub fn cpu(&self) -> Duration {
        let info = self.ask(&["INFO", "cpu"]).to_string();
        let used = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
            Duration::from_secs_f64(line.unwrap_or(0.0))
        };
        used("used_cpu_user") + used("used_cpu_sys")
    }

    /// How many clients are connected, the one that asks left out.
    pub fn clients(&self) -> usize {
        self.ask(&["CLIENT", "LIST"]).to_string().lines().filter(|line| line.contains("addr=")).count() - 1
    }
}
