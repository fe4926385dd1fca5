//! What instances send each other: lines in the FIFO of the receiver.

use std::{collections::HashSet, fmt, io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{net::unix::pipe, runtime::Handle};

use super::{presence::OwnPresence, watchers::Watchers};
use crate::{
    backend::{Hint, HintSender},
    clock::Clock,
    lease::{Event, Fence, LeaseId, Resource},
};

/// A line that never ends is dropped at this length.
const LONGEST_LINE: usize = 1 << 16;
/// One page.
const SMALLEST_FIFO: usize = 4096;

/// One line. Receivers ignore lines that they do not know, so that newer versions may send more.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Notification {
    /// This waiting lease holds now.
    Granted { id: LeaseId, fence: Fence, provisional: bool },
    /// This lease was taken away.
    Evicted(LeaseId),
    /// Something changed for those who wait for this resource.
    Changed(Resource),
    /// A process ahead must confirm its grant of this resource within this time, or the next in line gets it.
    Provisional(Duration, Resource),
    /// Something happened, for those who watch.
    Event(Box<Event>),
    /// An event was too long to be sent.
    MissedEvent,
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { id, fence, provisional: false } => writeln!(f, "granted {id} {fence}"),
            Self::Granted { id, fence, provisional: true } => writeln!(f, "granted-provisionally {id} {fence}"),
            Self::Evicted(id) => writeln!(f, "evicted {id}"),
            Self::Changed(resource) => writeln!(f, "changed {resource}"),
            Self::Provisional(length, resource) => writeln!(f, "provisional {} {resource}", length.as_millis()),
            Self::Event(event) => writeln!(f, "event {}", serde_json::to_string(event).map_err(|_| fmt::Error)?),
            Self::MissedEvent => writeln!(f, "missed event"),
        }
    }
}

impl Notification {
    /// What the receiver's engine learns by this hint; `None` for hints that are not about one lease.
    pub(super) fn from_hint(hint: Hint) -> Option<Self> {
        match hint {
            Hint::Granted { id, fence, provisional } => Some(Self::Granted { id, fence, provisional }),
            Hint::Evicted { id } => Some(Self::Evicted(id)),
            Hint::Changed { resource } => Some(Self::Changed(resource)),
            Hint::Missed => None,
        }
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let (word, rest) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        match word {
            "granted" | "granted-provisionally" => {
                let (id, fence) = rest.split_once(' ')?;
                let (id, fence) = (id.parse().ok()?, Fence::new(fence.parse().ok()?));
                Some(Self::Granted { id, fence, provisional: word == "granted-provisionally" })
            }
            "evicted" => Some(Self::Evicted(rest.parse().ok()?)),
            "changed" => Some(Self::Changed(Resource::new(rest).ok()?)),
            "provisional" => {
                let (length, resource) = rest.split_once(' ')?;
                Some(Self::Provisional(Duration::from_millis(length.parse().ok()?), Resource::new(resource).ok()?))
            }
            "event" => Some(Self::Event(serde_json::from_str(rest).ok()?)),
            "missed" => Some(Self::MissedEvent),
            _ => None,
        }
    }
}

/// Passes notifications on to the engine and to those who watch.
#[derive(Debug)]
pub(super) struct NotificationInbox {
    pub(super) hints: HintSender,
    pub(super) watchers: Arc<Watchers>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) runtime: Handle,
    /// The resources whose provisional grants are waited for.
    pub(super) provisional: Arc<Mutex<HashSet<Resource>>>,
}

impl NotificationInbox {
    pub(super) fn deliver(&self, notification: Notification) {
        match notification {
            Notification::Granted { id, fence, provisional } => {
                self.hints.send(Hint::Granted { id, fence, provisional });
            }
            Notification::Evicted(id) => self.hints.send(Hint::Evicted { id }),
            Notification::Changed(resource) => self.hints.send(Hint::Changed { resource }),
            Notification::Provisional(length, resource) => self.ask_again_in(length, resource),
            Notification::Event(event) => self.watchers.on_event(&event, &self.runtime),
            Notification::MissedEvent => self.watchers.on_missed(),
        }
    }

