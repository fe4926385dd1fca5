//! Words as they can be typed into a shell, and words that a shell runs.

use std::ffi::OsString;

use crate::variables::environment;

/// The word, in quotes where the shell would read it otherwise.
pub(crate) fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The last word of a command line, which is no flag whatever it looks like.
pub(crate) fn operand(text: &str) -> String {
    if text.starts_with('-') { format!("-- {}", word(text)) } else { word(text) }
}

/// The words that run a string through the user's shell.
pub(crate) fn shell_command(string: OsString) -> Vec<OsString> {
    let shell = environment("SHELL").unwrap_or_else(|| "/bin/sh".into());
    vec![shell, "-c".into(), string]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_typed_into_a_shell() {
        for (name, typed) in
            [("a:b/c-1", "a:b/c-1"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("", "''"), ("-x", "-- -x")]
        {
            assert_eq!(operand(name), typed);
        }
        assert_eq!(word("redis://h?a=1&b=2"), "'redis://h?a=1&b=2'");
    }
}
