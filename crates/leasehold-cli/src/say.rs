//! What we say, on standard error: one clear line, or one JSON object, and never in the way of the work.
//!
//! A reader that is gone or slow must not end or delay us: the one who watches
//! over a lease cannot wait for somebody to press Ctrl-Q.

use std::{
    io::{self, Write},
    sync::{
        Mutex,
        mpsc::{self, Sender},
    },
    thread,
    time::Duration,
};

use clap::builder::styling::{AnsiColor, Style};
use leasehold::clock::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value, json};

use crate::{
    exit::Failure,
    json, redact,
    settings::{Level, Looks},
};

/// A pipe that says it has room has room for so much at least.
const ALWAYS_FITS: usize = 4096;
/// How long a slow reader may keep us from exiting.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Something to say.
#[derive(Debug)]
pub(crate) struct Line {
    level: Level,
    event: &'static str,
    mark: Option<(&'static str, Style)>,
    message: String,
    hint: Option<String>,
    fields: Map<String, Value>,
}

impl Line {
    /// Something everybody should read.
    pub(crate) fn new(event: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Normal, event, mark: None, message: message.into(), hint: None, fields: Map::new() }
    }

    /// Something for those who asked with `-v`.
    pub(crate) fn detail(event: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Verbose, ..Self::new(event, message) }
    }

    /// Something for those who asked with `-vv`.
    pub(crate) fn debug(message: impl Into<String>) -> Self {
        Self { level: Level::Debug, ..Self::new("debug", message) }
    }

    /// Something that may go wrong.
    pub(crate) fn warning(message: impl Into<String>) -> Self {
        Self { mark: Some(("warning: ", AnsiColor::Yellow.on_default())), ..Self::new("warning", message) }
    }

    /// A lock that is gone.
    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self { mark: Some(("LOST ", AnsiColor::Red.on_default().bold())), ..Self::new("lost", message) }
    }

    /// The same, with what to type next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same, with one more field for programs.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(field.to_owned(), value.into());
        self
    }

    /// The same, said only at this level.
    pub(crate) fn at(mut self, level: Level) -> Self {
        self.level = level;
        self
    }
}

/// Says things.
#[derive(Debug)]
pub(crate) struct Say {
    looks: Looks,
    /// The thread that writes for a slow reader, once there is one.
    slow: Mutex<Option<Sender<Vec<u8>>>>,
}

impl Say {
    /// Says things as wished.
    pub(crate) fn new(looks: Looks) -> Self {
        Self { looks, slow: Mutex::new(None) }
    }

    /// How output looks.
    pub(crate) fn looks(&self) -> Looks {
        self.looks
    }

    /// Says a line, if somebody wants to hear it.
    pub(crate) fn say(&self, line: Line) {
        // Programs hear of every step; people of what matters.
        let heard = match self.looks.level {
            Level::Normal if self.looks.json => Level::Verbose,
            level => level,
        };
        if line.level <= heard {
            self.write(line);
        }
    }

    /// Tells why the command ends; this is said even to those who want quiet.
    pub(crate) fn fail(&self, failure: &Failure) {
        if failure.message.is_empty() {
            return;
        }
        let mut line =
            Line::new("error", failure.message.clone()).with("kind", failure.kind).with("exit_code", failure.code);
        line.hint.clone_from(&failure.hint);
        self.write(line);
    }

    fn write(&self, line: Line) {
        let text = if self.looks.json { as_json(line) } else { self.as_text(&line) };
        self.emit(text.into_bytes());
    }

    fn as_text(&self, line: &Line) -> String {
        let mark = match line.mark {
            Some((mark, style)) if self.looks.color_err => format!("{style}{mark}{style:#}"),
            Some((mark, _)) => mark.to_owned(),
            None => String::new(),
        };
        let hint = line.hint.as_ref().map(|hint| format!("leasehold:   {}\n", one_line(hint)));
        format!("leasehold: {mark}{}\n{}", one_line(&line.message), hint.unwrap_or_default())
    }

    fn emit(&self, bytes: Vec<u8>) {
        let Ok(mut slow) = self.slow.lock() else { return };
        if slow.is_none() && bytes.len() <= ALWAYS_FITS && has_room() {
            let _nobody_listens = io::stderr().write_all(&bytes);
            return;
        }
        let writer = slow.get_or_insert_with(start_slow_writer);
        let _writer_is_gone = writer.send(bytes);
    }

    /// Gives a slow reader a last moment.
    pub(crate) fn finish(&self) {
        let Some(writer) = self.slow.lock().ok().and_then(|mut slow| slow.take()) else { return };
        drop(writer);
        thread::sleep(LAST_WORDS);
    }
}

fn start_slow_writer() -> Sender<Vec<u8>> {
    let (sender, lines) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        for line in lines {
            let _nobody_listens = io::stderr().write_all(&line);
        }
    });
    sender
}

/// Whether a short line can be written at once.
fn has_room() -> bool {
    let stderr = io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // An error means that polling is impossible, as is blocking then.
    poll(&mut fds, Some(&now)).map_or(true, |ready| ready > 0)
}

fn as_json(line: Line) -> String {
    let mut object = json!({
        "v": 1,
        "event": line.event,
        "at": json::time(SystemClock.wall()),
        "message": one_line(&line.message),
        "hint": line.hint.map(|hint| one_line(&hint)),
    });
    if let Value::Object(object) = &mut object {
        object.extend(line.fields);
    }
    format!("{object}\n")
}

/// Names and notes come from anywhere: one line stays one line, and URLs keep their secrets.
fn one_line(text: &str) -> String {
    redact::words(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