    /// Makes the waiters of the resource ask again once a provisional grant has ended, confirmed or not.
    fn ask_again_in(&self, length: Duration, resource: Resource) {
        // One pending question is enough: its answer says when to ask next.
        if !self.provisional.lock().insert(resource.clone()) {
            return;
        }
        let (hints, pending) = (self.hints.clone(), Arc::clone(&self.provisional));
        let ended = {
            let _inside = self.runtime.enter();
            self.clock.sleep_until(self.clock.now().after(length))
        };
        self.runtime.spawn(async move {
            ended.await;
            pending.lock().remove(&resource);
            hints.send(Hint::Changed { resource });
        });
    }

    fn on_overflow(&self) {
        self.hints.send(Hint::Missed);
        self.watchers.on_missed();
    }
}

/// Reads what others write to this instance, for as long as the instance lives.
pub(super) async fn listen(own: Arc<OwnPresence>, inbox: Arc<NotificationInbox>) {
    if let Err(error) = read_lines(&own, &inbox).await {
        tracing::warn!(%error, "notifications can no longer be read; renewals find out the same, later");
    }
}

async fn read_lines(own: &OwnPresence, inbox: &NotificationInbox) -> io::Result<()> {
    let fifo: &pipe::Receiver = own.notifications();
    let mut pending = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        fifo.readable().await?;
        let mut since_empty = 0;
        loop {
            match fifo.try_read(&mut bytes) {
                Ok(length) => {
                    since_empty += length;
                    pending.extend_from_slice(&bytes[..length]);
                    take_lines(&mut pending, |notification| inbox.deliver(notification));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        // A full FIFO refuses lines, and only its reader can tell. The kernel starts a page when a line does not
        // fit into the last one, so that two neighbouring pages hold more than one page of lines: a FIFO that held
        // less than half of its capacity was never full.
        if since_empty >= SMALLEST_FIFO / 2 && since_empty >= own.capacity() / 2 {
            inbox.on_overflow();
        }
    }
}

/// Takes the whole lines out of what was read.
fn take_lines(pending: &mut Vec<u8>, mut take: impl FnMut(Notification)) {
    let Some(last) = pending.iter().rposition(|byte| *byte == b'\n') else {
        if pending.len() > LONGEST_LINE {
            pending.clear();
        }
        return;
    };
    pending[..last].split(|byte| *byte == b'\n').filter_map(Notification::parse).for_each(&mut take);
    pending.drain(..=last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Claim, EventKind, Holder, Timestamp};

    fn all() -> Vec<Notification> {
        let resource = Resource::new("a resource: with \"words\"").unwrap();
        let (id, fence) = (LeaseId::from_u128(7), Fence::new(9));
        let event = Event::new(
            Timestamp::from_micros(1),
            resource.clone(),
            Holder::new("me").unwrap(),
            Claim::EXCLUSIVE,
            EventKind::Acquired { fence },
        );
        vec![
            Notification::Granted { id, fence, provisional: false },
            Notification::Granted { id, fence, provisional: true },
            Notification::Evicted(id),
            Notification::Changed(resource.clone()),
            Notification::Provisional(Duration::from_secs(5), resource),
            Notification::Event(Box::new(event)),
            Notification::MissedEvent,
        ]
    }

    #[test]
    fn lines_read_back_in_whatever_pieces_they_come() {
        let text: String = all().iter().map(ToString::to_string).collect();
        for size in [1, 7, 4096] {
            let (mut pending, mut read) = (Vec::new(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                pending.extend_from_slice(piece);
                take_lines(&mut pending, |notification| read.push(notification));
            }
            assert_eq!(read, all());
            assert!(pending.is_empty());
        }
    }

    #[test]
    fn garbage_is_ignored_and_does_not_hide_what_follows() {
        let mut pending = b"what\n\xff\xfe\ngranted x y\nevicted\nchanged a\n".to_vec();
        let mut read = Vec::new();
        take_lines(&mut pending, |notification| read.push(notification));
        assert_eq!(read, [Notification::Changed(Resource::new("a").unwrap())]);
        let mut endless = vec![b'x'; LONGEST_LINE + 1];
        take_lines(&mut endless, |_| panic!("there is no line"));
        assert!(endless.is_empty());
    }
}
