//! What the command prints to standard error: one clear line, or one JSON object, and never in the way of the work.
//!
//! A reader that is gone or slow must not end or delay us: the one who watches
//! over a lease cannot wait for somebody to press Ctrl-Q.

use std::{
    io::{self, Write},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
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
    args::LogFormat,
    error::CommandError,
    json, redact,
    settings::{Level, OutputStyle},
};

/// A writable pipe accepts this much at once.
const ALWAYS_FITS: usize = 4096;
/// How long a slow reader may keep us from exiting.
const FLUSH_LIMIT: Duration = Duration::from_millis(200);

/// Goes back to the beginning of the line and empties it.
const ERASE: &str = "\r\x1b[K";

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

    /// The message alone.
    pub(crate) fn message(self) -> String {
        self.message
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
pub(crate) struct Output {
    style: OutputStyle,
    /// The thread that writes for a slow reader, once there is one.
    slow: Mutex<Option<Sender<Vec<u8>>>>,
    /// Whether the last line on the screen is one that is drawn over again.
    is_live: AtomicBool,
}

impl Output {
    /// Says things as wished.
    pub(crate) fn new(style: OutputStyle) -> Self {
        Self { style, slow: Mutex::new(None), is_live: AtomicBool::new(false) }
    }

    /// How output looks.
    pub(crate) fn style(&self) -> OutputStyle {
        self.style
    }

    /// Writes a line if the chosen level includes it.
    pub(crate) fn print(&self, line: Line) {
        // Programs get a line for every step, people only for what matters.
        let shown = match self.style.level {
            Level::Normal if self.style.log == LogFormat::Json => Level::Verbose,
            level => level,
        };
        if line.level <= shown {
            self.write(line);
        }
    }

    /// Writes why the command ends, even with `--quiet`.
    pub(crate) fn fail(&self, failure: &CommandError) {
        if failure.message.is_empty() {
            return;
        }
        let mut line =
            Line::new("error", failure.message.clone()).with("kind", failure.kind).with("exit_code", failure.code);
        line.hint.clone_from(&failure.hint);
        self.write(line);
    }

    fn write(&self, line: Line) {
        let text = match self.style.log {
            LogFormat::Text => self.as_text(&line),
            LogFormat::Logfmt => as_logfmt(line),
            LogFormat::Json => format!("{}\n", as_json(line)),
        };
        let text = if self.is_live.swap(false, Ordering::Relaxed) { format!("{ERASE}{text}") } else { text };
        self.emit(text.into_bytes());
    }

    /// Whether somebody sits at a terminal where a line can be drawn over again.
    pub(crate) fn has_screen(&self) -> bool {
        let style = self.style;
        style.is_terminal && style.log == LogFormat::Text && style.level > Level::Quiet && screen_width().is_some()
    }

    /// Shows how things are, in the place of what was last shown so; the next line that is said takes its place.
    pub(crate) fn show(&self, words: &str) {
        let Some(width) = screen_width() else { return };
        let line: String = format!("leasehold: {}", one_line(words)).chars().take(width.saturating_sub(1)).collect();
        self.is_live.store(true, Ordering::Relaxed);
        self.emit(format!("{ERASE}{line}").into_bytes());
    }

    fn as_text(&self, line: &Line) -> String {
        let mark = match line.mark {
            Some((mark, style)) if self.style.color_err => format!("{style}{mark}{style:#}"),
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
        if self.is_live.swap(false, Ordering::Relaxed) {
            self.emit(ERASE.as_bytes().to_vec());
        }
        let Some(writer) = self.slow.lock().ok().and_then(|mut slow| slow.take()) else { return };
        drop(writer);
        thread::sleep(FLUSH_LIMIT);
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

/// How many columns the terminal has; `None` where lines cannot be drawn over again.
fn screen_width() -> Option<usize> {
    let can_erase = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok().filter(|_| can_erase)?;
    // Some terminals do not know their size.
    Some(if size.ws_col == 0 { usize::MAX } else { size.ws_col.into() })
}

/// `at=… event=waiting message="waiting for x" lock=x`; lists are for JSON.
fn as_logfmt(line: Line) -> String {
    let Value::Object(mut fields) = as_json(line) else { return String::new() };
    let first =
        ["at", "event", "message", "hint"].map(|key| (String::from(key), fields.remove(key).unwrap_or_default()));
    fields.remove("v");
    let pairs = first.into_iter().chain(fields).filter_map(|(key, value)| {
        let text = match value {
            Value::String(text) => text,
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        let is_plain = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || "\"=\\".contains(c));
        let quoted = || format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        Some(format!("{key}={}", if is_plain { text.clone() } else { quoted() }))
    });
    format!("{}\n", pairs.collect::<Vec<_>>().join(" "))
}

fn as_json(line: Line) -> Value {
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
    object
}

/// Names and notes come from anywhere: one line stays one line, and URLs keep their secrets.
fn one_line(text: &str) -> String {
    redact::redact_urls(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
