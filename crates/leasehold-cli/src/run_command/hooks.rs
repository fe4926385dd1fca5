//! Runs the `--on-skip` and `--on-failure` commands after a run. They have a time limit and cannot change the exit
//! code.

use std::{
    ffi::OsStr,
    future::pending,
    io,
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Child, Command, Stdio},
    time::Duration,
};

use leasehold::clock::{Clock, SystemClock};
use leasehold_supervise::{Caught, Signals};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::unix::pipe::Sender;

use super::report::{Report, RunOutcome};
use crate::{
    args::HookArgs,
    duration::Brief,
    exit,
    output::{Line, Output},
    shell,
};

/// A hook that takes longer is killed.
const LIMIT: Duration = Duration::from_secs(30);
/// Signals that arrive this soon after the one that ended us are duplicates: timeout(1) signals us and our process
/// group.
const ECHO_LIMIT: Duration = Duration::from_millis(100);
/// How often to look whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs the hook for this outcome, if there is one, with the report on its standard input.
///
/// A signal that asks us to end ends the hook at once.
pub(crate) async fn run(hooks: &HookArgs, report: &Report, signals: &mut Signals, output: &Output) {
    let (flag, command) = match report.outcome {
        RunOutcome::NotAcquired => ("--on-skip", &hooks.on_skip),
        RunOutcome::Completed => return,
        // The command was told to end, and ended successfully.
        RunOutcome::Interrupted if report.exit_code == exit::OK => return,
        _ => ("--on-failure", &hooks.on_failure),
    };
    let Some(command) = command else { return };
    if report.outcome == RunOutcome::Interrupted {
        wait_out_echoes(signals).await;
    }
    if let Err(words) = run_within(LIMIT, command, &format!("{}\n", report.to_json()), signals).await {
        output.print(Line::warning(format!("{flag}: {words}")));
    }
}

async fn wait_out_echoes(signals: &mut Signals) {
    let end = SystemClock.now().after(ECHO_LIMIT);
    loop {
        tokio::select! {
            _echo = signals.next() => {}
            () = SystemClock.sleep_until(end) => return,
        }
    }
}

async fn run_within(limit: Duration, command: &OsStr, input: &str, signals: &mut Signals) -> Result<(), String> {
    let cannot_run = |error: io::Error| format!("cannot run it: {error}");
    let mut hook = start(command).map_err(cannot_run)?;
    let mut stdin = hook.stdin.take().and_then(|stdin| Sender::from_owned_fd(stdin.into()).ok());
    let mut unwritten = input.as_bytes();
    let end = SystemClock.now().after(limit);
    loop {
        match hook.try_wait().map_err(cannot_run)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("ended with {status}")),
            None if SystemClock.now() >= end => {
                kill(&mut hook);
                return Err(format!("killed, since it took longer than {}", Brief(limit)));
            }
            None => {}
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            written = write_some(stdin.as_ref(), unwritten) => {
                // A hook need not read its report.
                unwritten = &unwritten[written.unwrap_or(unwritten.len())..];
                if unwritten.is_empty() {
                    stdin = None;
                }
            }
            caught = signals.next() => if let Caught::Signal(signal) = caught && signal.is_ending() {
                kill(&mut hook);
                return Err(format!("killed on {signal}"));
            },
        }
    }
}

/// Writes as much as the pipe has room for, once it has some; never completes without a pipe.
async fn write_some(pipe: Option<&Sender>, bytes: &[u8]) -> io::Result<usize> {
    let Some(pipe) = pipe else { return pending().await };
    loop {
        pipe.writable().await?;
        match pipe.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return written,
        }
    }
}

/// Its output goes to standard error: standard output is the command's.
fn start(command: &OsStr) -> io::Result<Child> {
    let words = shell::shell_command(command.to_owned());
    let stderr = io::stderr().as_fd().try_clone_to_owned()?;
    let mut hook = Command::new(&words[0]);
    hook.args(&words[1..]).stdin(Stdio::piped()).stdout(stderr).process_group(0).spawn()
}

fn kill(hook: &mut Child) {
    let group = i32::try_from(hook.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _gone = kill_process_group(group, Signal::KILL);
    }
    let _reaped = hook.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hook_is_bounded_and_its_end_is_told() {
        let run = async |limit: Duration, command: &str| {
            let mut signals = Signals::catch().unwrap();
            run_within(limit, OsStr::new(command), "{}\n", &mut signals).await
        };
        assert_eq!(run(LIMIT, "read -r report; [ \"$report\" = {} ]").await, Ok(()));
        assert!(run(LIMIT, "exit 3").await.unwrap_err().contains("exit status: 3"));
        let slow = run(Duration::from_millis(300), "sleep 600 & sleep 600").await;
        assert!(slow.unwrap_err().contains("took longer than 300ms"));
    }

    #[tokio::test]
    async fn a_hook_that_does_not_read_a_long_report_is_bounded_and_one_that_reads_gets_all_of_it() {
        let report = "x".repeat(200_000);
        let mut signals = Signals::catch().unwrap();
        let mut run =
            async |limit: Duration, command: &str| run_within(limit, OsStr::new(command), &report, &mut signals).await;
        assert_eq!(run(LIMIT, "[ $(wc -c) = 200000 ]").await, Ok(()));
        assert_eq!(run(LIMIT, "exit 0").await, Ok(()));
        let unread = run(Duration::from_millis(300), "exec sleep 5").await;
        assert!(unread.is_err_and(|words| words.contains("took longer than 300ms")));
    }
}
