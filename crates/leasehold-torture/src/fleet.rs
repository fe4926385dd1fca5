//! The worker processes: started, signalled, commanded, and read.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use leasehold_testkit::Dice;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::{
    args::{BackendChoice, ClientKind, RunPlan},
    event::LogLine,
    history::{RunHistory, Span, WorkerLife},
    instant::{Micros, from_wall_clock, millis, now},
    network::Network,
};

/// Tasks of each worker process.
const LANES: u32 = 2;
/// System calls of a slow disk, each delayed now and then.
const SLOW_CALLS: &str = "pwrite64,unlink,unlinkat,rename,renameat,renameat2";
const SLOW_RATE: &str = "when=40+160";
/// How long a delay lasts: longer than a loss may take to be reported.
const DELAY: Micros = millis(2000);

/// All worker processes of a run.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) slots: Vec<FleetSlot>,
    pub(crate) history: RunHistory,
    /// Leads to the backend without a proxy.
    pub(crate) url: String,
    network: Option<Network>,
    folder: PathBuf,
    plan: RunPlan,
    slow_slot: Option<usize>,
    dice: Dice,
}

/// A place in the fleet: when its process is killed, the next one takes it.
#[derive(Debug)]
pub(crate) struct FleetSlot {
    process: Child,
    log: LogReader,
    /// Which of [`RunHistory::lives`] runs here.
    pub(crate) life: usize,
    stopped_at: Option<Micros>,
    disturbed_at: Option<Micros>,
}

/// Reads what was appended to a log since the last look.
#[derive(Debug)]
struct LogReader {
    file: File,
    rest: Vec<u8>,
}

/// How many processes do the work of all workers: one where leases cannot be shared between processes.
fn processes(plan: &RunPlan) -> u32 {
    if plan.backend == BackendChoice::Memory { 1 } else { plan.workers }
}

impl Fleet {
    /// Starts the workers. `slow_disk` puts the first one on a slow disk.
    pub(crate) fn start(plan: &RunPlan, folder: PathBuf, slow_disk: bool, dice: Dice) -> io::Result<Self> {
        let network = Network::start(plan.backend);
        let url = match plan.backend {
            BackendChoice::Memory => String::from("memory:torture"),
            BackendChoice::File => format!("file://{}", folder.join("locks").display()),
            BackendChoice::Redis | BackendChoice::Redlock | BackendChoice::Sentinel | BackendChoice::Cluster => {
                network.as_ref().map(Network::url).unwrap_or_default()
            }
        };
        let slow_slot = slow_disk.then_some(0);
        let history = RunHistory::default();
        let mut fleet = Self { slots: Vec::new(), history, url, network, folder, plan: plan.clone(), slow_slot, dice };
        for index in 0..processes(plan) as usize {
            let slot = fleet.spawn(index)?;
            fleet.slots.push(slot);
        }
        Ok(fleet)
    }

    fn spawn(&mut self, index: usize) -> io::Result<FleetSlot> {
        let life = self.history.lives.len();
        let label = format!("w{index}.{life}");
        let path = self.folder.join(format!("{label}.ndjson"));
        let file = File::options().create(true).append(true).read(true).open(&path)?;
        let program = std::env::current_exe()?;
        let lanes = self.plan.workers * LANES / processes(&self.plan);
        let slow = self.slow_slot == Some(index);
        let url = self.network.as_mut().map_or_else(|| self.url.clone(), |network| network.connect(index));
        let mut command = if slow { self.under_strace(&label) } else { Command::new(&program) };
        if slow {
            // strace complains there of threads that end while it delays them.
            command.arg(&program).stderr(Stdio::null());
        }
        command.args(["worker", "--url", &url, "--label", &label, "--lanes", &lanes.to_string()]);
        command.args(["--seed", &self.dice.below(u64::MAX).to_string(), "--client", &client_name(self.plan.client)]);
        command.arg("--log").arg(&path).stdin(Stdio::piped()).stdout(Stdio::null());
        let process = command.spawn()?;
        self.history.lives.push(WorkerLife { label, slow, ..WorkerLife::default() });
        Ok(FleetSlot { process, log: LogReader { file, rest: Vec::new() }, life, stopped_at: None, disturbed_at: None })
    }

