//! What the two processes tell each other: orders to the supervisor, reports from it.

use leasehold::lease::Moment;

use crate::Status;

/// The length of every message.
pub(crate) const LENGTH: usize = 17;

/// What the supervisor is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// When to stop the process tree unless other orders come.
    Deadlines {
        /// When to send TERM, or the signal chosen instead.
        term_at: Moment,
        /// When to kill it.
        kill_at: Moment,
    },
    /// The work is over: leave whoever is left alone.
    Dismiss,
}

/// What the supervisor tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorReport {
    /// The command runs as this process.
    Started(i32),
    /// The command could not be run: the number of the error.
    Failed(i32),
    /// The command was not started: the lease had ended.
    Late,
    /// The command, or after its end somebody whom it left behind, was stopped by this signal.
    Stopped(i32),
    /// The command ended.
    Ended(Status),
    /// Nobody is left of all that the command started.
    NoneLeft,
    /// TERM, or the signal chosen instead, was sent, because no orders came.
    TermSent,
}

impl Order {
    pub(crate) fn encode(self) -> [u8; LENGTH] {
        match self {
            Self::Deadlines { term_at, kill_at } => frame(1, term_at.as_micros(), kill_at.as_micros()),
            Self::Dismiss => frame(2, 0, 0),
        }
    }

    pub(crate) fn decode(message: [u8; LENGTH]) -> Option<Self> {
        let (kind, first, second) = fields(message);
        match kind {
            1 => Some(Self::Deadlines { term_at: Moment::from_micros(first), kill_at: Moment::from_micros(second) }),
            2 => Some(Self::Dismiss),
            _ => None,
        }
    }
}

impl SupervisorReport {
    pub(crate) fn encode(self) -> [u8; LENGTH] {
        let number = |number: i32| u64::from(number.unsigned_abs());
        match self {
            Self::Started(pid) => frame(1, number(pid), 0),
            Self::Failed(error) => frame(2, number(error), 0),
            Self::Stopped(signal) => frame(3, number(signal), 0),
            Self::Ended(Status::Exited(code)) => frame(4, u64::from(code), 0),
            Self::Ended(Status::Killed(signal)) => frame(5, number(signal), 0),
            Self::NoneLeft => frame(6, 0, 0),
            Self::TermSent => frame(7, 0, 0),
            Self::Late => frame(8, 0, 0),
        }
    }

    pub(crate) fn decode(message: [u8; LENGTH]) -> Option<Self> {
        let (kind, first, _) = fields(message);
        let number = i32::try_from(first).ok();
        match kind {
            1 => number.map(Self::Started),
            2 => number.map(Self::Failed),
            3 => number.map(Self::Stopped),
            4 => u8::try_from(first).ok().map(|code| Self::Ended(Status::Exited(code))),
            5 => number.map(|signal| Self::Ended(Status::Killed(signal))),
            6 => Some(Self::NoneLeft),
            7 => Some(Self::TermSent),
            8 => Some(Self::Late),
            _ => None,
        }
    }
}

fn frame(kind: u8, first: u64, second: u64) -> [u8; LENGTH] {
    let mut message = [kind; LENGTH];
    message[1..9].copy_from_slice(&first.to_le_bytes());
    message[9..].copy_from_slice(&second.to_le_bytes());
    message
}

fn fields(message: [u8; LENGTH]) -> (u8, u64, u64) {
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&message[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    (message[0], number(1), number(9))
}

/// Bytes that have arrived, cut into messages.
#[derive(Debug, Default)]
pub(crate) struct Inbox(Vec<u8>);

impl Inbox {
    /// Adds what was read.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next message that has arrived as a whole.
    pub(crate) fn next(&mut self) -> Option<[u8; LENGTH]> {
        let message = self.0.first_chunk().copied()?;
        self.0.drain(..LENGTH);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent_however_they_are_cut() {
        let orders = [
            Order::Deadlines { term_at: Moment::from_micros(7), kill_at: Moment::NEVER },
            Order::Dismiss,
            Order::Deadlines { term_at: Moment::NEVER, kill_at: Moment::from_micros(1 << 60) },
        ];
        let bytes: Vec<u8> = orders.iter().flat_map(|order| order.encode()).collect();
        let mut inbox = Inbox::default();
        let mut arrived = Vec::new();
        for piece in bytes.chunks(5) {
            inbox.add(piece);
            while let Some(message) = inbox.next() {
                arrived.push(Order::decode(message).unwrap());
            }
        }
        assert_eq!(arrived, orders);
        for report in [
            SupervisorReport::Started(4121),
            SupervisorReport::Failed(2),
            SupervisorReport::Stopped(20),
            SupervisorReport::Ended(Status::Exited(255)),
            SupervisorReport::Ended(Status::Killed(9)),
            SupervisorReport::NoneLeft,
            SupervisorReport::TermSent,
            SupervisorReport::Late,
        ] {
            assert_eq!(SupervisorReport::decode(report.encode()), Some(report));
        }
        assert_eq!((Order::decode([0; LENGTH]), SupervisorReport::decode([9; LENGTH])), (None, None));
    }
}
