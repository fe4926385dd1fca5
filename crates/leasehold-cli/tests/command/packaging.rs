//! Completions, manual pages, version.

use std::process::Command;

use crate::place::{Place, Ran};

#[test]
fn each_shell_gets_a_script() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish"] {
        let ran = place.run(&["completions", shell]);
        ran.assert_code(0);
        assert!(ran.stdout.contains("LEASEHOLD_COMPLETE") && ran.stdout.contains("leasehold"), "{ran:?}");
    }
}

/// What the shell would offer after these words.
fn completed(place: &Place, words: &[&str]) -> Vec<String> {
    let mut command = place.leasehold(&[&["--", "leasehold"], words].concat());
    command.env("LEASEHOLD_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_IFS", "\n");
    let ran = Ran::of(command);
    ran.assert_code(0);
    ran.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn live_lock_names_complete() {
    let place = Place::new();
    let _one = place.hold("nightly-report");
    let _two = place.hold("deploy:prod");
    assert_eq!(completed(&place, &["inspect", "ni"]), ["nightly-report"]);
    assert_eq!(completed(&place, &["run", "-n", "dep"]), ["deploy:prod"]);
    assert!(completed(&place, &["evict", ""]).contains(&String::from("nightly-report")));
    assert_eq!(completed(&place, &["--namespace", "other", "inspect", "ni"]), [""; 0]);
    assert!(completed(&place, &["his"]).contains(&String::from("history")));
    assert!(completed(&place, &["run", "--kill-m"]).contains(&String::from("--kill-mode")));
}

#[test]
fn bash_accepts_its_script() {
    let place = Place::new();
    let script = place.run(&["completions", "bash"]).stdout;
    let output =
        Command::new("bash").args(["--norc", "-c", &format!("{script}\ncomplete -p leasehold")]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let place = Place::new();
    let page = place.run(&["man"]);
    page.assert_code(0);
    assert!(page.stdout.contains(".TH") && page.stdout.contains("exactly one place"), "{page:?}");
    assert!(place.run(&["man", "run"]).stdout.contains("conflict"));
    let out = place.path("man");
    place.run(&["man", "--out", out.to_str().unwrap()]).assert_code(0);
    for name in ["leasehold.1", "leasehold-run.1", "leasehold-evict.1", "leasehold-doctor.1"] {
        assert!(out.join(name).metadata().unwrap().len() > 100, "{name}");
    }
}

#[test]
fn the_version_is_told() {
    let place = Place::new();
    assert_eq!(place.run(&["version"]).stdout, concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(place.run(&["version", "--json"]).json()["version"], env!("CARGO_PKG_VERSION"));
}
