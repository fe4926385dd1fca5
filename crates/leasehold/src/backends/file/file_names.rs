//! File names for resource names: readable where possible, never colliding.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::{backend::options::percent_decoded, lease::Resource};

/// Longer names are stored under their hash: a file name has at most 255 bytes.
const LONGEST: usize = 200;
const SUFFIX: &str = ".json";

/// The name of the resource's record file.
pub(super) fn file_name(resource: &Resource) -> String {
    let mut encoded = String::new();
    for (at, byte) in resource.as_str().bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || (byte == b'.' && at > 0);
        if plain {
            encoded.push(char::from(byte));
        } else {
            let _infallible = write!(encoded, "%{byte:02X}");
        }
    }
    if encoded.len() > LONGEST {
        encoded.clear();
        encoded.push('~');
        for byte in Sha256::digest(resource.as_str()) {
            let _infallible = write!(encoded, "{byte:02x}");
        }
    }
    encoded + SUFFIX
}

/// What a file in the records' directory is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileName {
    /// The record of this resource.
    Of(Resource),
    /// The record of a resource with a long name, which only the record contains. The name's hash begins with this
    /// byte.
    Hashed(u8),
    /// Not a record.
    Other,
}

/// Parses the name of a file in the records' directory.
pub(super) fn parse(name: &str) -> FileName {
    let Some(encoded) = name.strip_suffix(SUFFIX).filter(|encoded| !encoded.starts_with('.')) else {
        return FileName::Other;
    };
    if let Some(hash) = encoded.strip_prefix('~') {
        let first = hash.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        return first.map_or(FileName::Other, FileName::Hashed);
    }
    let decoded = percent_decoded(encoded).and_then(|bytes| String::from_utf8(bytes).ok());
    let resource = decoded.and_then(|name| Resource::new(name).ok());
    resource.filter(|resource| file_name(resource) == name).map_or(FileName::Other, FileName::Of)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn odd_names_make_safe_distinct_file_names_that_read_back() {
        let long = "x".repeat(Resource::MAX_BYTES);
        let wide = "ü".repeat(Resource::MAX_BYTES / 2);
        let names =
            ["a", "..", ".", "a/b", "a%2Fb", "../../etc/passwd", "~a", ".hidden", "ключ", "a b", "A", &long, &wide];
        let mut seen = HashSet::new();
        for name in names {
            let resource = Resource::new(name).unwrap();
            let file = file_name(&resource);
            assert!(file.len() <= 210 && !file.contains('/') && !file.starts_with('.'), "{file}");
            assert!(seen.insert(file.clone()), "{file}");
            match parse(&file) {
                FileName::Of(back) => assert_eq!(back, resource),
                other => {
                    let first = Sha256::digest(name)[0];
                    assert!(other == FileName::Hashed(first) && name.len() > 200, "{name}: {other:?}");
                }
            }
        }
    }

    #[test]
    fn a_name_that_file_name_never_creates_is_not_a_record() {
        for name in [".new-x", "a", "a%2.json", "a%zz.json", "%61.json", "a b.json", ".json", "%FF.json", "~x.json"] {
            assert_eq!(parse(name), FileName::Other, "{name}");
        }
    }
}
