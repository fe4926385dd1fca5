//! What the workspace depends on: licences that users can live with, nothing that is banned, and little of it by default.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Command;

use serde_json::Value;

/// One of these must be among the choices of each part of a licence.
const ALLOWED: [&str; 9] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "Unicode-3.0",
    "Zlib",
];
/// TLS comes from rustls alone, so that a static binary needs no library of the system.
const BANNED: [&str; 3] = ["openssl-sys", "native-tls", "aws-lc-sys"];
/// How many crates the library needs with its default features, itself included.
const MOST_BY_DEFAULT: usize = 60;

fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Whether an expression such as `(MIT OR Apache-2.0) AND Unicode-3.0` leaves a choice that is allowed.
fn is_allowed(licence: &str) -> bool {
    let parts = licence.replace('/', " OR ");
    parts.split(" AND ").all(|part| {
        part.trim_matches(['(', ')', ' '])
            .split(" OR ")
            .any(|choice| ALLOWED.contains(&choice.trim_matches(['(', ')', ' '])))
    })
}

#[test]
fn licences_are_allowed_and_nothing_is_banned() {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--all-features"])).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{} packages", packages.len());
    let problems: Vec<String> = packages
        .iter()
        .filter_map(|package| {
            let (name, licence) = (package["name"].as_str().unwrap(), package["license"].as_str().unwrap_or("none"));
            (!is_allowed(licence) || BANNED.contains(&name)).then(|| format!("{name}: {licence}"))
        })
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(!is_allowed("GPL-3.0-only") && !is_allowed("MIT AND GPL-2.0"));
}

#[test]
fn the_library_needs_few_crates_by_default() {
    let tree = cargo(&["tree", "-p", "leasehold", "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let mut crates: Vec<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    crates.sort_unstable();
    crates.dedup();
    assert!(crates.len() <= MOST_BY_DEFAULT, "{} crates: {crates:#?}", crates.len());
    for server in ["redis v", "tokio-postgres v", "rustls v"] {
        assert!(!crates.iter().any(|one| one.starts_with(server)), "{server} is needed without its feature");
    }
}
