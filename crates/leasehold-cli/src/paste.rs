//! Commands for people to paste, which mean the same locks in whichever shell they are pasted.

use std::path::{Path, PathBuf};

use crate::{args::Global, redact, shell, variables::Environment};

/// A URL with a password goes by the name of the variable that has it: where the variable is not set, the command
/// fails instead of looking at other locks.
const BY_VARIABLE: &str = "\"$LEASEHOLD_URL\"";

/// Where locks live, as far as the command line says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypedPlace<'a> {
    /// `--config`
    pub(crate) config: Option<&'a Path>,
    /// `-b`
    pub(crate) backend: Option<&'a str>,
    /// `--namespace`
    pub(crate) namespace: Option<&'a str>,
}

impl<'a> From<&'a Global> for TypedPlace<'a> {
    fn from(global: &'a Global) -> Self {
        Self {
            config: global.config.as_deref(),
            backend: global.backend.as_deref(),
            namespace: global.namespace.as_deref(),
        }
    }
}

impl TypedPlace<'_> {
    /// The beginning of a command to paste: `leasehold -b redis://cache --namespace billing `. Has no password.
    ///
    /// The environment that counts here may be that of this command alone, or of cron, so the flags repeat it.
    pub(crate) fn command(self, env: Environment<'_>) -> String {
        let variable = |name| env(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty());
        let by_variable = variable("LEASEHOLD_URL");
        let backend = self.backend.or(by_variable.as_deref());
        let (mut password, mut words) = ("", Vec::new());

        let is_profile = backend.is_none_or(|backend| !backend.contains(':'));
        let from_env = || env("LEASEHOLD_CONFIG").map(PathBuf::from).filter(|_| is_profile);
        if let Some(config) = self.config.map(Path::to_owned).or_else(from_env) {
            words.push(format!("--config {} ", shell::word(&config.to_string_lossy())));
        }
        if let Some(backend) = backend {
            let has_secret = redact::url(backend) != backend;
            if has_secret && by_variable.as_deref() == Some(backend) {
                words.push(format!("-b {BY_VARIABLE} "));
            } else {
                password = if has_secret { password_variable(backend) } else { "" };
                words.push(format!("-b {} ", shell::word(&redact::without_passwords(backend))));
            }
        }
        let namespace = self.namespace.map(str::to_owned).or_else(|| variable("LEASEHOLD_NAMESPACE"));
        if let Some(namespace) = namespace {
            words.push(format!("--namespace {} ", shell::word(&namespace)));
        }
        format!("{password}leasehold {}", words.concat())
    }
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

    fn command(flags: &[&str], variables: &[(&str, &str)]) -> String {
        let cli = crate::args::tests::parse(&[flags, &["list"]].concat());
        let env = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        TypedPlace::from(&cli.global).command(&env)
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
}
