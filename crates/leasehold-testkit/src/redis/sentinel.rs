//! A master, a replica, and a sentinel that puts one in the place of the other.

use std::{fs, io};

use tempfile::TempDir;

use super::{RespReply, Server, cluster::wait_until, program, resp};
use crate::{ports::Port, process::ServerProcess};

/// A master, a replica, and a sentinel that watches them.
#[derive(Debug)]
pub struct Sentinel {
    /// The master first, then its replica.
    pub servers: Vec<Server>,
    port: Port,
    password: Option<String>,
    _folder: TempDir,
    _process: ServerProcess,
}

impl Sentinel {
    /// Starts them and waits until the sentinel knows the replica.
    pub fn start() -> Self {
        Self::with(&[], "", None)
    }

    /// The same, where the servers ask for one password and the sentinel for another.
    pub fn protected(password: &str, of_sentinel: &str) -> Self {
        let more = format!("sentinel auth-pass mymaster {password}\nrequirepass {of_sentinel}\n");
        Self::with(&["--requirepass", password, "--masterauth", password], &more, Some(of_sentinel))
    }

    fn with(settings: &[&str], more: &str, password: Option<&str>) -> Self {
        let plain = [&["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"], settings].concat();
        let master = Server::with(&plain);
        let (master_port, port) = (master.port().to_string(), Port::claim());
        let replica = Server::with(&[&plain[..], &["--replicaof", "127.0.0.1", &master_port]].concat());
        wait_until("the replica follows", || {
            replica.ask(&["INFO", "replication"]).to_string().contains("master_link_status:up")
        });
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = folder.path().join("sentinel.conf");
        let settings = format!(
            "port {}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {master_port} 1\n\
             sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n{more}",
            port.number,
            folder.path().display()
        );
        fs::write(&file, settings).expect("a file can be written");
        let arguments = [file.display().to_string(), String::from("--sentinel")];
        let process = ServerProcess::start(&program(), &arguments, &folder.path().join("log"));
        let servers = vec![master, replica];
        let password = password.map(str::to_owned);
        let sentinel = Self { servers, port, password, _folder: folder, _process: process };
        wait_until("the sentinel knows both", || {
            let known = sentinel.ask(&["SENTINEL", "REPLICAS", "mymaster"]);
            known.is_ok_and(|known| !known.parts().is_empty())
        });
        sentinel
    }

    fn ask(&self, command: &[&str]) -> io::Result<RespReply> {
        resp::ask(self.port.number, self.password.as_deref(), command)
    }

    /// The port of the sentinel.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// The URL: a sentinel that does not exist first, then the one that does.
    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{}/mymaster", self.port.number)
    }

    /// The master's port, as the sentinel reports it.
    pub fn master(&self) -> u16 {
        let address = self.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]).expect("it answers");
        address.parts()[1].to_string().parse().expect("a port")
    }

    /// Waits until the replica has all that the first master has written by now.
    pub fn replicated(&self) {
        let offset = |server: &Server, name: &str| -> u64 {
            let info = server.ask(&["INFO", "replication"]).to_string();
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok()).unwrap_or(0)
        };
        let written = offset(&self.servers[0], "master_repl_offset");
        wait_until("the replica has everything", || offset(&self.servers[1], "slave_repl_offset") >= written);
    }

    /// Has the replica take the master's place, both alive.
    pub fn fail_over(&self) {
        wait_until("a failover may begin", || self.begins_failover());
    }

    /// Asks for the same, and returns whether it begins; the sentinel refuses while it knows no good replica.
    pub fn begins_failover(&self) -> bool {
        self.ask(&["SENTINEL", "FAILOVER", "mymaster"]).is_ok_and(|answer| answer.to_string() == "OK")
    }
}
