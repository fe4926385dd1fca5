//! Those who watch: streams of this process, and processes that said they watch.

use std::{
    fs,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use futures_core::Stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{
    directory::{Directory, files},
    doorbell::Line,
    failure::failure,
    presence::{self, OwnPresence},
};
use crate::{
    Result,
    backend::EventStream,
    lease::{Event, Names},
    model::Presence,
};

/// As many events wait for a slow reader; it misses those that come after.
const KEPT: usize = 1024;

/// The watchers of one directory, as one instance knows and tells them.
#[derive(Debug)]
pub(super) struct Watchers {
    directory: Arc<Directory>,
    own: Arc<OwnPresence>,
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    open: Vec<(u64, Names, mpsc::Sender<Event>)>,
    opened: u64,
}

impl Watchers {
    pub(super) fn new(directory: Arc<Directory>, own: Arc<OwnPresence>) -> Self {
        Self { directory, own, streams: Mutex::default() }
    }

    /// A stream of what happens to these from now on, in any process.
    pub(super) fn watch(self: &Arc<Self>, names: Names) -> Result<EventStream> {
        let mut streams = self.streams.lock();
        if streams.open.is_empty() {
            let path = self.directory.watcher(self.own.id());
            self.directory.create(&path).map_err(|error| failure("write", &path, error))?;
            self.own.widen();
        }
        let (sender, receiver) = mpsc::channel(KEPT);
        streams.opened += 1;
        let number = streams.opened;
        streams.open.push((number, names, sender));
        Ok(Box::pin(Watch { number, receiver, watchers: Arc::downgrade(self) }))
    }

    fn leave(&self, number: u64) {
        let mut streams = self.streams.lock();
        streams.open.retain(|(open, ..)| *open != number);
        if streams.open.is_empty() {
            let _best_effort = fs::remove_file(self.directory.watcher(self.own.id()));
        }
    }

    /// Tells everyone who watches, through their doorbells: our own too, so that what we do comes after
    /// what others did before.
    pub(super) fn tell(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let watching = files(&self.directory.watchers()).unwrap_or_default();
        let watching = watching.into_iter().filter_map(|(name, path)| Some((Uuid::try_parse(&name).ok()?, path)));
        let watching: Vec<Uuid> = watching
            .filter(|(id, path)| {
                let alive = *id == self.own.id() || presence::look(&self.directory, *id) == Presence::Present;
                if !alive {
                    let _tidied = fs::remove_file(path);
                }
                alive
            })
            .map(|(id, _)| id)
            .collect();
        if watching.is_empty() {
            return;
        }
        for event in events {
            let line = Line::Event(Box::new(event)).to_string();
            for id in &watching {
                presence::ring(&self.directory, *id, &line);
            }
        }
    }

    /// Tells the streams of this process.
    pub(super) fn tell_streams(&self, event: &Event) {
        for (_, names, stream) in &self.streams.lock().open {
            if names.include(&event.resource) {
                let _slow_readers_miss_some = stream.try_send(event.clone());
            }
        }
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        let _most_watch_nothing = fs::remove_file(self.directory.watcher(self.own.id()));
    }
}

/// One stream of events; the process stops watching with the last of them.
struct Watch {
    number: u64,
    receiver: mpsc::Receiver<Event>,
    watchers: Weak<Watchers>,
}

impl Stream for Watch {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.receiver.poll_recv(context)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(watchers) = self.watchers.upgrade() {
            watchers.leave(self.number);
        }
    }
}
