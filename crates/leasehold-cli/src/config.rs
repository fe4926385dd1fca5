//! The config file: profiles of backends and defaults, in TOML.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Deserializer, de};

use crate::{
    duration,
    error::{CommandError, Result},
    redact,
};

/// What a config file may say. Unknown keys are errors.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The profile to use if none is given.
    pub(crate) default: Option<String>,
    /// Values for flags that are not given.
    #[serde(default)]
    pub(crate) defaults: Defaults,
    /// The profiles by name.
    #[serde(default)]
    pub(crate) backend: BTreeMap<String, Profile>,
    /// Where it was read from.
    #[serde(skip)]
    pub(crate) path: PathBuf,
    /// Where it was looked for, if it was not found.
    #[serde(skip)]
    looked_at: Vec<PathBuf>,
}

/// Values for flags that are not given.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Defaults {
    /// `--ttl`
    pub(crate) ttl: Option<Length>,
    /// `--kill-after`
    pub(crate) kill_after: Option<Length>,
}

/// One backend by name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    /// Where locks live.
    pub(crate) url: String,
    /// The namespace used there.
    pub(crate) namespace: Option<String>,
}

/// A length of time, written as on the command line or as a number of seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length(pub(crate) Duration);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Length;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a length of time such as \"30s\" or 30")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Length, E> {
                duration::parse(text).map(Length).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> std::result::Result<Length, E> {
                self.visit_str(&seconds.to_string())
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> std::result::Result<Length, E> {
                self.visit_str(&seconds.to_string())
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl Config {
    /// Reads the file that was asked for, or the first of the usual places that has one.
    pub(crate) fn load(asked_for: Option<&Path>, usual: &[PathBuf]) -> Result<Self> {
        if let Some(path) = asked_for {
            return Self::read(path);
        }
        match usual.iter().find(|path| path.exists()) {
            Some(path) => Self::read(path),
            None => Ok(Self { looked_at: usual.to_vec(), ..Self::default() }),
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| {
            CommandError::config(format!("cannot read the config file {}: {error}", path.display()))
        })?;
        let config: Self = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let words = redact::redact_urls(&error.message().replace('\n', " "));
            CommandError::config(format!("{}:{line}: {words}", path.display()))
        })?;
        Ok(Self { path: path.to_owned(), ..config })
    }

    /// The profile of this name.
    pub(crate) fn profile(&self, name: &str) -> Result<&Profile> {
        self.backend.get(name).ok_or_else(|| {
            if self.path.as_os_str().is_empty() {
                let paths: Vec<String> = self.looked_at.iter().map(|path| path.display().to_string()).collect();
                return CommandError::config(format!(
                    "'{name}' is not a URL, and there is no config file with profiles ({})",
                    paths.join(", ")
                ))
                .hint("a URL has a colon: -b file: or -b redis://host");
            }
            let known: Vec<&str> = self.backend.keys().map(String::as_str).collect();
            let known = if known.is_empty() { String::from("none") } else { known.join(", ") };
            CommandError::config(format!("{} has no [backend.{name}]; it has: {known}", self.path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Config::read(file.path())
    }

    #[test]
    fn a_config_file_has_profiles_and_defaults() {
        let config = read(
            "default = \"prod\"\n[defaults]\nttl = \"30s\"\nkill_after = 2.5\n[backend.prod]\nurl = \"file:///srv/locks\"\nnamespace = \"billing\"\n[backend.dev]\nurl = \"file:\"\n",
        )
        .unwrap();
        assert_eq!(config.default.as_deref(), Some("prod"));
        assert_eq!(config.defaults.ttl.unwrap().0, Duration::from_secs(30));
        assert_eq!(config.defaults.kill_after.unwrap().0, Duration::from_millis(2500));
        assert_eq!(config.profile("prod").unwrap().namespace.as_deref(), Some("billing"));
        assert!(config.profile("test").unwrap_err().message.contains("dev, prod"));
    }

    #[test]
    fn a_mistake_names_the_file_the_line_and_the_key() {
        for (text, line, word) in [
            ("default = \"x\"\ncolour = 1\n", 2, "colour"),
            ("[defaults]\n\nttl = \"soon\"\n", 3, "soon"),
            ("[defaults]\ntll = \"3s\"\n", 2, "tll"),
            ("[backend.x]\nurl = \"file:\"\npassword = \"s3cret\"\n", 3, "password"),
            ("[backend.x]\nnamespace = \"n\"\n", 1, "url"),
            ("= 1\n", 1, ""),
        ] {
            let failure = read(text).unwrap_err();
            assert_eq!(failure.code, 78);
            assert!(failure.message.contains(&format!(":{line}: ")), "{}", failure.message);
            assert!(failure.message.contains(word), "{}", failure.message);
            assert!(!failure.message.contains("s3cret") && !failure.message.contains('\n'), "{}", failure.message);
        }
        let leaky = read("backend = \"postgres://u:s3cret@h/db\"\n").unwrap_err();
        assert!(!leaky.message.contains("s3cret"), "{}", leaky.message);
    }
}
