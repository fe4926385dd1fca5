//! Resolves flags, environment, profile and defaults, in this order, into `Settings` and `OutputStyle`.

use std::{
    ffi::OsString,
    fs,
    io::IsTerminal,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold::backends::file::DefaultDirectory;

use crate::{
    args::{Color, Global, LogFormat},
    config::Config,
    error::{CommandError, Result},
    paste::{self, PastedBy, TypedPlace},
    redact,
    variables::{Environment, environment},
};

/// Where locks live and how to get there.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The URL with its secrets: never printed.
    pub(crate) url: String,
    /// Whether nobody has said where: neither a flag, nor the environment, nor the config file.
    pub(crate) is_place_by_default: bool,
    /// The profile it came from.
    pub(crate) profile: Option<String>,
    /// The key prefix that separates applications on one backend.
    pub(crate) namespace: String,
    /// How long to try to reach the backend, if that was said.
    pub(crate) connect_limit: Option<Duration>,
    /// `ttl` of the config file.
    pub(crate) ttl: Option<Duration>,
    /// `kill_after` of the config file.
    pub(crate) kill_after: Option<Duration>,
    /// What a child needs in its environment to reach the same locks.
    pub(crate) for_child: Vec<(&'static str, OsString)>,
    /// The flags, for commands to paste.
    flags: Global,
    /// The config file, if it says where.
    config: Option<PathBuf>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("url", &self.shown_url()).finish_non_exhaustive()
    }
}

impl Settings {
    /// Puts flags, environment and config file together.
    pub(crate) fn resolve(global: &Global, env: Environment<'_>) -> Result<Self> {
        let asked_config = global.config.clone().or_else(|| env("LEASEHOLD_CONFIG").map(PathBuf::from));
        let config = Config::load(asked_config.as_deref(), &usual_config_files(env))?;

        let (place, source) = match (&global.backend, text(env, "LEASEHOLD_URL")?) {
            (Some(flag), _) if flag.trim().is_empty() => {
                let failure = CommandError::config("-b is empty");
                return Err(failure.hint("give it a URL or a profile; is the variable that has it set in this shell?"));
            }
            (Some(flag), _) => (flag.clone(), "-b"),
            (None, Some(variable)) if variable.trim().is_empty() => {
                let failure = CommandError::config("LEASEHOLD_URL is set but empty");
                return Err(failure.hint("give it a URL, or unset it to have the locks on this machine only (file:)"));
            }
            (None, Some(variable)) => (variable, "LEASEHOLD_URL"),
            (None, None) => (config.default.clone().unwrap_or_else(|| String::from("file:")), "default"),
        };
        let is_place_by_default = source == "default" && config.default.is_none();
        let is_url = place.contains(':');
        let profile = if is_url {
            None
        } else {
            let found = config.profile(&place);
            Some(found.map_err(|failure| CommandError {
                message: format!("{source}: {}", failure.message),
                hint: failure.hint,
                ..failure
            })?)
        };
        let namespace = match (&global.namespace, text(env, "LEASEHOLD_NAMESPACE")?) {
            (Some(flag), _) => flag.clone(),
            (None, Some(variable)) => variable,
            (None, None) => profile.and_then(|profile| profile.namespace.clone()).unwrap_or_else(default_namespace),
        };

        let url = profile.map_or_else(|| place.clone(), |profile| profile.url.clone());
        Ok(Self {
            url,
            is_place_by_default,
            namespace,
            connect_limit: global.connect_timeout,
            ttl: config.defaults.ttl.map(|length| length.0),
            kill_after: config.defaults.kill_after.map(|length| length.0),
            for_child: for_child(global),
            config: (profile.is_some() || source == "default" && !is_place_by_default).then(|| config.path.clone()),
            flags: global.clone(),
            profile: (!is_url).then_some(place),
        })
    }

    /// Where `file:` leads, if that is what the URL says and nothing more.
    pub(crate) fn default_directory(&self) -> Option<leasehold::Result<DefaultDirectory>> {
        let path = self.url.strip_prefix("file:")?.split('?').next()?;
        matches!(path, "" | "//").then(DefaultDirectory::find)
    }

