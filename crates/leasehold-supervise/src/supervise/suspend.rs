//! Ctrl-Z and its kin: child and we stop together, and the child goes on only under a lease that is still held.

use std::time::Duration;

use leasehold::{ErrorKind, Lease, Loss};
use rustix::process;

use super::Watch;
use crate::{
    OnLost,
    group::{self, ProcessStatus},
    signal::Signal,
};

/// How long a child may take to stop when asked; then it is made to.
const STOP_LIMIT: Duration = Duration::from_millis(200);
/// How often to check whether it did.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long the backend may take to say that a lease is still held; then the clock decides alone.
const ASK_LIMIT: Duration = Duration::from_millis(500);

/// Child and we are stopped, or about to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspended {
    had_terminal: bool,
}

impl Watch<'_> {
    /// Somebody wants us to stop: the child first, or it would run on with nobody to watch its lease.
    pub(super) async fn stop_asked(&mut self) {
        if self.ignore_next_stop {
            self.ignore_next_stop = false;
            return;
        }
        self.signal(Signal::TSTP);
        let mut waited = Duration::ZERO;
        while waited < STOP_LIMIT && self.state() == ProcessStatus::Running {
            tokio::time::sleep(STOP_POLL_INTERVAL).await;
            waited += STOP_POLL_INTERVAL;
        }
        if self.state() != ProcessStatus::Gone {
            self.signal(Signal::STOP);
            self.stop_ourselves();
        }
    }

    /// How the child is, or those in its group whom we wait for: stopped as soon as one of them is.
    pub(super) fn state(&self) -> ProcessStatus {
        if self.status.is_none() {
            return group::state(self.child);
        }
        let left = if self.awaits_stragglers { self.left() } else { Vec::new() };
        if left.iter().any(|process| process.is_stopped && process.group == self.child.as_raw_pid()) {
            ProcessStatus::Stopped
        } else if left.is_empty() {
            ProcessStatus::Gone
        } else {
            ProcessStatus::Running
        }
    }

    /// The child was stopped by somebody else: by a key, by the terminal, or by a signal.
    pub(super) fn child_stopped(&mut self, signal: Signal) {
        let number = signal.number();
        let by_terminal = number == process::Signal::TTIN.as_raw() || number == process::Signal::TTOU.as_raw();
        let Some(terminal) = &self.terminal else { return };
        if by_terminal && terminal.is_ours() {
            // It asks for the terminal, and we have it to give.
            terminal.give_to(self.child);
            self.signal(Signal::CONT);
        } else if by_terminal || signal == Signal::TSTP {
            if group::is_orphaned() {
                // No shell could ever wake us; the kernel would not have stopped us either.
                self.signal(Signal::CONT);
                return;
            }
            // The whole job stops, as if the key had reached all of it.
            self.ignore_next_stop = process::kill_current_process_group(process::Signal::TSTP).is_ok();
            self.stop_ourselves();
        }
    }

    /// Stops this process; the child stays stopped until CONT has come and the lease was looked at.
    ///
    /// Going on after this call proves nothing: another thread may take the signal, and this one runs a moment longer.
    fn stop_ourselves(&mut self) {
        let had_terminal = self.terminal.as_ref().is_some_and(|terminal| terminal.take_from(self.child));
        self.suspended = Some(Suspended { had_terminal });
        self.give_orders();
        let _always_possible = process::kill_process(process::getpid(), process::Signal::STOP);
    }

    /// Lets the child go on, if the lease is still held.
    pub(super) async fn resume(&mut self) {
        match lapsed(self.leases).await {
            Some(loss) if self.limits.on_lost != OnLost::Continue => self.lose_now(loss),
            _ => self.let_go_on(),
        }
        self.suspended = None;
    }

    fn let_go_on(&mut self) {
        if self.owns_pid()
            && let (Some(terminal), Some(Suspended { had_terminal: true })) = (&self.terminal, self.suspended)
            && terminal.is_ours()
        {
            terminal.give_to(self.child);
        }
        self.signal(Signal::CONT);
    }
}

/// Whether one of them lapsed while nobody looked: by our own clock, then by the backend's word.
async fn lapsed(leases: &[Lease]) -> Option<Loss> {
    for lease in leases {
        let asked = match lease.check() {
            Ok(()) => tokio::time::timeout(ASK_LIMIT, lease.renew(lease.ttl())).await,
            Err(error) => Ok(Err(error)),
        };
        if let Ok(Err(error)) = asked
            && error.kind() == ErrorKind::Lost
        {
            return Some(lease.loss().unwrap_or(Loss::Gone));
        }
    }
    None
}
