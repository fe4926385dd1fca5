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
    assert_eq!(completed(&place, &["schema", "ni"]), [""; 0], "these are names of outputs");
    assert!(completed(&place, &["his"]).contains(&String::from("history")));
    assert!(completed(&place, &["run", "--kill-m"]).contains(&String::from("--kill-mode")));
}

/// What bash would offer for this line, with its words broken at colons.
fn bash_offers(place: &Place, line: &str) -> Vec<String> {
    let script = place.run(&["completions", "bash"]).stdout;
    let exe = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let words = line.replace(':', " : ");
    let ask = format!(
        "{script}\nCOMP_WORDS=({words}); COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9\n\
         [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=('')\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         _leasehold leasehold x y 2>/dev/null; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let mut command = place.command("bash");
    command.args(["--norc", "-c", &ask]).env("LEASEHOLD_URL", place.url());
    command.env("PATH", format!("{}:/usr/bin:/bin", exe.parent().unwrap().display()));
    let ran = Ran::of(command);
    ran.stdout.lines().map(|offer| offer.trim_end().to_owned()).collect()
}

#[test]
fn bash_completes_names_with_colons_and_the_command_after_two_dashes() {
    let place = Place::new();
    let _holder = place.hold("deploy:prod");
    assert_eq!(bash_offers(&place, "leasehold inspect dep"), ["deploy:prod"]);
    assert_eq!(bash_offers(&place, "leasehold inspect deploy:"), ["prod"]);
    assert_eq!(bash_offers(&place, "leasehold run -n deploy:pr"), ["prod"]);
    assert!(bash_offers(&place, "leasehold run x -- bas").contains(&String::from("bash")));
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
    assert!(page.stdout.contains(".TH") && page.stdout.contains("in one place at a time"), "{page:?}");
    assert!(place.run(&["man", "run"]).stdout.contains("conflict"));
    for command in ["run", "list", "doctor", "init"] {
        let page = place.run(&["man", command]).stdout;
        for section in ["EXIT STATUS", "ENVIRONMENT", "FILES"] {
            assert!(page.contains(&format!(".SH \"{section}\"\n")), "{section}: {page}");
        }
        assert!(!page.contains(".SH EXTRA"), "{page}");
    }
    let run = place.run(&["man", "run"]).stdout;
    let examples = run.split(".SH EXAMPLES\n.nf\n").nth(1).unwrap();
    assert!(examples.starts_with("leasehold run backup \\-\\- ./backup.sh"), "{examples}");
    let out = place.path("man");
    place.run(&["man", "--out", out.to_str().unwrap()]).assert_code(0);
    for name in ["leasehold.1", "leasehold-run.1", "leasehold-evict.1", "leasehold-doctor.1"] {
        assert!(out.join(name).metadata().unwrap().len() > 100, "{name}");
    }
}

#[test]
fn schemas_are_printed_by_name() {
    let place = Place::new();
    let names = place.run(&["schema"]).stdout;
    let files = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    assert_eq!(names.lines().count(), std::fs::read_dir(files).unwrap().count(), "each file has a name");
    for name in names.lines() {
        assert!(place.run(&["schema", name]).json()["properties"]["v"].is_object(), "{name}");
    }
    place.run(&["schema", "frobnicate"]).assert_code(64);
}

#[test]
fn help_is_about_the_command_and_slips_are_understood() {
    let place = Place::new();
    let run = place.run(&["help", "run"]);
    run.assert_code(0);
    assert_eq!(run.stdout, place.run(&["run", "--help"]).stdout);
    assert!(run.stdout.contains("--max-hold") && !run.stdout.contains("The config file"), "{run:?}");
    assert!(run.stdout.contains("Global options: -b URL|PROFILE"), "{run:?}");
    let all = place.run(&["help"]);
    all.assert_code(0);
    assert!(all.stdout.contains("The config file") && all.stdout.contains("history"), "{all:?}");
    assert_eq!(all.stdout, place.run(&["--help"]).stdout);
    for (typed, meant) in [("rnu", "run"), ("lits", "list"), ("histroy", "history"), ("inpsect", "inspect")] {
        let ran = place.run(&[typed]);
        ran.assert_code(64);
        assert!(ran.stderr.contains("similar") && ran.stderr.contains(&format!("'{meant}'")), "{ran:?}");
    }
}

#[test]
fn the_version_is_told() {
    let place = Place::new();
    assert_eq!(place.run(&["version"]).stdout, concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(place.run(&["version", "--json"]).json()["version"], env!("CARGO_PKG_VERSION"));
}