    /// The directory of the locks if only this user sees it, which users of `file:` may not expect.
    pub(crate) fn user_only_notice(&self) -> Option<UserOnlyDirectory> {
        match self.default_directory()? {
            Ok(DefaultDirectory::User(path)) => Some(UserOnlyDirectory::of(path)),
            _ => None,
        }
    }

    /// A command line for people to paste that means the same place as this command.
    pub(crate) fn command(&self, words: &str) -> String {
        let pasted_by = PastedBy::of_this_process();
        let deciding = self.config.as_deref().filter(|path| {
            environment("LEASEHOLD_CONFIG").is_some() || paste::is_config_of_user(path, &environment, pasted_by)
        });
        let place = TypedPlace {
            config: self.flags.config.as_deref().or(deciding),
            backend: self.flags.backend.as_deref(),
            namespace: self.flags.namespace.as_deref(),
            url: Some(&self.url),
        };
        format!("{}{words}", place.command(&environment, pasted_by))
    }

    /// The URL as anybody may see it.
    pub(crate) fn shown_url(&self) -> String {
        redact::url(&self.url)
    }
}

/// A place of locks that only this user sees, because nobody made one for the machine.
#[derive(Clone, Debug)]
pub(crate) struct UserOnlyDirectory {
    path: PathBuf,
    /// `this user only`, and in a container that it is one.
    pub(crate) visible_to: &'static str,
}

impl UserOnlyDirectory {
    fn of(path: PathBuf) -> Self {
        Self { path, visible_to: if is_container() { "this user only, in this container" } else { "this user only" } }
    }

    /// The same, with the directory and what to do about it.
    pub(crate) fn sentence(&self) -> String {
        format!(
            "locks are in {}: {}; one place for several users: sudo leasehold init file: --group NAME",
            self.path.display(),
            self.visible_to
        )
    }
}

fn is_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists())
}

/// For whom the directory of the machine is. A container has one of its own, unless a volume is mounted there.
pub(crate) fn shared_with(machine: &Path) -> &'static str {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let is_own = is_container() && device(machine) == device(Path::new("/"));
    if is_own { "for this container only" } else { "for the whole machine" }
}

fn default_namespace() -> String {
    String::from("default")
}

/// Passes location flags to the child's `leasehold` calls.
fn for_child(global: &Global) -> Vec<(&'static str, OsString)> {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).into_os_string();
    let url = global.backend.as_ref().map(|url| ("LEASEHOLD_URL", OsString::from(url)));
    let namespace = global.namespace.as_ref().map(|namespace| ("LEASEHOLD_NAMESPACE", OsString::from(namespace)));
    let config = global.config.as_ref().map(|path| ("LEASEHOLD_CONFIG", absolute(path)));
    url.into_iter().chain(namespace).chain(config).collect()
}

/// Whether the environment asks for machine output.
pub(crate) fn wants_json(env: Environment<'_>) -> bool {
    env("LEASEHOLD_JSON").is_some_and(|value| value != "0" && value != "false")
}

fn text(env: Environment<'_>, name: &str) -> Result<Option<String>> {
    env(name)
        .map(|value| value.into_string().map_err(|_| CommandError::config(format!("{name} is not valid UTF-8"))))
        .transpose()
}

/// Never the working directory: a checkout must not decide where locks live.
fn usual_config_files(env: Environment<'_>) -> Vec<PathBuf> {
    let home = || env("HOME").map(|home| PathBuf::from(home).join(".config"));
    let own = env("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home);
    own.into_iter().chain([PathBuf::from("/etc")]).map(|dir| dir.join("leasehold/config.toml")).collect()
}

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Errors only.
    Quiet,
    /// What someone must know.
    Normal,
    /// Timings too.
    Verbose,
    /// Everything.
    Debug,
}

/// How output looks.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each answers one question about one stream")]
pub(crate) struct OutputStyle {
    /// Machine output.
    pub(crate) json: bool,
    /// How standard error is written.
    pub(crate) log: LogFormat,
    /// How much is said.
    pub(crate) level: Level,
    /// Colours on standard output.
    pub(crate) color_out: bool,
    /// Colours on standard error.
    pub(crate) color_err: bool,
    /// Somebody sits at standard error.
    pub(crate) is_terminal: bool,
}

