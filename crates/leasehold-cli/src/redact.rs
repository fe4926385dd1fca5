//! Takes secrets out of URLs before anybody sees them.

/// What stands in the place of a secret.
const HIDDEN: &str = "***";

/// The URL without passwords: `postgres://app:***@db/prod`.
///
/// When it cannot be told where a password ends, more is hidden rather than less.
pub(crate) fn url(text: &str) -> String {
    let (address, query) = match text.split_once('?') {
        // A question mark inside a badly written password must not end the search for it.
        Some((_, query)) if query.contains('@') => (text, None),
        Some((address, query)) => (address, Some(query)),
        None => (text, None),
    };
    let mut shown = address_without_secrets(address);
    if let Some(query) = query {
        shown.push('?');
        shown.push_str(&query.split('&').map(parameter).collect::<Vec<_>>().join("&"));
    }
    shown
}

/// The URL to paste, which leaves its passwords out: `postgres://app@db/prod`.
pub(crate) fn without_passwords(text: &str) -> String {
    let safe = url(text);
    let (address, query) = safe.split_once('?').unwrap_or((safe.as_str(), ""));
    let address = address.replace("://:***@", "://").replace(",:***@", ",").replace(":***@", "@");
    let parameters: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty() && !pair.ends_with("=***")).collect();
    let left = if parameters.is_empty() { address } else { format!("{address}?{}", parameters.join("&")) };
    // The end of a password could not be found.
    if left.contains(HIDDEN) { safe } else { left }
}

/// The text with every appearance of the URL, and of its password, made safe.
pub(crate) fn scrub(text: &str, secret_url: &str) -> String {
    let safe = url(secret_url);
    if safe == secret_url {
        return text.to_owned();
    }
    let mut scrubbed = text.replace(secret_url, &safe);
    for secret in secrets(secret_url) {
        scrubbed = without(&scrubbed, &secret);
    }
    scrubbed
}

/// The text without the secret. Replaces whole words only: masking part of a word would reveal the secret.
fn without(text: &str, secret: &str) -> String {
    let (mut safe, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(secret) {
        let (before, after) = (&rest[..at], &rest[at + secret.len()..]);
        let joins = |near: Option<char>, edge: Option<char>| {
            near.is_some_and(char::is_alphanumeric) && edge.is_some_and(char::is_alphanumeric)
        };
        let before_it = before.chars().next_back().or_else(|| safe.chars().next_back());
        let inside = joins(before_it, secret.chars().next()) || joins(after.chars().next(), secret.chars().next_back());
        safe.push_str(before);
        safe.push_str(if inside { secret } else { HIDDEN });
        rest = after;
    }
    safe + rest
}

/// The text with every URL in it made safe, whoever wrote it.
pub(crate) fn redact_urls(text: &str) -> String {
    if !text.contains("://") {
        return text.to_owned();
    }
    let is_edge = |c: char| c.is_whitespace() || "\"'`()<>".contains(c);
    text.split_inclusive(is_edge)
        .map(|word| {
            let bare = word.trim_end_matches(is_edge);
            if bare.contains("://") { format!("{}{}", url(bare), &word[bare.len()..]) } else { word.to_owned() }
        })
        .collect()
}

fn address_without_secrets(address: &str) -> String {
    let Some(last_at) = address.rfind('@') else {
        return address.to_owned();
    };
    let start = match address.find("://") {
        Some(at) => at + 3,
        None => address.find(':').map_or(0, |at| at + 1),
    };
    if start > last_at {
        return address.to_owned();
    }
    let (scheme, rest) = address.split_at(start);
    let authority = &rest[..rest.find('/').unwrap_or(rest.len())];
    let parts: Vec<&str> = authority.split(',').collect();
    let last_with_user = parts.iter().rposition(|part| part.contains('@'));
    let is_plain = address.len() == start + authority.len() || !rest[authority.len()..].contains('@');
    let all_have_users = last_with_user.is_some_and(|last| parts[..=last].iter().all(|part| part.contains('@')));
    if !is_plain || !all_have_users {
        return format!("{scheme}{HIDDEN}{}", &address[last_at..]);
    }
    let hosts: Vec<String> = parts.iter().map(|part| host_without_password(part)).collect();
    format!("{scheme}{}{}", hosts.join(","), &rest[authority.len()..])
}

fn host_without_password(part: &str) -> String {
    let Some((user, host)) = part.rsplit_once('@') else {
        return part.to_owned();
    };
    match user.split_once(':') {
        Some((name, _)) => format!("{name}:{HIDDEN}@{host}"),
        None => part.to_owned(),
    }
}

fn parameter(pair: &str) -> String {
    match pair.split_once('=') {
        Some((key, _)) if is_secret(key) => format!("{key}={HIDDEN}"),
        _ => pair.to_owned(),
    }
}

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let names_a_place = key.ends_with("_file") || key.ends_with("_env");
    !names_a_place && ["pass", "pwd", "secret", "token", "auth"].iter().any(|word| key.contains(word))
}

