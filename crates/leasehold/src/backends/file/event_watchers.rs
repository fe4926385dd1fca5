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
    /// Whether this instance has a line in the file.
    listed: Mutex<bool>,
}

impl Watchers {
    pub(super) fn open(directory: Arc<Directory>, own_presence: Arc<OwnPresence>) -> Result<Self> {
        let path = directory.watchers();
        let file = safe_open::regular(File::options().read(true).write(true), &path);
        let file = file.map_err(|error| cannot("open", &path, error))?;
        Ok(Self { directory, own_presence, file, streams: EventHub::new(), listed: Mutex::default() })
    }

    /// A stream of what happens to these resources from now on, in any process. Blocks while the file is locked.
    pub(super) fn watch(&self, names: Names) -> Result<EventStream> {
        let mut listed = self.listed.lock();
        if !*listed {
            self.join()?;
            *listed = true;
            self.own_presence.widen();
        }
        Ok(self.streams.watch(names))
    }

    /// Takes the first free line. A write that failed may have stored our id all the same: that line is used again,
    /// since with two lines this instance would get each event twice.
    fn join(&self) -> Result<()> {
        let path = self.directory.watchers();
        // Opened again: flock belongs to the open file, and threads sharing it would not exclude each other.
        let locked = safe_open::regular(File::options().read(true).write(true), &path);
        let locked = locked.map_err(|error| cannot("open", &path, error))?;
        latch::lock_within(&locked, &path, latch::STUCK_AFTER)?;
        let taken = self.lines().and_then(|lines| {
            let own = self.own_presence.id();
            let living = |id: Uuid| presence::presence_of(&self.directory, id) != Presence::Dead;
            let ours = lines.iter().position(|line| *line == Some(own));
            let usable = ours.or_else(|| lines.iter().position(|line| !line.is_some_and(living)));
            let at = (usable.unwrap_or(lines.len()) * LINE) as u64;
            if at >= LARGEST as u64 {
                return Err(io::Error::other("too many processes watch"));
            }
            self.file.write_all_at(format!("{}\n", own.simple()).as_bytes(), at)
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
            let _tried_again_by_the_next_event = self.free_lines_of(&dead);
        }
    }

    /// Frees the lines of instances that died or stopped watching.
    ///
    /// Returns whether none of them has a line any more: nothing is freed while another process has locked the file.
    fn free_lines_of(&self, gone: &HashSet<Uuid>) -> bool {
        let path = self.directory.watchers();
        let Ok(locked) = safe_open::regular(File::options().read(true).write(true), &path) else { return false };
        if !latch::try_lock(&locked, &path).unwrap_or(false) {
            return false;
        }
        let freed = self.lines().and_then(|lines| {
            let theirs = lines.iter().enumerate().filter(|(_, line)| line.is_some_and(|id| gone.contains(&id)));
            theirs.map(|(at, _)| self.file.write_all_at(&FREE, (at * LINE) as u64)).fold(Ok(()), Result::and)
        });
        let _closing_unlocks = locked.unlock();
        freed.is_ok()
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

    /// Frees our own line once no stream is left. If that fails, the next event tries again.
    fn leave_if_idle(&self) {
        let mut listed = self.listed.lock();
        if *listed && self.streams.is_idle() && self.leave() {
            *listed = false;
        }
    }

    /// Frees our own line, unless another instance has taken it over because this one seemed dead.
    fn leave(&self) -> bool {
        self.free_lines_of(&HashSet::from([self.own_presence.id()]))
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        if *self.listed.get_mut() && !self.own_presence.is_inherited() {
            let _else_freed_as_a_dead_instance = self.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backends::file::FileOptions, clock::SystemClock};

    fn watchers(directory: &Arc<Directory>) -> Watchers {
        let own_presence = Arc::new(OwnPresence::create(Arc::clone(directory)).unwrap());
        Watchers::open(Arc::clone(directory), own_presence).unwrap()
    }

    #[test]
    fn an_instance_that_cannot_leave_stays_listed_once_and_leaves_later() {
        let root = tempfile::tempdir().unwrap();
        let url = format!("file://{}", root.path().display());
        let options = FileOptions::from_url(&url, "test", Arc::new(SystemClock)).unwrap();
        let directory = Arc::new(Directory::open(&options).unwrap());
        let (first, second) = (watchers(&directory), watchers(&directory));
        drop((first.watch(Names::All).unwrap(), second.watch(Names::All).unwrap()));
        first.leave_if_idle();

        let locked = File::open(directory.watchers()).unwrap();
        locked.lock().unwrap();
        second.leave_if_idle();
        locked.unlock().unwrap();
        assert_eq!(second.list(), [second.own_presence.id()]);
        let watching = second.watch(Names::All).unwrap();
        assert_eq!(second.list(), [second.own_presence.id()], "a free line before its own is not taken");

        drop(watching);
        locked.lock().unwrap();
        second.leave_if_idle();
        locked.unlock().unwrap();
        second.leave_if_idle();
        assert!(second.list().is_empty());
    }
}
