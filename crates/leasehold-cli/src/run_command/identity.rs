//! How others see this process: holder, note, metadata, and who typed a command.

use std::ffi::OsString;

use leasehold::{Holder, Leasehold, Metadata};
use serde_json::Value;

use crate::{
    args::NoteArgs,
    error::{CommandError, Result},
    variables::Environment,
};

/// A longer note is cut when it is made of a command line; one that was typed is refused.
const LONGEST: usize = 200;

/// What others see of a lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    /// The holder that was chosen; `None` lets the library make one up.
    pub(crate) holder: Option<Holder>,
    /// One line for people.
    pub(crate) note: Option<String>,
    /// More for programs.
    pub(crate) metadata: Metadata,
}

impl Labels {
    /// The labels that the flags give to a lease for this command; `flag` is the one of the holder.
    pub(crate) fn new(
        (flag, holder): (&str, Option<&str>),
        notes: &NoteArgs,
        command: &[OsString],
        show_args: bool,
    ) -> Result<Self> {
        let holder = holder.map(|label| Holder::new(label).map_err(|error| CommandError::by_flag(flag, error)));
        Ok(Self {
            holder: holder.transpose()?,
            note: note(notes.note.as_deref(), command, show_args)?,
            metadata: metadata(&notes.meta)?,
        })
    }
}

/// The note that was typed, or the command's name; its arguments may hold secrets and are shown on request only.
fn note(typed: Option<&str>, command: &[OsString], show_args: bool) -> Result<Option<String>> {
    if let Some(note) = typed {
        if note.len() > 1024 || note.chars().any(char::is_control) {
            return Err(CommandError::usage("--note: a note is one line of at most 1024 bytes"));
        }
        return Ok(Some(note.to_owned()));
    }
    let shown = if show_args { command } else { command.get(..1).unwrap_or_default() };
    let words: Vec<_> = shown.iter().map(|word| word.to_string_lossy()).collect();
    let line: String = words.join(" ").chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = line.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= LONGEST).last();
    Ok(end.map(|end| line[..end].to_owned()))
}

/// `KEY=VALUE` pairs and JSON objects, put together; the last of a key counts.
fn metadata(given: &[String]) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    for text in given {
        if text.trim_start().starts_with('{') {
            match serde_json::from_str(text) {
                Ok(Value::Object(object)) => metadata.extend(object),
                _ => return Err(CommandError::usage("--meta: this begins like a JSON object, but is not valid JSON")),
            }
        } else {
            let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
                CommandError::usage(format!("--meta: '{text}' is neither KEY=VALUE nor a JSON object"))
            })?;
            metadata.insert(key.to_owned(), Value::from(value));
        }
    }
    Ok(metadata)
}

/// Who types, for the history: `alice@web-3`, as whom if by sudo, and from where if over ssh.
pub(crate) fn operator(locks: &Leasehold, env: Environment<'_>) -> String {
    let text = |name| env(name).and_then(|value| value.into_string().ok());
    let label = short(locks.holder().as_str());
    let account = label.rsplit_once(':').map_or(label, |(account, _pid)| account);
    let who = match (text("SUDO_USER"), account.split_once('@')) {
        (Some(user), Some((run_as, host))) => format!("{user}@{host} as {run_as}"),
        _ => account.to_owned(),
    };
    let address = text("SSH_CONNECTION").and_then(|ends| ends.split(' ').next().map(str::to_owned));
    let from = address.map(|address| format!(" from {address}")).unwrap_or_default();
    format!("{who}{from}").replace(char::is_control, " ")
}

/// The holder as people read it: a label we made up loses its random tail.
pub(crate) fn short(holder: &str) -> &str {
    let Some((rest, tail)) = holder.rsplit_once(':') else {
        return holder;
    };
    let is_random = tail.len() == 8 && tail.bytes().all(|byte| byte.is_ascii_hexdigit());
    let has_pid = rest.rsplit_once(':').is_some_and(|(_, pid)| pid.bytes().all(|byte| byte.is_ascii_digit()));
    if is_random && has_pid && rest.contains('@') { rest } else { holder }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn arguments_are_shown_on_request_only() {
        let command = words(&["psql", "--password=s3cret", "a\nb"]);
        assert_eq!(note(None, &command, false).unwrap().as_deref(), Some("psql"));
        assert_eq!(note(None, &command, true).unwrap().as_deref(), Some("psql --password=s3cret a b"));
        assert_eq!(note(Some("release 4.2"), &command, true).unwrap().as_deref(), Some("release 4.2"));
        assert_eq!(note(None, &words(&[&"ä".repeat(300)]), false).unwrap().unwrap().len(), 200);
        assert_eq!(note(None, &[], false).unwrap(), None);
        assert!(note(Some("two\nlines"), &command, false).is_err());
    }

    #[test]
    fn metadata_is_pairs_or_objects() {
        let given = [String::from("a=1"), String::from(" {\"b\":[2],\"a\":{}}"), String::from("c=x=y")];
        let metadata = metadata(&given).unwrap();
        assert_eq!(serde_json::to_string(&metadata).unwrap(), r#"{"a":{},"b":[2],"c":"x=y"}"#);
        for bad in ["novalue", "=x", "{", "{}x"] {
            assert_eq!(super::metadata(&[bad.to_owned()]).unwrap_err().code, 64, "{bad}");
        }
    }

    #[test]
    fn a_made_up_holder_is_shortened() {
        assert_eq!(short("alice@web-3:4121:0a1b2c3d"), "alice@web-3:4121");
        for chosen in ["scheduler-b", "a:b:0a1b2c3d", "alice@web-3:4121", "x@y:12:notrandom"] {
            assert_eq!(short(chosen), chosen);
        }
    }
}