    /// A command that slows the calls of the program that follows. The tracer detaches, so the child is the program.
    fn under_strace(&self, label: &str) -> Command {
        let mut command = Command::new("strace");
        command.args(["-D", "-f", "-qq", "-ttt", "--seccomp-bpf", "-e", &format!("trace={SLOW_CALLS}")]);
        let delays = format!("inject={SLOW_CALLS}:delay_enter={DELAY}:{SLOW_RATE}");
        command.args(["-e", &delays, "-o"]).arg(self.trace_of(label));
        command
    }

    fn trace_of(&self, label: &str) -> PathBuf {
        self.folder.join(format!("{label}.strace"))
    }

    /// When strace delayed system calls.
    pub(crate) fn delays(&self) -> Vec<Span> {
        let slow = self.history.lives.iter().filter(|life| life.slow);
        let traces = slow.filter_map(|life| std::fs::read_to_string(self.trace_of(&life.label)).ok());
        traces.flat_map(|trace| trace.lines().filter_map(delay).collect::<Vec<_>>()).collect()
    }

    /// Reads all logs, and reports workers that ended by themselves.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        for index in 0..self.slots.len() {
            self.read(index)?;
            let slot = &mut self.slots[index];
            if let Some(status) = slot.process.try_wait()? {
                self.read(index)?;
                let life = self.slots[index].life;
                let label = self.history.lives[life].label.clone();
                self.history.lives[life].killed = Some(now());
                self.history.failures.push(format!("worker {label} ended by itself: {status}"));
                self.slots[index] = self.spawn(index)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, index: usize) -> io::Result<()> {
        let slot = &mut self.slots[index];
        for line in slot.log.lines()? {
            self.history.add(slot.life, line);
        }
        Ok(())
    }

    /// Sends a command line to a worker. One that died gets none.
    pub(crate) fn command(&mut self, index: usize, command: &str) {
        if let Some(input) = &mut self.slots[index].process.stdin {
            let _reported_when_it_is_found_dead = writeln!(input, "{command}");
        }
    }

    /// Kills a worker with -9 and starts the next one.
    pub(crate) fn kill(&mut self, index: usize) -> io::Result<()> {
        let slot = &mut self.slots[index];
        // Read before the signal: the process was alive then, and believed what it had not ended.
        let at = now();
        slot.process.kill()?;
        slot.process.wait()?;
        self.history.lives[slot.life].killed = Some(at);
        self.end_stop(index);
        self.mend(index);
        self.read(index)?;
        self.slots[index] = self.spawn(index)?;
        Ok(())
    }

    /// Stops a worker and waits until it has stopped.
    pub(crate) fn stop(&mut self, index: usize) -> io::Result<()> {
        let slot = &mut self.slots[index];
        slot.stopped_at = Some(now());
        let pid = pid_of(&slot.process)?;
        kill_process(pid, Signal::STOP)?;
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        self.read(index)
    }

    /// Lets a stopped worker go on.
    pub(crate) fn go_on(&mut self, index: usize) -> io::Result<()> {
        if self.slots[index].stopped_at.is_some() {
            let _dead_already = kill_process(pid_of(&self.slots[index].process)?, Signal::CONT);
            self.end_stop(index);
        }
        Ok(())
    }

    fn end_stop(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if let Some(from) = slot.stopped_at.take() {
            self.history.lives[slot.life].stops.push(Span { from, to: now() });
        }
    }

    /// Disturbs the way of a worker to its server. Returns what was done, and for how long it should last.
    pub(crate) fn disturb(&mut self, index: usize, dice: &mut Dice) -> Option<(&'static str, Micros)> {
        let slot = &mut self.slots[index];
        let connected = self.history.asks.iter().rev().any(|ask| ask.life == slot.life);
        let network = self.network.as_ref().filter(|_| connected && slot.disturbed_at.is_none())?;
        slot.disturbed_at = Some(now());
        Some(network.disturb(index, dice))
    }

    /// Cuts a worker off. Returns for how long it should last.
    pub(crate) fn cut(&mut self, index: usize, dice: &mut Dice) -> Option<Micros> {
        let slot = &mut self.slots[index];
        let network = self.network.as_ref().filter(|_| slot.disturbed_at.is_none())?;
        slot.disturbed_at = Some(now());
        Some(network.cut(index, dice))
    }