/// The secrets of a URL one by one, long enough to be replaced in other text.
fn secrets(text: &str) -> Vec<String> {
    let (address, query) = text.split_once('?').unwrap_or((text, ""));
    let of_hosts = address.rsplit_once('@').into_iter().flat_map(|(users, _)| {
        users.split([',', '/', '@']).filter_map(|part| part.split_once(':').map(|(_, secret)| secret.to_owned()))
    });
    let of_query = query
        .split('&')
        .filter_map(|pair| pair.split_once('=').filter(|(key, _)| is_secret(key)).map(|(_, value)| value.to_owned()));
    of_hosts.chain(of_query).filter(|secret| secret.len() > 2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_url_loses_its_password() {
        for (given, shown) in [
            ("file:", "file:"),
            ("file:///var/lib/leasehold?fsync=1&mode=0660", "file:///var/lib/leasehold?fsync=1&mode=0660"),
            ("memory:tests", "memory:tests"),
            ("postgres://app:s3cret@db/prod", "postgres://app:***@db/prod"),
            ("postgres://locks@db.internal/locks", "postgres://locks@db.internal/locks"),
            ("postgres://app:s3cret@h1:5432,app:s3cret@h2:5432/db", "postgres://app:***@h1:5432,app:***@h2:5432/db"),
            ("postgres://db/x?password=s3cret&sslmode=require", "postgres://db/x?password=***&sslmode=require"),
            ("postgres://db/x?password_file=/run/secret", "postgres://db/x?password_file=/run/secret"),
            ("redis://:s3cret@cache:6379/0", "redis://:***@cache:6379/0"),
            ("rediss://user:s3cret@[::1]:6379", "rediss://user:***@[::1]:6379"),
            ("redis+sentinel://:s3cret@s1,s2/mymaster", "redis+sentinel://:***@s1,s2/mymaster"),
            ("redis+cluster://u:s3cret@h1,u:s3cret@h2", "redis+cluster://u:***@h1,u:***@h2"),
            ("redlock://:s3cret@h1:6379,:s3cret@h2:6379/0", "redlock://:***@h1:6379,:***@h2:6379/0"),
            ("etcd://root:s3cret@h1:2379,h2:2379/prefix", "etcd://root:***@h1:2379,h2:2379/prefix"),
            ("https://ops:s3cret@locks.internal/x?token=s3cret", "https://ops:***@locks.internal/x?token=***"),
            // Badly written ones: more is hidden, never less.
            ("postgres://app:s3cret@s3cret@db/prod", "postgres://app:***@db/prod"),
            ("postgres://app:s3cret/s3cret@db/prod", "postgres://***@db/prod"),
            ("redis://:s3cret,s3cret@h", "redis://***@h"),
            ("redis://:s3cret?s3cret@h/0", "redis://:***@h/0"),
            ("redis:app:s3cret@h", "redis:app:***@h"),
            ("redlock://h1:6379,:s3cret@h2:6379/0", "redlock://***@h2:6379/0"),
        ] {
            let safe = url(given);
            assert!(!safe.contains("s3cret"), "{given} shows as {safe}");
            assert_eq!(safe, shown);
        }
    }

    #[test]
    fn a_url_to_paste_has_no_password_and_no_mask() {
        for (given, pasted) in [
            ("file:", "file:"),
            ("redis://cache:6379/0?prefix=a:", "redis://cache:6379/0?prefix=a:"),
            ("redis://:s3cret@cache:6379/0", "redis://cache:6379/0"),
            ("redlock://:s3cret@h1,u:s3cret@h2,:s3cret@h3/0", "redlock://h1,u@h2,h3/0"),
            ("postgres://app:s3cret@db/prod?sslmode=require", "postgres://app@db/prod?sslmode=require"),
            ("postgres://db/x?password=s3cret&sslmode=require", "postgres://db/x?sslmode=require"),
            ("postgres://db/x?password=s3cret", "postgres://db/x"),
            ("redis://:s3cret,s3cret@h", "redis://***@h"),
        ] {
            assert_eq!(without_passwords(given), pasted);
        }
    }

    #[test]
    fn urls_within_text_are_made_safe() {
        assert_eq!(
            redact_urls("cannot open 'postgres://app:s3cret@db/prod' (or redis://:s3cret@h)"),
            "cannot open 'postgres://app:***@db/prod' (or redis://:***@h)"
        );
        assert_eq!(redact_urls("a@b: c"), "a@b: c");
    }

    #[test]
    fn a_message_that_quotes_the_url_is_scrubbed() {
        let given = "postgres://app:s3cret@db/prod?token=t0ken";
        let message = format!("cannot open {given}: password s3cret, token t0ken refused");
        let safe = scrub(&message, given);
        assert!(!safe.contains("s3cret") && !safe.contains("t0ken"), "{safe}");
        assert!(safe.contains("postgres://app:***@db/prod"), "{safe}");
    }

    #[test]
    fn a_word_that_only_contains_the_password_does_not_tell_it() {
        let message = "unknown backend; own, (own) and :own@ are not shown";
        let safe = scrub(message, "postgers://owner:own@db/prod");
        assert_eq!(safe, "unknown backend; ***, (***) and :***@ are not shown");
    }
}
