//! What processes say to each other: lines in the FIFO of the one spoken to.

use std::{fmt, fs::File, io, sync::Arc};

use tokio::net::unix::pipe::Receiver;

use super::watchers::Watchers;
use crate::{
    backend::{Hint, HintSender},
    lease::{Event, Fence, LeaseId, Resource},
};

/// One line. Unknown lines are ignored, so that newer versions may say more.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    /// This waiting lease holds now.
    Granted(LeaseId, Fence),
    /// This lease was taken away.
    Evicted(LeaseId),
    /// Something changed for those who wait for this resource.
    Changed(Resource),
    /// Something happened, for those who watch.
    Event(Box<Event>),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(id, fence) => writeln!(f, "granted {id} {fence}"),
            Self::Evicted(id) => writeln!(f, "evicted {id}"),
            Self::Changed(resource) => writeln!(f, "changed {resource}"),
            Self::Event(event) => writeln!(f, "event {}", serde_json::to_string(event).map_err(|_| fmt::Error)?),
        }
    }
}

impl Line {
    fn parse(line: &[u8]) -> Option<Self> {
        let (word, rest) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        match word {
            "granted" => {
                let (id, fence) = rest.split_once(' ')?;
                Some(Self::Granted(id.parse().ok()?, Fence::new(fence.parse().ok()?)))
            }
            "evicted" => Some(Self::Evicted(rest.parse().ok()?)),
            "changed" => Some(Self::Changed(Resource::new(rest).ok()?)),
            "event" => Some(Self::Event(serde_json::from_str(rest).ok()?)),
            _ => None,
        }
    }

    /// Passes the line on within this process.
    pub(super) fn deliver(self, hints: &HintSender, watchers: &Watchers) {
        match self {
            Self::Granted(id, fence) => hints.send(Hint::Granted { id, fence }),
            Self::Evicted(id) => hints.send(Hint::Evicted { id }),
            Self::Changed(resource) => hints.send(Hint::Changed { resource }),
            Self::Event(event) => watchers.tell_streams(&event),
        }
    }
}

/// Reads the doorbell for as long as the instance lives.
pub(super) async fn listen(fifo: File, hints: HintSender, watchers: Arc<Watchers>) {
    let heard = async {
        let fifo = Receiver::from_file(fifo)?;
        let mut pending = Vec::new();
        loop {
            fifo.readable().await?;
            let mut bytes = [0; 4096];
            match fifo.try_read(&mut bytes) {
                Ok(length) => pending.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err::<(), io::Error>(error),
            }
            hear(&mut pending, |line| line.deliver(&hints, &watchers));
        }
    };
    if let Err(error) = heard.await {
        tracing::warn!(%error, "the doorbell is deaf; renewals tell what it would");
    }
}

/// Takes the whole lines out of what was read; a line that never ends is dropped.
fn hear(pending: &mut Vec<u8>, mut take: impl FnMut(Line)) {
    let Some(last) = pending.iter().rposition(|byte| *byte == b'\n') else {
        if pending.len() > 1 << 16 {
            pending.clear();
        }
        return;
    };
    pending[..last].split(|byte| *byte == b'\n').filter_map(Line::parse).for_each(&mut take);
    pending.drain(..=last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Claim, EventKind, Holder, Timestamp};

    fn lines() -> Vec<Line> {
        let resource = Resource::new("a resource: with \"words\"").unwrap();
        let event = Event {
            at: Timestamp::from_micros(1),
            resource: resource.clone(),
            holder: Holder::new("me").unwrap(),
            claim: Claim::EXCLUSIVE,
            kind: EventKind::Acquired { fence: Fence::new(7) },
        };
        let id = LeaseId::from_u128(7);
        vec![Line::Granted(id, Fence::new(9)), Line::Evicted(id), Line::Changed(resource), Line::Event(Box::new(event))]
    }

    #[test]
    fn lines_read_back_in_whatever_pieces_they_come() {
        let text: String = lines().iter().map(ToString::to_string).collect();
        for size in [1, 7, 4096] {
            let (mut pending, mut heard) = (Vec::new(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                pending.extend_from_slice(piece);
                hear(&mut pending, |line| heard.push(line));
            }
            assert_eq!(heard, lines());
            assert!(pending.is_empty());
        }
    }

    #[test]
    fn garbage_is_ignored_and_does_not_hide_what_follows() {
        let mut pending = b"\n\xff\xfe\ngranted x y\nlater thing\ngranted\n".to_vec();
        pending.extend_from_slice(lines()[1].to_string().as_bytes());
        let mut heard = Vec::new();
        hear(&mut pending, |line| heard.push(line.to_string()));
        assert_eq!(heard.len(), 1);
        let mut endless = vec![b'x'; 70_000];
        hear(&mut endless, |_| panic!("not a line"));
        assert!(endless.is_empty());
    }
}