impl OutputStyle {
    /// Text without colours, for when nothing is known yet.
    pub(crate) fn plain() -> Self {
        Self {
            json: false,
            log: LogFormat::Text,
            level: Level::Normal,
            color_out: false,
            color_err: false,
            is_terminal: false,
        }
    }

    /// Puts flags and environment together; nothing here can fail before it can be told.
    pub(crate) fn resolve(global: &Global, env: Environment<'_>) -> Self {
        let level = match (global.quiet, global.verbose) {
            (true, _) => Level::Quiet,
            (false, 0) => env("LEASEHOLD_LOG").map_or(Level::Normal, |value| level_named(&value.to_string_lossy())),
            (false, 1) => Level::Verbose,
            (false, _) => Level::Debug,
        };
        let stderr = std::io::stderr().is_terminal();
        let json = global.json || wants_json(env);
        Self {
            json,
            log: global.log_format.unwrap_or(if json { LogFormat::Json } else { LogFormat::Text }),
            level,
            color_out: wants_color(global.color, env, std::io::stdout().is_terminal()),
            color_err: wants_color(global.color, env, stderr),
            is_terminal: stderr,
        }
    }
}

fn level_named(word: &str) -> Level {
    match word.to_ascii_lowercase().as_str() {
        "quiet" | "off" | "error" => Level::Quiet,
        "verbose" | "info" => Level::Verbose,
        "debug" | "trace" => Level::Debug,
        _ => Level::Normal,
    }
}

fn wants_color(choice: Color, env: Environment<'_>, is_terminal: bool) -> bool {
    match choice {
        Color::Always => true,
        Color::Never => false,
        Color::Auto if env("NO_COLOR").is_some() => false,
        Color::Auto if env("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
        Color::Auto => is_terminal && env("TERM").is_none_or(|term| term != "dumb"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(args: &[&str], variables: &[(&str, &str)]) -> Result<Settings> {
        let cli = crate::args::tests::parse(&[&["list"], args].concat());
        let env = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        Settings::resolve(&cli.global, &env)
    }

    #[test]
    fn a_flag_beats_the_environment_beats_the_profile_beats_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, "default = \"p\"\n[backend.p]\nurl = \"file:///from-profile\"\nnamespace = \"of-profile\"\n")
            .unwrap();
        let config = path.to_str().unwrap();

        let none = resolve(&[], &[("XDG_CONFIG_HOME", "/nonexistent")]);
        if !Path::new("/etc/leasehold/config.toml").exists() {
            let none = none.unwrap();
            assert_eq!((none.url.as_str(), none.namespace.as_str()), ("file:", "default"));
        }
        let by_profile = resolve(&["--config", config], &[]).unwrap();
        assert_eq!((by_profile.url.as_str(), by_profile.namespace.as_str()), ("file:///from-profile", "of-profile"));
        let variables = [("LEASEHOLD_CONFIG", config), ("LEASEHOLD_URL", "file:///env"), ("LEASEHOLD_NAMESPACE", "e")];
        let by_env = resolve(&[], &variables).unwrap();
        assert_eq!((by_env.url.as_str(), by_env.namespace.as_str()), ("file:///env", "e"));
        let by_flag = resolve(&["-b", "p", "--namespace", "f"], &variables).unwrap();
        assert_eq!((by_flag.url.as_str(), by_flag.namespace.as_str()), ("file:///from-profile", "f"));
        assert_eq!(by_flag.profile.as_deref(), Some("p"));
    }

    #[test]
    fn a_profile_that_is_not_there_is_named() {
        let failure = resolve(&["-b", "prod"], &[("XDG_CONFIG_HOME", "/nonexistent")]).unwrap_err();
        assert_eq!(failure.code, 78);
        assert!(failure.message.contains("prod"), "{}", failure.message);
        let looked_at = "(/nonexistent/leasehold/config.toml, /etc/leasehold/config.toml)";
        let is_set_up = Path::new("/etc/leasehold/config.toml").exists();
        assert!(is_set_up || failure.message.ends_with(looked_at), "{}", failure.message);
        // By that path it would be made for one user, and file: would lead all others there.
        assert!(!failure.hint.unwrap_or_default().contains("/var/lib/leasehold"));
        assert_eq!(resolve(&["--config", "/nonexistent.toml"], &[]).unwrap_err().code, 78);
    }
}
