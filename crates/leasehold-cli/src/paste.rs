//! Commands for people to paste, which mean the same locks in whichever shell they are pasted.

use std::{
    io::{IsTerminal, stderr},
    path::{Path, PathBuf, absolute},
};

use leasehold::backends::file::DefaultDirectory;

use crate::{redact, shell, variables::Environment};

/// A URL with a password goes by the name of the variable that has it: where the variable is not set, the command
/// fails instead of looking at other locks.
const BY_VARIABLE: &str = "\"$LEASEHOLD_URL\"";

/// Where locks live, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypedPlace<'a> {
    /// `--config`, or the config file that says where
    pub(crate) config: Option<&'a Path>,
    /// `-b`
    pub(crate) backend: Option<&'a str>,
    /// `--namespace`
    pub(crate) namespace: Option<&'a str>,
    /// The URL that all of it led to, unless the command line was rejected before.
    pub(crate) url: Option<&'a str>,
}

/// Who pastes the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PastedBy {
    /// The user who sits at this terminal.
    ThisUser,
    /// Whoever reads the log or the mail that it is printed to.
    Anybody,
}

impl PastedBy {
    /// Of standard error, now.
    pub(crate) fn of_this_process() -> Self {
        if stderr().is_terminal() { Self::ThisUser } else { Self::Anybody }
    }
}

impl TypedPlace<'_> {
    /// The beginning of a command to paste: `leasehold -b redis://cache --namespace billing `. Has no password.
    ///
    /// The environment that counts here may be that of this command alone, or of cron, so the flags repeat it.
    pub(crate) fn command(self, env: Environment<'_>, by: PastedBy) -> String {
        let variable = |name| env(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty());
        let by_variable = variable("LEASEHOLD_URL");
        let given = self.backend.or(by_variable.as_deref());
        let is_profile = given.is_none_or(|backend| !backend.contains(':'));
        let url = self.url.or(given.filter(|_| !is_profile));
        let directory = url.filter(|_| given.is_none() || !is_profile).and_then(|url| directory_url(url, env, by));
        let backend = directory.as_deref().or(given);
        let (mut before, mut words) = (String::new(), Vec::new());

        let from_env = || env("LEASEHOLD_CONFIG").map(PathBuf::from).filter(|_| is_profile);
        if let Some(config) = self.config.map(Path::to_owned).or_else(from_env) {
            let config = absolute(&config).unwrap_or(config);
            words.push(format!("--config {} ", shell::word(&config.to_string_lossy())));
        }
        if let Some(backend) = backend {
            let has_secret = redact::url(backend) != backend;
            if has_secret && by_variable.as_deref() == Some(backend) {
                words.push(format!("-b {BY_VARIABLE} "));
            } else {
                before.push_str(if has_secret { password_variable(backend) } else { "" });
                words.push(format!("-b {} ", shell::word(&redact::without_passwords(backend))));
            }
        }
        for name in url.map(left_to_environment).unwrap_or_default() {
            before.extend(variable(name).map(|value| format!("{name}={} ", shell::word(&value))));
        }
        let namespace = self.namespace.map(str::to_owned).or_else(|| variable("LEASEHOLD_NAMESPACE"));
        if let Some(namespace) = namespace {
            words.push(format!("--namespace {} ", shell::word(&namespace)));
        }
        format!("{before}leasehold {}", words.concat())
    }
}

/// Whether this config file may be another one, or none, where a command is pasted.
pub(crate) fn is_config_of_user(config: &Path, env: Environment<'_>, by: PastedBy) -> bool {
    !config.starts_with("/etc") && (by == PastedBy::Anybody || env("XDG_CONFIG_HOME").is_some())
}

/// The URL of the directory that this URL means here, if it is another one for another user or in another shell.
fn directory_url(url: &str, env: Environment<'_>, by: PastedBy) -> Option<String> {
    let rest = url.strip_prefix("file:")?;
    let (path, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    let directory = matches!(path, "" | "//").then(DefaultDirectory::find)?.ok()?;
    let differs = match directory {
        DefaultDirectory::User(_) => by == PastedBy::Anybody || env("XDG_STATE_HOME").is_some(),
        _ => env("LEASEHOLD_MACHINE_DIR").is_some(),
    };
    let encoded = directory.path().to_str()?.replace('%', "%25").replace('?', "%3F");
    differs.then(|| format!("file://{encoded}{query}"))
}

/// The variables that say what this URL of Postgres leaves out; none for other backends.
fn left_to_environment(url: &str) -> Vec<&'static str> {
    let Some(rest) = ["postgres:", "postgresql:"].iter().find_map(|scheme| url.strip_prefix(scheme)) else {
        return Vec::new();
    };
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let address = address.strip_prefix("//").unwrap_or(address);
    let (authority, database) = address.split_once('/').unwrap_or((address, ""));
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let has = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
    [
        ("PGHOST", !host.split(':').next().unwrap_or_default().is_empty() || has("host") || has("hostaddr")),
        ("PGPORT", host.contains(':') || has("port")),
        ("PGUSER", !user.is_empty() || has("user")),
        ("PGDATABASE", !database.is_empty() || has("dbname")),
    ]
    .into_iter()
    .filter_map(|(name, is_given)| (!is_given).then_some(name))
    .collect()
}