    /// Begins to replace a master. Returns what was done.
    pub(crate) fn fail_over(&mut self, dice: &mut Dice) -> Option<&'static str> {
        self.network.as_mut()?.fail_over(dice)
    }

    /// Whether the servers have replaced a master though nobody asked for it.
    pub(crate) fn finds_failover(&mut self) -> bool {
        self.network.as_mut().is_some_and(Network::finds_failover)
    }

    /// Looks how far a failover has come. Returns whether one is going on.
    pub(crate) fn follow_failover(&mut self) -> io::Result<bool> {
        let Some(network) = &mut self.network else { return Ok(false) };
        self.history.failovers.extend(network.follow_failover()?);
        Ok(network.is_failing_over())
    }

    /// Ends a disturbance.
    pub(crate) fn mend(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if let (Some(network), Some(from)) = (&self.network, slot.disturbed_at.take()) {
            network.mend(index);
            self.history.lives[slot.life].disturbances.push(Span { from, to: now() });
        }
    }

    pub(crate) fn is_stopped(&self, index: usize) -> bool {
        self.slots[index].stopped_at.is_some()
    }

    pub(crate) fn is_slow(&self, index: usize) -> bool {
        self.history.lives[self.slots[index].life].slow
    }

    /// Reads until `done` or the limit has passed. Returns whether it was done.
    pub(crate) fn wait(&mut self, limit: Micros, done: impl Fn(&WorkerLife) -> bool) -> io::Result<bool> {
        let until = now() + limit;
        loop {
            self.look()?;
            let lives = &self.history.lives;
            if self.slots.iter().all(|slot| done(&lives[slot.life])) {
                return Ok(true);
            }
            if now() > until {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends all workers; kills those that do not end in time.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        for index in 0..self.slots.len() {
            self.command(index, "finish");
        }
        let until = now() + millis(20_000);
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            while slot.process.try_wait()?.is_none() {
                if now() > until {
                    let label = &self.history.lives[slot.life].label;
                    self.history.failures.push(format!("worker {label} did not close in time"));
                    slot.process.kill()?;
                    slot.process.wait()?;
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
            self.read(index)?;
        }
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            let _ended_already = slot.process.kill();
            let _reaped_already = slot.process.wait();
        }
    }
}

impl LogReader {
    fn lines(&mut self) -> io::Result<Vec<LogLine>> {
        self.file.read_to_end(&mut self.rest)?;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(Vec::new()) };
        let complete: Vec<u8> = self.rest.drain(..=end).collect();
        let lines = complete.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).map_err(io::Error::from)).collect()
    }
}

/// The delay that a line of strace shows: `4121 1763320000.250000 pwrite64(…) = 512 (DELAYED)`.
fn delay(line: &str) -> Option<Span> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (seconds, micros) = words.next()?.split_once('.')?;
    let shown = seconds.parse::<Micros>().ok()? * 1_000_000 + micros.parse::<Micros>().ok()?;
    let at = from_wall_clock(shown);
    // A line has the time at which the call began, unless it shows the rest of an earlier one.
    let from = if line.contains(" resumed>") { at.saturating_sub(DELAY) } else { at };
    line.ends_with("(DELAYED)").then_some(Span { from, to: from + DELAY })
}

fn pid_of(process: &Child) -> io::Result<Pid> {
    let raw = i32::try_from(process.id()).map_err(io::Error::other)?;
    Pid::from_raw(raw).ok_or_else(|| io::Error::other("a process id is not zero"))
}

fn client_name(client: ClientKind) -> String {
    use clap::ValueEnum;
    client.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    #[test]
    fn delays_are_found_in_what_strace_writes() {
        let lengths = |line: &str| delay(line).map(|Span { from, to }| to - from);
        assert_eq!(lengths("4121 1763320000.250000 pwrite64(3, \"x\", 1, 1) = 1 (DELAYED)"), Some(DELAY));
        assert_eq!(lengths("4121 1763320000.250000 pwrite64(3, \"x\", 1, 1) = 1"), None);
        let at = |seconds: u64, text: &str| {
            let wall = clock_gettime(ClockId::Realtime).tv_sec + 100;
            let line = format!("1 {}.000000 {text} (DELAYED)", u64::try_from(wall).unwrap() + seconds);
            delay(&line).unwrap().from
        };
        let (whole, resumed) = (at(0, "unlink(\"x\") = 0"), at(2, "<... unlink resumed>) = 0"));
        assert!(whole.abs_diff(resumed) < millis(1100), "both began at the same time: {whole} {resumed}");
    }
}
