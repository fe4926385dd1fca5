//! The README's commands, run as printed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

const README: &str = include_str!("../../../README.md");

/// The commands of each console block, without their output.
fn blocks() -> Vec<Vec<&'static str>> {
    let console = README.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    console.map(|block| block.lines().filter_map(|line| line.strip_prefix("$ ")).collect()).collect()
}

/// A command as it is run here: the long hold is shortened, and there is no such lease to evict.
fn as_run(command: &str) -> String {
    let command = command.replace("--min-hold 45s", "--min-hold 50ms");
    let command = command.split(" #").next().unwrap_or_default();
    if command.contains(" evict ") { format!("{command} || test $? -eq 1") } else { command.to_owned() }
}

/// Gives every script that the README speaks of something to do.
fn scripts(folder: &Path) {
    for word in README.split_whitespace().filter_map(|word| word.strip_prefix("./")) {
        let path = folder.join(word.trim_end_matches(|c: char| !c.is_alphanumeric()));
        fs::write(&path, "#!/bin/sh\nexit 0\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn every_command_does_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    scripts(folder.path());
    let binary = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), env::var("PATH").unwrap());
    let mut ran = 0;
    for block in blocks() {
        // Building and installing is the other half of CI's work.
        let ours: Vec<String> = block
            .iter()
            .filter(|line| line.contains("leasehold ") && !line.starts_with("cargo "))
            .map(|c| as_run(c))
            .collect();
        if ours.is_empty() {
            continue;
        }
        ran += ours.len();
        let script = ours.join("\n");
        let output = Command::new("sh")
            .args(["-e", "-c", &script])
            .current_dir(folder.path())
            .env("PATH", &path)
            .env("XDG_STATE_HOME", folder.path())
            .env("LEASEHOLD_MACHINE_DIR", folder.path().join("machine"))
            .env_remove("LEASEHOLD_URL")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(ran >= 14, "only {ran} commands were found in the README");
}
