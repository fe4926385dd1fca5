//! The signals we catch, one stream of them, and word of children that changed.

use std::{
    fs,
    future::poll_fn,
    io,
    task::{Context, Poll},
};

use rustix::process::{self, WaitOptions};
use tokio::signal::unix::{self, SignalKind};

use crate::signal::Signal;

/// Everything that is caught while a child runs or a lock is waited for.
const CAUGHT: [process::Signal; 9] = [
    process::Signal::INT,
    process::Signal::TERM,
    process::Signal::HUP,
    process::Signal::QUIT,
    process::Signal::USR1,
    process::Signal::USR2,
    process::Signal::WINCH,
    process::Signal::CONT,
    process::Signal::TSTP,
];

/// What arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caught {
    /// A signal for us.
    Signal(Signal),
    /// A child ended or stopped.
    Child,
}

/// The signals we catch from now on.
#[derive(Debug)]
pub struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    child: unix::Signal,
}

impl Signals {
    /// Begins to catch. A signal that we were started to ignore (nohup, `&` in a script) stays ignored, save CONT,
    /// which wakes us all the same and has to be known.
    pub fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let streams = CAUGHT
            .iter()
            .filter(|signal| **signal == process::Signal::CONT || ignored & (1 << (signal.as_raw() - 1)) == 0)
            .map(|signal| Ok((Signal::from(*signal), unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self { streams, child: unix::signal(SignalKind::child())? })
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn next(&mut self) -> Caught {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The next signal that asks us to end, or to stop (`TSTP`, from Ctrl-Z); drops all others.
    ///
    /// Reaps every child that ends meanwhile: daemons of an earlier command are reparented to us.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn next_request(&mut self) -> Signal {
        loop {
            match self.next().await {
                Caught::Signal(signal) if signal.is_ending() || signal == Signal::TSTP => return signal,
                Caught::Child => while let Ok(Some(_)) = process::wait(WaitOptions::NOHANG) {},
                Caught::Signal(_) => {}
            }
        }
    }

    /// The next signal that asks us to end. Ctrl-Z stops us on the way; drops all others.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn next_ending(&mut self) -> Signal {
        loop {
            match self.next_request().await {
                Signal::TSTP => stop_ourselves(),
                signal => return signal,
            }
        }
    }

    /// Stops this process, and completes when it goes on: with the signal that asked us to end meanwhile, if one did.
    pub async fn stop(&mut self) -> Option<Signal> {
        stop_ourselves();
        // Another thread may take the signal, and this one runs a moment longer.
        loop {
            match self.next().await {
                Caught::Signal(Signal::CONT) => return None,
                Caught::Signal(signal) if signal.is_ending() => return Some(signal),
                _ => {}
            }
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Caught> {
        for (signal, stream) in &mut self.streams {
            if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                return Poll::Ready(Caught::Signal(*signal));
            }
        }
        match self.child.poll_recv(context) {
            Poll::Ready(Some(())) => Poll::Ready(Caught::Child),
            _ => Poll::Pending,
        }
    }
}

fn stop_ourselves() {
    let _always_possible = process::kill_process(process::getpid(), process::Signal::STOP);
}

/// The signals we were started to ignore, as the kernel's bit mask.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
