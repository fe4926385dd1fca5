//! The parameters of a backend URL: `?name=value&…`.

use std::{fmt::Display, str::FromStr, time::Duration};

use crate::{Error, Result};

/// The parameters of a URL, taken one by one. A parameter that is never taken is an error.
///
/// ```
/// use leasehold::backend::UrlOptions;
///
/// let mut options = UrlOptions::parse("cas:jobs?shards=4&poll=50ms")?;
/// assert_eq!(options.path(), "jobs");
/// assert_eq!(options.take::<u32>("shards", "a number")?, Some(4));
/// let error = options.finish(&["shards"]).unwrap_err();
/// assert!(error.to_string().contains("poll"), "{error}");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct UrlOptions {
    scheme: String,
    path: String,
    parameters: Vec<(String, String)>,
}

impl UrlOptions {
    /// Parses `scheme:path?name=value&…` and decodes `%XX` in the values.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL without a scheme, a parameter given twice, or a bad `%XX`.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            Error::invalid_config("a backend URL begins with its scheme, such as file: or redis://host")
        })?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = Self { scheme: scheme.to_owned(), path: path.to_owned(), parameters: Vec::new() };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if options.parameters.iter().any(|(known, _)| known == name) {
                return Err(Error::invalid_config(format!("the URL has the parameter {name} twice")));
            }
            let value = percent_decoded(value)
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .ok_or_else(|| Error::invalid_config(format!("{name}={value} has a bad %XX; write a % as %25")))?;
            options.parameters.push((name.to_owned(), value));
        }
        Ok(options)
    }

    /// Returns the part between the scheme and the parameters, without decoding `%XX`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Removes this parameter and returns it as text.
    pub fn take_text(&mut self, name: &str) -> Option<String> {
        let at = self.parameters.iter().position(|(known, _)| known == name)?;
        Some(self.parameters.remove(at).1)
    }

    /// Removes this parameter and returns it parsed. If it cannot be parsed, the error names `form`, such as "a
    /// number", as the expected form.
    ///
    /// # Errors
    /// `InvalidConfig` if the value cannot be parsed.
    pub fn take<T: FromStr>(&mut self, name: &str, form: &str) -> Result<Option<T>> {
        self.take_with(name, form, |text| text.parse().ok())
    }

    /// Removes this parameter and returns it as a boolean: `1`, `true`, `0` or `false`.
    ///
    /// # Errors
    /// `InvalidConfig` for any other value.
    pub fn take_switch(&mut self, name: &str) -> Result<Option<bool>> {
        self.take_with(name, "0 or 1", |text| match text {
            "1" | "true" => Some(true),
            "0" | "false" => Some(false),
            _ => None,
        })
    }

    /// Removes this parameter and returns it as a duration: `250ms`, `3s`, `2m`.
    ///
    /// # Errors
    /// `InvalidConfig` if the value is not a duration.
    pub fn take_duration(&mut self, name: &str) -> Result<Option<Duration>> {
        self.take_with(name, "a duration such as 250ms, 3s or 2m", duration)
    }

    /// Removes this parameter and returns it parsed by `parse`, which returns `None` for an invalid value.
    ///
    /// # Errors
    /// `InvalidConfig`, naming the value and the expected form.
    pub fn take_with<T>(
        &mut self,
        name: &str,
        form: impl Display,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(text) = self.take_text(name) else { return Ok(None) };
        match parse(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(Error::invalid_config(format!("{name}={text} cannot be used: write {form}"))),
        }
    }

    /// Fails if any parameter was not taken. The error names it and the `known` parameters.
    ///
    /// # Errors
    /// `InvalidConfig` for a parameter that this backend does not have.
    pub fn finish(self, known: &[&str]) -> Result<()> {
        let Some((name, _)) = self.parameters.first() else { return Ok(()) };
        let known = match known {
            [] => String::from("it has none"),
            known => format!("it has {}", known.join(", ")),
        };
        Err(Error::invalid_config(format!("a {}: URL has no parameter {name}; {known}", self.scheme)))
    }
}

/// Reads `250ms`, `3s` or `2m`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    }
}

/// The bytes that `text` stands for; `None` when a `%` is not followed by two hexadecimal digits.
pub(crate) fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_once_and_the_rest_is_named() {
        let mut options = UrlOptions::parse("x:/a%20b?fsync=1&limit=250ms&note=a%26b&odd").unwrap();
        assert_eq!(options.path(), "/a%20b");
        assert_eq!(options.take_switch("fsync").unwrap(), Some(true));
        assert_eq!(options.take_duration("limit").unwrap(), Some(Duration::from_millis(250)));
        assert_eq!(options.take_text("note").as_deref(), Some("a&b"));
        assert_eq!(options.take_text("note"), None);
        let error = options.finish(&["fsync", "limit"]).unwrap_err().to_string();
        assert!(error.contains("odd") && error.contains("fsync, limit"), "{error}");
    }

    #[test]
    fn what_cannot_be_used_is_named_with_what_to_write() {
        for url in ["no scheme", "x:?a=1&a=2", "x:?a=%zz", "x:?a=%ff"] {
            assert!(UrlOptions::parse(url).is_err(), "{url}");
        }
        let error = UrlOptions::parse("x:?fsync=maybe").unwrap().take_switch("fsync").unwrap_err().to_string();
        assert!(error.contains("fsync=maybe") && error.contains("0 or 1"), "{error}");
    }
}
