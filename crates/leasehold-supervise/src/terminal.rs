//! The controlling terminal: which process group the keys go to.

use std::fs::File;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::{
    process::{self, Pid},
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    modes: Option<Termios>,
}

impl Terminal {
    /// The one of this session; `None` under cron, systemd and the like.
    pub(crate) fn controlling() -> Option<Self> {
        File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()
            .map(|tty| Self { modes: tcgetattr(&tty).ok(), tty })
    }

    /// Whether the keys go to our group.
    pub(crate) fn is_ours(&self) -> bool {
        self.foreground() == Some(process::getpgrp())
    }

    /// The group that the keys go to.
    pub(crate) fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.tty).ok()
    }

    /// Lets the keys go to this group, whether or not we are in the foreground ourselves.
    pub(crate) fn give_to(&self, group: Pid) {
        with_ttou_blocked(|| {
            let _terminal_hung_up = tcsetpgrp(&self.tty, group);
        });
    }

    /// Takes the foreground back from this group; returns whether the group had it.
    pub(crate) fn take_from(&self, group: Pid) -> bool {
        let was_theirs = self.foreground() == Some(group);
        if was_theirs {
            self.give_to(process::getpgrp());
        }
        was_theirs
    }

    /// Undoes what a program that was killed left the terminal in: no echo, raw keys.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes {
            with_ttou_blocked(|| {
                let _terminal_hung_up = tcsetattr(&self.tty, OptionalActions::Drain, modes);
            });
        }
    }
}

/// A background process that changes the terminal is stopped by TTOU, unless that is blocked.
fn with_ttou_blocked(change: impl FnOnce()) {
    let mask = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK);
    change();
    if let Ok(mask) = mask {
        let _cannot_fail = mask.thread_set_mask();
    }
}