/// The variable that gives the password which this URL loses when it is printed.
fn password_variable(url: &str) -> &'static str {
    match url.split(':').next() {
        Some("postgres" | "postgresql") => "PGPASSWORD=… ",
        _ => "REDISCLI_AUTH=… ",
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::args::Global;

    fn command(flags: &[&str], variables: &[(&str, &str)]) -> String {
        let cli = crate::args::tests::parse(&[flags, &["list"]].concat());
        let env = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        let Global { config, backend, namespace, .. } = &cli.global;
        let url = backend.as_deref().or(variables.iter().find(|(key, _)| *key == "LEASEHOLD_URL").map(|(_, url)| *url));
        let place = TypedPlace {
            config: config.as_deref(),
            backend: backend.as_deref(),
            namespace: namespace.as_deref(),
            url: url.filter(|url| url.contains(':')),
        };
        place.command(&env, PastedBy::ThisUser)
    }

    #[test]
    fn what_was_typed_is_repeated_without_its_password() {
        for (flags, pasted) in [
            (&[][..], "leasehold "),
            (&["-b", "redis://cache"], "leasehold -b redis://cache "),
            (
                &["-b", "prod", "--config", "/my files/c", "--namespace", "n"],
                "leasehold --config '/my files/c' -b prod --namespace n ",
            ),
            (&["-b", "redis://:s3cret@cache/1"], "REDISCLI_AUTH=… leasehold -b redis://cache/1 "),
            (&["-b", "postgres://a:s3cret@db/x"], "PGPASSWORD=… leasehold -b postgres://a@db/x "),
        ] {
            assert_eq!(command(flags, &[]), pasted);
        }
    }

    #[test]
    fn what_the_environment_said_is_repeated_too() {
        let secret = "postgres://a:s3cret@db/x";
        for (flags, variables, pasted) in [
            (&[][..], &[("LEASEHOLD_URL", "redis://cache")][..], "leasehold -b redis://cache "),
            (&[], &[("LEASEHOLD_URL", "file:///srv/my locks")], "leasehold -b 'file:///srv/my locks' "),
            (&[], &[("LEASEHOLD_NAMESPACE", "n")], "leasehold --namespace n "),
            (&["-b", "file:"], &[("LEASEHOLD_NAMESPACE", "n")], "leasehold -b file: --namespace n "),
            (
                &["-b", "file:", "--namespace", "typed"],
                &[("LEASEHOLD_URL", "redis://cache"), ("LEASEHOLD_NAMESPACE", "n")],
                "leasehold -b file: --namespace typed ",
            ),
            (&[], &[("LEASEHOLD_URL", secret)], "leasehold -b \"$LEASEHOLD_URL\" "),
            // As it was pasted.
            (&["-b", secret], &[("LEASEHOLD_URL", secret)], "leasehold -b \"$LEASEHOLD_URL\" "),
            (&["-b", secret], &[("LEASEHOLD_URL", "file:")], "PGPASSWORD=… leasehold -b postgres://a@db/x "),
            // Only a profile needs the file that has it.
            (&[], &[("LEASEHOLD_CONFIG", "/c"), ("LEASEHOLD_URL", "file:")], "leasehold -b file: "),
            (&[], &[("LEASEHOLD_CONFIG", "/c"), ("LEASEHOLD_URL", "prod")], "leasehold --config /c -b prod "),
            (&[], &[("LEASEHOLD_CONFIG", "/c")], "leasehold --config /c "),
            (&[], &[("LEASEHOLD_URL", "")], "leasehold "),
        ] {
            assert_eq!(command(flags, variables), pasted);
        }
    }

    #[test]
    fn what_the_url_of_a_database_leaves_out_is_repeated() {
        let variables = [("PGHOST", "db"), ("PGPORT", "5433"), ("PGUSER", "a b"), ("PGDATABASE", "x")];
        for (url, before) in [
            ("postgres:", "PGHOST=db PGPORT=5433 PGUSER='a b' PGDATABASE=x "),
            ("postgres:///app", "PGHOST=db PGPORT=5433 PGUSER='a b' "),
            ("postgres://u@h/app", "PGPORT=5433 "),
            ("postgresql://h:1", "PGUSER='a b' PGDATABASE=x "),
            ("'postgres:///app?host=/run&port=1&user=u'", ""),
            ("postgres://u@h:1/app", ""),
            ("redis://h", ""),
        ] {
            let pasted = command(&["-b", url.trim_matches('\'')], &variables);
            assert_eq!(pasted, format!("{before}leasehold -b {url} "));
        }
    }

    #[test]
    fn a_relative_config_file_is_found_from_elsewhere_too() {
        let here = std::env::current_dir().unwrap();
        let pasted = format!("leasehold --config {} ", shell::word(&here.join("c.toml").to_string_lossy()));
        assert_eq!(command(&["--config", "c.toml"], &[]), pasted);
        assert_eq!(command(&[], &[("LEASEHOLD_CONFIG", "c.toml")]), pasted);
    }
}
