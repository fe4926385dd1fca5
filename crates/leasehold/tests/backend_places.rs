//! A backend is a folder: CONTRIBUTING lists in six steps every place that one touches, and no other place names it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where the code of the product, its tests kit and its manifests are; each test may name the backends that it tests.
const LOOKED_AT: [&str; 4] = ["crates", "bench", "examples", ".ci"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The features of the library that are backends.
fn backends() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("crates/leasehold/Cargo.toml")).unwrap();
    let all = manifest.lines().find_map(|line| line.strip_prefix("all-backends = [")).unwrap();
    all.trim_end_matches(']').split(", ").map(|name| name.trim_matches('"').to_owned()).collect()
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if !["target", "tests", "benches", "examples"].iter().any(|skipped| name == *skipped) {
                files_below(&path, found);
            }
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "toml") || name == "run" {
            found.push(path);
        }
    }
}

/// Whether a file builds a backend in, or reaches into its module, alone or in a group of imports.
fn names(path: &str, text: &str, backend: &str) -> bool {
    let code = |line: &&str| !line.trim_start().starts_with("//");
    if text.lines().filter(code).any(|line| line.contains(&format!("feature = \"{backend}\""))) {
        return true;
    }
    let is_word = |text: &str| text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == backend);
    if path.starts_with(".ci/") {
        return is_word(text);
    }
    if path.ends_with("Cargo.toml") {
        return text.lines().any(|line| line.starts_with("leasehold = ") && is_word(line));
    }
    let code: Vec<&str> = text.lines().filter(code).collect();
    let code = code.join(" ");
    code.match_indices("backends::").any(|(at, start)| {
        let rest = &code[at + start.len()..];
        match rest.strip_prefix('{') {
            Some(group) => first_level(group).any(|word| word == backend),
            None => rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next() == Some(backend),
        }
    })
}

/// The first words of the parts of a group of imports, up to its end.
fn first_level(group: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    let end = group.find(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth < 0
    });
    let mut depth = 0_i32;
    let parts = group[..end.unwrap_or(group.len())].split(move |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts.filter_map(|part| part.trim().split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next())
}

#[test]
fn adding_a_backend_touches_the_places_that_contributing_lists() {
    let (root, backends) = (root(), backends());
    assert!(backends.len() >= 5, "{backends:?}");
    let mut files = Vec::new();
    for folder in LOOKED_AT {
        files_below(&root.join(folder), &mut files);
    }
    assert!(files.len() > 200, "only {} files were found", files.len());
    let mut elsewhere = Vec::new();
    for file in files {
        let path = file.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).unwrap();
        for backend in &backends {
            let own = [
                format!("crates/leasehold/src/backends/{backend}/"),
                String::from("crates/leasehold/src/backends/mod.rs"),
                String::from("crates/leasehold/Cargo.toml"),
                String::from("crates/leasehold-testkit/"),
            ];
            // What measures one backend, and what only one of them has.
            let exceptions = [
                ("bench/", backend.as_str()),
                // The suite compares the others with it.
                ("crates/leasehold-conformance/Cargo.toml", "memory"),
                // Its test has the backend fail.
                ("crates/leasehold-cli/src/run_command/lock_request.rs", "memory"),
                ("crates/leasehold-cli/src/settings.rs", "file"),
                ("crates/leasehold-cli/src/paste.rs", "file"),
                ("crates/leasehold-cli/src/commands/mod.rs", "file"),
                ("crates/leasehold-cli/src/commands/init.rs", "file"),
                ("crates/leasehold-cli/src/commands/init.rs", "postgres"),
                ("crates/leasehold/src/backends/redlock/", "memory"),
            ];
            let is_own = own.iter().any(|place| path.starts_with(place.as_str()));
            let is_exception = exceptions.iter().any(|(place, of)| path.starts_with(place) && of == backend);
            if !is_own && !is_exception && names(&path, &text, backend) {
                elsewhere.push(format!("{path} names {backend}"));
            }
        }
    }
    assert!(elsewhere.is_empty(), "{elsewhere:#?}");

    let contributing = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    let list = contributing.split("\n### In this repository\n").nth(1).unwrap().split("\n### ").next().unwrap();
    let steps = list.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count();
    assert!((1..=6).contains(&steps), "{steps} steps are listed");
    for place in
        ["backends/NAME/", "backends/mod.rs", "leasehold/Cargo.toml", "conformance/tests/NAME.rs", "testkit/src/NAME"]
    {
        assert!(list.contains(place), "CONTRIBUTING does not list {place}");
    }
    for backend in &backends {
        let suite = root.join(format!("crates/leasehold-conformance/tests/{backend}.rs"));
        assert!(suite.exists(), "{backend} has no {}", suite.display());
    }
}

#[test]
fn a_backend_that_is_named_elsewhere_is_found() {
    for text in [
        "use leasehold::backends::redis::RedisBackend;",
        "use leasehold::{backends::{file::{A, B},\n    redis::C}, Lock};",
        "#[cfg(feature = \"redis\")]",
    ] {
        assert!(names("crates/x/src/lib.rs", text, "redis"), "{text}");
    }
    assert!(!names("crates/x/src/lib.rs", "use leasehold::backends::{file::{redis}, memory};", "redis"));
    assert!(names("crates/x/Cargo.toml", "leasehold = { features = [\"file\", \"redis\"] }", "redis"));
    assert!(names(".ci/run", "for features in memory redis; do", "redis"));
}
