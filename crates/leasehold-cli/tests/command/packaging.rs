//! Completions, manual pages, version.

use std::{fs, path::PathBuf, process::Command};

use crate::sandbox::{Ran, Sandbox};

#[test]
fn each_shell_gets_a_script() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish"] {
        let ran = sandbox.run(&["completions", shell]);
        ran.assert_code(0);
        assert!(ran.stdout.contains("LEASEHOLD_COMPLETE") && ran.stdout.contains("leasehold"), "{ran:?}");
    }
}

/// What the shell would offer after these words.
fn completed(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    let mut command = sandbox.leasehold(&[&["--", "leasehold"], words].concat());
    command.env("LEASEHOLD_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_IFS", "\n");
    let ran = Ran::of(command);
    ran.assert_code(0);
    ran.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn live_lock_names_complete() {
    let sandbox = Sandbox::new();
    let _one = sandbox.hold("nightly-report");
    let _two = sandbox.hold("deploy:prod");
    assert_eq!(completed(&sandbox, &["inspect", "ni"]), ["nightly-report"]);
    assert_eq!(completed(&sandbox, &["run", "-n", "dep"]), ["deploy:prod"]);
    assert!(completed(&sandbox, &["evict", ""]).contains(&String::from("nightly-report")));
    assert_eq!(completed(&sandbox, &["--namespace", "other", "inspect", "ni"]), [""; 0]);
    assert_eq!(completed(&sandbox, &["schema", "ni"]), [""; 0], "these are names of outputs");
    assert!(completed(&sandbox, &["his"]).contains(&String::from("history")));
    assert!(completed(&sandbox, &["run", "--kill-m"]).contains(&String::from("--kill-mode")));
}

/// What bash would offer for this line, with its words broken at colons.
fn bash_offers(sandbox: &Sandbox, line: &str) -> Vec<String> {
    let script = sandbox.run(&["completions", "bash"]).stdout;
    let exe = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let words = line.replace(':', " : ");
    let ask = format!(
        "{script}\nCOMP_WORDS=({words}); COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9\n\
         [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=('')\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         _leasehold leasehold x y 2>/dev/null; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let mut command = sandbox.command("bash");
    command.args(["--norc", "-c", &ask]).env("LEASEHOLD_URL", sandbox.url());
    command.env("PATH", format!("{}:/usr/bin:/bin", exe.parent().unwrap().display()));
    let ran = Ran::of(command);
    ran.stdout.lines().map(|offer| offer.trim_end().to_owned()).collect()
}

#[test]
fn bash_completes_names_with_colons_and_the_command_after_two_dashes() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("deploy:prod");
    assert_eq!(bash_offers(&sandbox, "leasehold inspect dep"), ["deploy:prod"]);
    assert_eq!(bash_offers(&sandbox, "leasehold inspect deploy:"), ["prod"]);
    assert_eq!(bash_offers(&sandbox, "leasehold run -n deploy:pr"), ["prod"]);
    assert!(bash_offers(&sandbox, "leasehold run x -- bas").contains(&String::from("bash")));
}

#[test]
fn bash_accepts_its_script() {
    let sandbox = Sandbox::new();
    let script = sandbox.run(&["completions", "bash"]).stdout;
    let output =
        Command::new("bash").args(["--norc", "-c", &format!("{script}\ncomplete -p leasehold")]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let sandbox = Sandbox::new();
    let page = sandbox.run(&["man"]);
    page.assert_code(0);
    assert!(page.stdout.contains(".TH") && page.stdout.contains("in one place at a time"), "{page:?}");
    assert!(sandbox.run(&["man", "run"]).stdout.contains("conflict"));
    let run = sandbox.run(&["man", "run"]).stdout;
    let examples = run.split(".SH EXAMPLES\n.nf\n").nth(1).unwrap();
    assert!(examples.starts_with("leasehold run backup \\-\\- ./backup.sh"), "{examples}");
    let out = sandbox.path("man");
    sandbox.run(&["man", "--out", out.to_str().unwrap()]).assert_code(0);
    let pages: Vec<PathBuf> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(pages.len(), 18, "{pages:?}");
    for path in pages {
        let page = fs::read_to_string(&path).unwrap();
        for section in ["\"EXIT STATUS\"", "\"ENVIRONMENT\"", "\"FILES\"", "EXAMPLES"] {
            assert!(page.contains(&format!(".SH {section}\n")), "{}: {section}: {page}", path.display());
        }
        assert!(!page.contains(".SH EXTRA"), "{page}");
    }
}

#[test]
fn every_example_of_the_help_has_flags_that_exist() {
    let sandbox = Sandbox::new();
    let help = sandbox.run(&["--help"]).stdout;
    let listed = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = listed.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    let mut tried = 0;
    for name in names.map(|line| line.split(' ').next().unwrap()).filter(|name| *name != "help") {
        let help = sandbox.run(&[name, "--help"]).stdout;
        let examples = help.split("Examples:\n").nth(1).unwrap_or_else(|| panic!("{name}: {help}"));
        for line in examples.lines().filter_map(|line| line.strip_prefix("  leasehold ")) {
            // What it means, where a pipe leads to, and the command that would run.
            let ours = line.split("   ").next().unwrap().split(" | ").next().unwrap().split(" && ").next().unwrap();
            let ours = ours.split(" -- ").next().unwrap().replace("--fence N", "--fence 1");
            let mut command = sandbox.command("sh");
            command.args(["-c", &format!("lease=lh2_x; {} {ours} --help", env!("CARGO_BIN_EXE_leasehold"))]);
            let ran = Ran::of(command);
            ran.assert_code(0);
            assert!(ran.stdout.contains("Usage: leasehold "), "{line}: {ran:?}");
            tried += 1;
        }
    }
    assert!(tried > 30, "only {tried} examples were found");
}

#[test]
fn schemas_are_printed_by_name() {
    let sandbox = Sandbox::new();
    let names = sandbox.run(&["schema"]).stdout;
    let files = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    assert_eq!(names.lines().count(), fs::read_dir(files).unwrap().count(), "each file has a name");
    for name in names.lines() {
        assert!(sandbox.run(&["schema", name]).json()["properties"]["v"].is_object(), "{name}");
    }
    sandbox.run(&["schema", "frobnicate"]).assert_code(64);
}

#[test]
fn help_is_about_the_command_and_slips_are_understood() {
    let sandbox = Sandbox::new();
    let run = sandbox.run(&["help", "run"]);
    run.assert_code(0);
    assert_eq!(run.stdout, sandbox.run(&["run", "--help"]).stdout);
    assert!(run.stdout.contains("--max-hold") && !run.stdout.contains("The config file"), "{run:?}");
    assert!(run.stdout.contains("Global options: -b URL|PROFILE"), "{run:?}");
    let all = sandbox.run(&["help"]);
    all.assert_code(0);
    assert!(all.stdout.contains("The config file") && all.stdout.contains("history"), "{all:?}");
    assert_eq!(all.stdout, sandbox.run(&["--help"]).stdout);
    for (typed, meant) in [("rnu", "run"), ("lits", "list"), ("histroy", "history"), ("inpsect", "inspect")] {
        let ran = sandbox.run(&[typed]);
        ran.assert_code(64);
        assert!(ran.stderr.contains("similar") && ran.stderr.contains(&format!("'{meant}'")), "{ran:?}");
    }
}

#[test]
fn the_version_is_told() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(&["version"]).stdout, concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(sandbox.run(&["version", "--json"]).json()["version"], env!("CARGO_PKG_VERSION"));
}
