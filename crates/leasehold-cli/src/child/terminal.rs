//! The controlling terminal: which process group the keys go to.

use std::fs::File;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::{
    process::{self, Pid},
    termios::{tcgetpgrp, tcsetpgrp},
};

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    /// The one of this session; `None` under cron, systemd and the like.
    pub(crate) fn controlling() -> Option<Self> {
        File::options().read(true).write(true).open("/dev/tty").ok().map(Self)
    }

    /// Whether the keys go to our group.
    pub(crate) fn is_ours(&self) -> bool {
        self.foreground() == Some(process::getpgrp())
    }

    /// The group that the keys go to.
    pub(crate) fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.0).ok()
    }

    /// Lets the keys go to this group, whether or not we are in the foreground ourselves.
    pub(crate) fn give_to(&self, group: Pid) {
        // A background process that changes the foreground is stopped by TTOU, unless that is blocked.
        let mask = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let _terminal_hung_up = tcsetpgrp(&self.0, group);
        if let Ok(mask) = mask {
            let _cannot_fail = mask.thread_set_mask();
        }
    }

    /// Takes the keys back, if they still go to this group.
    pub(crate) fn take_from(&self, group: Pid) {
        if self.foreground() == Some(group) {
            self.give_to(process::getpgrp());
        }
    }
}
