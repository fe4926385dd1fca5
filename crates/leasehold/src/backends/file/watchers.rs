//! Which instances watch events: one file with a line for each, read with one call per operation.
//!
//! A line is the id of an instance, or dashes where one has left. Lines have
//! one length and never move, so that a reader needs no lock.

use std::{collections::HashSet, fs::File, io, os::unix::fs::FileExt, sync::Arc};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use uuid::Uuid;

use super::{
    directory::Directory,
    errors::cannot,
    latch,
    notifications::Notification,
    presence::{self, Delivery, OwnPresence},
    safe_open,
};
use crate::{
    Result,
    backend::{EventHub, EventStream},
    lease::{Event, Names},
    model::Presence,
};

/// An id of 32 digits and a line end.
const LINE: usize = 33;
/// How much is read at most: 4096 lines, more than there are watching instances on one machine.
const LARGEST: usize = 4096 * LINE;
const FREE: [u8; LINE] = *b"--------------------------------\n";

/// The watchers of one directory, and the event streams of this instance.
#[derive(Debug)]
pub(super) struct Watchers {
    directory: Arc<Directory>,
    own_presence: Arc<OwnPresence>,
    file: File,
    streams: EventHub,
    /// Where the line of this instance is, while it has one.
    line: Mutex<Option<u64>>,
}

impl Watchers {
    pub(super) fn open(directory: Arc<Directory>, own_presence: Arc<OwnPresence>) -> Result<Self> {
        let path = directory.watchers();
        let file = safe_open::regular(File::options().read(true).write(true), &path);
        let file = file.map_err(|error| cannot("open", &path, error))?;
        Ok(Self { directory, own_presence, file, streams: EventHub::new(), line: Mutex::default() })
    }

    /// A stream of what happens to these resources from now on, in any process. Blocks while the file is locked.
    pub(super) fn watch(&self, names: Names) -> Result<EventStream> {
        let mut line = self.line.lock();
        if line.is_none() {
            *line = Some(self.join()?);
            self.own_presence.widen();
        }
        Ok(self.streams.watch(names))
    }

    /// Takes the first free line.
    fn join(&self) -> Result<u64> {
        let path = self.directory.watchers();
        // Opened again: flock belongs to the open file, and threads sharing it would not exclude each other.
        let locked = safe_open::regular(File::options().read(true).write(true), &path);
        let locked = locked.map_err(|error| cannot("open", &path, error))?;
        latch::lock_within(&locked, &path, latch::PATIENCE)?;
        let taken = self.lines().and_then(|lines| {
            let living =
                |id: Uuid| id != self.own_presence.id() && presence::presence_of(&self.directory, id) != Presence::Dead;
            let free = lines.iter().position(|line| !line.is_some_and(living));
            let at = (free.unwrap_or(lines.len()) * LINE) as u64;
            if at >= LARGEST as u64 {
                return Err(io::Error::other("too many processes watch"));
            }
            self.file.write_all_at(format!("{}\n", self.own_presence.id().simple()).as_bytes(), at).map(|()| at)
        });
        let _closing_unlocks = locked.unlock();
        taken.map_err(|error| cannot("write", &path, error))
    }

    fn lines(&self) -> io::Result<Vec<Option<Uuid>>> {
        let mut bytes = vec![0; 16 * LINE];
        let mut length = 0;
        loop {
            length += self.file.read_at(&mut bytes[length..], length as u64)?;
            if length < bytes.len() || length >= LARGEST {
                break;
            }
            bytes.resize((length * 2).min(LARGEST), 0);
        }
        let id = |line: &[u8]| Uuid::try_parse_ascii(line.get(..LINE - 1)?).ok();
        Ok(bytes[..length].chunks(LINE).map(id).collect())
    }

    /// The instances that watch.
    pub(super) fn list(&self) -> Vec<Uuid> {
        self.lines().unwrap_or_default().into_iter().flatten().collect()
    }

    /// Sends an event to these instances. Our own instance gets it by its FIFO too, so that events keep their order.
    pub(super) fn send(&self, event: Event, to: &[Uuid]) {
        let mut line = Notification::Event(Box::new(event)).to_string().into_bytes();
        if !presence::fits(&line) {
            line = Notification::MissedEvent.to_string().into_bytes();
        }
        let is_dead = |id: &Uuid| presence::send(&self.directory, *id, &line) == Delivery::Dead;
        let dead: HashSet<Uuid> = to.iter().copied().filter(is_dead).collect();
        if !dead.is_empty() {
            self.forget(&dead);
        }
    }

    /// Frees the lines of instances that died, unless another process has locked the file.
    fn forget(&self, dead: &HashSet<Uuid>) {
        let path = self.directory.watchers();
        let Ok(locked) = safe_open::regular(File::options().read(true).write(true), &path) else { return };
        if !latch::try_lock(&locked, &path).unwrap_or(false) {
            return;
        }
        for (at, line) in self.lines().unwrap_or_default().iter().enumerate() {
            if line.is_some_and(|id| dead.contains(&id)) {
                let _tried_again_later = self.file.write_all_at(&FREE, (at * LINE) as u64);
            }
        }
        let _closing_unlocks = locked.unlock();
    }

    /// Hands an event to the streams. If no stream is left, this instance stops watching.
    pub(super) fn on_event(self: &Arc<Self>, event: &Event, runtime: &Handle) {
        if self.streams.is_idle() {
            let watchers = Arc::clone(self);
            runtime.spawn_blocking(move || watchers.leave_if_idle());
        } else {
            self.streams.send(event);
        }
    }

    pub(super) fn on_missed(&self) {
        self.streams.missed();
    }

    fn leave_if_idle(&self) {
        let mut line = self.line.lock();
        if self.streams.is_idle() {
            self.leave(line.take());
        }
    }

    /// Frees our own line, unless it is another's by now: others take the line of an instance that seems dead.
    fn leave(&self, line: Option<u64>) {
        if line.is_some() {
            self.forget(&HashSet::from([self.own_presence.id()]));
        }
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        if !self.own_presence.is_inherited() {
            let line = self.line.get_mut().take();
            self.leave(line);
        }
    }
}
