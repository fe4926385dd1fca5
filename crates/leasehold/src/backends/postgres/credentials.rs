//! Passwords: where they come from, read again for every connection so that a changed one is used.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tokio_postgres::{Config, config::Host};

use crate::{Error, Result};

/// Where the password comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Password {
    /// The password of the URL or the configuration, if there is one.
    #[default]
    FromConfig,
    /// The first line of this file.
    File(PathBuf),
    /// This environment variable.
    Variable(String),
    /// `PGPASSWORD`, or what `PGPASSFILE` or `~/.pgpass` has for this server.
    Libpq,
}

impl Password {
    /// Returns a copy of `config` with the current password.
    pub(super) fn put_into(&self, config: &Config) -> Result<Config> {
        let password =
            match self {
                Self::FromConfig => None,
                Self::File(path) => Some(first_line(path)?),
                Self::Variable(name) => Some(env::var(name).map_err(|_| {
                    Error::invalid_config(format!("password_env={name} names a variable that is not set"))
                })?),
                Self::Libpq => match env_var("PGPASSWORD") {
                    Some(password) => Some(password),
                    None => look_up(config, env_var("PGPASSFILE"))?,
                },
            };
        let mut config = config.clone();
        if let Some(password) = password {
            config.password(password);
        }
        Ok(config)
    }
}

/// The value of an environment variable, unless it is empty.
pub(super) fn env_var(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The password that the password file has for this server.
fn look_up(config: &Config, pgpassfile: Option<String>) -> Result<Option<String>> {
    let path = match pgpassfile {
        Some(path) => PathBuf::from(path),
        None => match env::var_os("HOME") {
            Some(home) => PathBuf::from(home).join(".pgpass"),
            None => return Ok(None),
        },
    };
    let Ok(text) = fs::read_to_string(&path) else { return Ok(None) };
    if fs::metadata(&path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0) {
        return Err(Error::invalid_config(format!(
            "the password file {0} can be read by others; chmod 600 {0}",
            path.display()
        )));
    }
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        _ => String::from("localhost"),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let user = config.get_user().unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    Ok(text.lines().find_map(|line| password_for(line, [&host, &port, database, user])))
}

/// Returns the password of the line `host:port:database:user:password` if it matches this server.
fn password_for(line: &str, about: [&str; 4]) -> Option<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut()?.extend(characters.next()),
            other => fields.last_mut()?.push(other),
        }
    }
    let fits = fields.iter().zip(about).all(|(field, wanted)| field == "*" || field == wanted);
    if line.starts_with('#') || fields.len() != 5 || !fits { None } else { fields.pop() }
}

fn first_line(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).map_err(|error| {
        Error::invalid_config(format!("the password file {} cannot be read", path.display())).caused_by(error)
    })?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_file_answers_for_its_server_only() {
        let about = ["h", "5432", "db", "u"];
        assert_eq!(password_for("h:5432:db:u:p\\:w", about).as_deref(), Some("p:w"));
        assert_eq!(password_for("*:*:*:u:pw", about).as_deref(), Some("pw"));
        assert_eq!(password_for("other:*:*:*:pw", about), None);
        assert_eq!(password_for("# *:*:*:*:pw", about), None);
    }

    #[test]
    fn a_file_is_read_for_every_connection() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("password");
        let source = Password::File(path.clone());
        for password in ["old", "new"] {
            fs::write(&path, format!("{password}\nsecond line")).unwrap();
            let config = source.put_into(&Config::new()).unwrap();
            assert_eq!(config.get_password(), Some(password.as_bytes()));
        }
        fs::remove_file(&path).unwrap();
        assert!(source.put_into(&Config::new()).is_err());
    }
}
