//! The options of the file backend, parsed from its URL.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf, sync::Arc};

use super::DefaultDirectory;
use crate::{
    Error, Result,
    backend::{UrlOptions, check_namespace, options::percent_decoded},
    clock::Clock,
};

/// Where the leases are stored, and who may access them.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The directory that holds the namespaces.
    pub root: PathBuf,
    /// The namespace, which is the name of the subdirectory in use. Leases of different namespaces are independent.
    pub namespace: String,
    /// The mode of the files, if the directory is created here. The directory gets the same mode, and `x` for everyone
    /// who has `r`. `None` means `0o600`, or, in the machine-wide directory, the permissions of that directory.
    ///
    /// An existing directory keeps its mode; it is an error to set another one.
    pub mode: Option<u32>,
    /// Whether each change is synced to disk before the operation completes; off by default.
    pub fsync: bool,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// The default directory, if the URL has no path.
    pub(super) default_directory: Option<DefaultDirectory>,
}

impl FileOptions {
    /// Parses a URL: `file:`, `file:///path`, `file:/path?mode=0660&fsync=1`.
    ///
    /// A URL without a path means `/var/lib/leasehold` if that directory exists, and otherwise the user's own
    /// directory, `$XDG_STATE_HOME/leasehold` or `$HOME/.local/state/leasehold`. See [`DefaultDirectory`].
    ///
    /// # Errors
    /// `InvalidConfig` if the URL or the namespace cannot be used. A URL without a path can also fail as in
    /// [`DefaultDirectory::find`].
    pub fn from_url(url: &str, namespace: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut url_options = UrlOptions::parse(url)?;
        if !url.starts_with("file:") {
            return Err(Error::invalid_config(format!("{url} is not a file: URL; write file:///path")));
        }
        let (root, default_directory) = match url_options.path() {
            "" | "//" => {
                let default_directory = DefaultDirectory::find()?;
                (default_directory.path().to_owned(), Some(default_directory))
            }
            path => (absolute(url, path)?, None),
        };
        check_namespace(namespace)?;
        let form = "an octal file mode such as 0600 or 0660, without x bits";
        let mode = url_options.take_with("mode", form, file_mode)?;
        let fsync = url_options.take_switch("fsync")?.unwrap_or(false);
        url_options.finish(&["mode", "fsync"])?;
        Ok(Self { root, namespace: namespace.to_owned(), mode, fsync, clock, default_directory })
    }
}

fn absolute(url: &str, path: &str) -> Result<PathBuf> {
    let path = match path.strip_prefix("//") {
        None => path,
        Some(local) if local.starts_with('/') => local,
        Some(_) => {
            return Err(Error::invalid_config(format!(
                "{url} names a host; a file: URL is local and has three slashes: file:///path"
            )));
        }
    };
    if !path.starts_with('/') {
        return Err(Error::invalid_config(format!(
            "{url} is relative, so two processes may resolve it to different directories; write file:///path"
        )));
    }
    let decoded = percent_decoded(path)
        .filter(|bytes| !bytes.contains(&0))
        .ok_or_else(|| Error::invalid_config(format!("the path of {url} has a bad %XX; write a % itself as %25")))?;
    Ok(PathBuf::from(OsString::from_vec(decoded)))
}

fn file_mode(value: &str) -> Option<u32> {
    u32::from_str_radix(value, 8).ok().filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, clock::SystemClock};

    fn parse(url: &str) -> Result<FileOptions> {
        FileOptions::from_url(url, "default", Arc::new(SystemClock))
    }

    #[test]
    fn an_absolute_path_is_taken_with_one_or_three_slashes() {
        assert_eq!(parse("file:///var/lib/locks").unwrap().root, PathBuf::from("/var/lib/locks"));
        assert_eq!(parse("file:/var/lib/locks").unwrap().root, PathBuf::from("/var/lib/locks"));
        assert_eq!(parse("file:///a%20b%25").unwrap().root, PathBuf::from("/a b%"));
    }

    #[test]
    fn parameters_are_read_and_unknown_ones_named() {
        let options = parse("file:///x?mode=0660&fsync=1").unwrap();
        assert_eq!((options.mode, options.fsync), (Some(0o660), true));
        let error = parse("file:///x?sync=1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("sync") && error.to_string().contains("mode, fsync"), "{error}");
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for url in ["file:x", "file://host/x", "redis://x", "file:///%zz", "file:///%0", "file:///x%00", "file:./x"] {
            assert_eq!(parse(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
        for mode in ["0777", "0060", "8", "", "01660"] {
            assert!(parse(&format!("file:///x?mode={mode}")).is_err(), "{mode}");
        }
        for namespace in ["", ".", "..", ".new", "a/b", "ä", &"x".repeat(65)] {
            assert!(FileOptions::from_url("file:///x", namespace, Arc::new(SystemClock)).is_err(), "{namespace}");
        }
    }
}
