//! Child processes that share the pairs of one contender on Redis servers.

use std::{
    cell::RefCell,
    io::{BufRead, BufReader, Write, stdin},
    process::{Child, ChildStdin, ChildStdout},
};

use crate::{
    Result,
    children::{self, argument},
    pairs,
    redis_locks::{Locks, RedisLock},
    scenarios::two_workers,
};

/// Child processes that are connected and wait for work.
pub(crate) struct RedisWorkers(RefCell<Vec<RedisWorker>>);

impl RedisWorkers {
    pub(crate) fn start(kind: RedisLock, processes: u64, tasks: u64, ports: &[u16]) -> Result<Self> {
        let workers = (0..processes).map(|process| RedisWorker::start(kind, process, tasks, ports));
        Ok(Self(RefCell::new(workers.collect::<Result<_>>()?)))
    }

    /// Divides `count` pairs among the processes and waits for all of them.
    pub(crate) fn pairs(&self, count: u64) -> Result<()> {
        let mut workers = self.0.borrow_mut();
        let share = count.div_ceil(workers.len() as u64);
        workers.iter_mut().try_for_each(|worker| writeln!(worker.input, "{share}"))?;
        workers.iter_mut().try_for_each(RedisWorker::finished)
    }
}

struct RedisWorker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl RedisWorker {
    /// Returns when the child has connected.
    fn start(kind: RedisLock, process: u64, tasks: u64, ports: &[u16]) -> Result<Self> {
        let mut arguments = vec![kind.name().to_owned(), process.to_string(), tasks.to_string()];
        arguments.extend(ports.iter().map(u16::to_string));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut child = children::command("redis_workers", &arguments)?.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a child has no pipes".into());
        };
        let mut worker = Self { child, input, output: BufReader::new(output) };
        worker.finished()?;
        Ok(worker)
    }

    fn finished(&mut self) -> Result<()> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("a child with pairs ended early with {}", self.child.wait()?).into());
        }
        Ok(())
    }
}

impl Drop for RedisWorker {
    fn drop(&mut self) {
        // Both fail only for a child that has ended and was waited for.
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Does as many pairs as each line says and prints a line when done: `KIND PROCESS TASKS PORT...`.
pub(crate) fn child(arguments: &[String]) -> Result<()> {
    let kind = RedisLock::parse(&argument::<String>(arguments, 0)?)?;
    let (process, tasks) = (argument::<u64>(arguments, 1)?, argument(arguments, 2)?);
    let ports: Vec<u16> = (3..arguments.len()).map(|index| argument(arguments, index)).collect::<Result<_>>()?;
    let runtime = two_workers()?;
    let locks = runtime.block_on(Locks::open(kind, &ports))?;
    println!("ready");
    for line in stdin().lines() {
        pairs::spread(&runtime, tasks, line?.parse()?, |task, count| {
            let locks = locks.clone();
            async move { locks.pairs(&format!("order:{process}:{task}"), count).await }
        })?;
        println!("done");
    }
    Ok(())
}
