//! The commands of the README and of the guides, run as printed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const README: &str = include_str!("../../../README.md");
const MIGRATING: &str = include_str!("../../../docs/migrating.md");
const REDIS: &str = include_str!("../../../docs/redis.md");
const POSTGRES: &str = include_str!("../../../docs/postgres.md");
const REFERENCE: &str = include_str!("../../../docs/reference.md");
const PICTURE: &str = include_str!("../../../docs/picture.svg");

/// Every page for users: its path and its text.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guides = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let guides = guides.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let paths = guides.chain(["README.md", "GUARANTEES.md"].map(|name| root.join(name)));
    paths.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect()
}

/// The text of each fenced block in this language.
fn blocks(document: &'static str, language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    document.split(fence.as_str()).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// The commands of each console block, without their output.
fn console(document: &'static str) -> Vec<Vec<&'static str>> {
    let commands = |block: &'static str| block.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    blocks(document, "console").into_iter().map(commands).collect()
}

/// The commands in the last column of each table, from top to bottom.
fn last_column(document: &'static str) -> Vec<&'static str> {
    let cell = |row: &'static str| row.strip_suffix("` |")?.rsplit_once("| `").map(|(_, command)| command);
    document.lines().filter_map(cell).filter(|command| !command.contains("\"$0\"")).collect()
}

/// A command as it is run here: the long hold is shortened, and there is no such lease to evict.
fn as_run(command: &str) -> String {
    let command = command.replace("--min-hold 45s", "--min-hold 50ms");
    let command = command.split(" #").next().unwrap_or_default();
    if command.contains(" evict ") { format!("{command} || test $? -eq 1") } else { command.to_owned() }
}

/// A folder with every script that the documents speak of; each has nothing to do.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let documents = [README, MIGRATING, REDIS, POSTGRES].concat().replace("../", "");
    for rest in documents.split("./").skip(1) {
        let name = rest.split(|c: char| !c.is_alphanumeric() && !"._-".contains(c)).next().unwrap();
        script(folder.path(), name.trim_end_matches('.'), "#!/bin/sh\nexit 0\n");
    }
    folder
}

fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs commands one after the other until one fails, and returns what they print.
fn run(folder: &Path, commands: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let output = Command::new("sh")
        .args(["-e", "-c", commands])
        .current_dir(folder)
        .env("PATH", format!("{}:{}", binary.display(), env::var("PATH").unwrap()))
        .env("XDG_STATE_HOME", folder)
        .env("LEASEHOLD_MACHINE_DIR", folder.join("machine"))
        .env_remove("LEASEHOLD_URL")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{commands}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_command_of_the_readme_does_what_it_says() {
    let folder = folder();
    let mut ran = 0;
    for block in console(README) {
        // Building and installing is the other half of CI's work.
        let is_ours = |line: &&&str| line.contains("leasehold ") && !line.starts_with("cargo ");
        let ours: Vec<String> = block.iter().filter(is_ours).map(|command| as_run(command)).collect();
        ran += ours.len();
        run(folder.path(), &ours.join("\n"));
    }
    assert!(ran >= 14, "only {ran} commands were found in the README");
}

/// Runs every command of a guide's console blocks, with a server of ours in the place of those that it speaks of.
fn run_guide(guide: &'static str, places: &[(&str, &str)]) {
    let folder = folder();
    let commands: Vec<String> = console(guide).concat().into_iter().map(as_run).collect();
    let ours =
        |command: &String| places.iter().fold(command.clone(), |text, (theirs, ours)| text.replace(theirs, ours));
    assert!(commands.len() > 1, "only {commands:?} were found");
    run(folder.path(), &commands.iter().map(ours).collect::<Vec<_>>().join("\n"));
}

#[test]
fn every_command_of_the_guide_to_redis_works() {
    let server = leasehold_testkit::redis::Server::start();
    let cli = format!("redis-cli -p {} ", server.port());
    run_guide(REDIS, &[("redis://cache", &server.url()), ("redis-cli ", &cli)]);
}

#[test]
fn every_command_of_the_guide_to_postgres_works() {
    let server = leasehold_testkit::postgres::Postgres::start();
    run_guide(POSTGRES, &[("postgres://owner@db/shop", &server.url()), ("postgres://app@db/shop", &server.url())]);
}

#[test]
fn every_command_that_a_guide_mentions_has_these_flags() {
    let folder = folder();
    let mut seen = 0;
    for (_, text) in pages() {
        for mention in text.split('`').skip(1).step_by(2) {
            let command = mention.strip_prefix("sudo ").unwrap_or(mention);
            if !command.starts_with("leasehold ") || command.contains('\n') {
                continue;
            }
            seen += 1;
            let (ours, of_child) = command.split_once(" -- ").unwrap_or((command, ""));
            let ours = ours.replace(" N ", " 1 ").replace(" schema NAME", " schema report");
            let usage = run(folder.path(), &format!("{ours} --help -- {of_child}"));
            assert!(usage.contains("Usage: leasehold "), "{command}: {usage}");
        }
    }
    assert!(seen > 40, "only {seen} commands were found");
}

/// The project of somebody else, beside a checkout of ours.
#[test]
fn a_program_adds_the_library_as_the_readme_says() {
    let places = tempfile::tempdir().unwrap();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    std::os::unix::fs::symlink(repository, places.path().join("leasehold")).unwrap();
    let project = places.path().join("shop");
    fs::create_dir(&project).unwrap();
    let command = console(README).concat().into_iter().find(|line| line.starts_with("cargo add ")).unwrap();
    let command = command.split(" #").next().unwrap().trim_end();
    let cargo = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(&project).stdin(Stdio::null());
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}\n{told}");
        told
    };
    cargo("cargo init --vcs none --name shop --offline");
    let told = cargo(&format!("{command} --offline --dry-run"));
    for feature in ["redis", "postgres"] {
        assert!(told.contains(&format!("+ {feature}\n")), "{told}");
    }
}

/// The rows of a table whose first cell is this backend, without the other cells.
fn parameters_of<'a>(backend: &str, table: &'a str) -> Vec<&'a str> {
    let prefix = format!("| `{backend}:` | ");
    let cells = table.lines().filter_map(|line| line.strip_prefix(&prefix)?.split(" | ").next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter_map(|word| word.split('=').next()).collect()
}

#[test]
fn the_reference_has_every_parameter_of_a_url() {
    let folder = folder();
    let parameters = REFERENCE.split("\n## Parameters of a URL\n").nth(1).unwrap().split("\n## ").next().unwrap();
    for (url, backends) in [
        ("file:///x?zz=1", &["file"][..]),
        ("postgres://h/d?zz=1", &["postgres"]),
        ("redis://h?zz=1", &["redis"]),
        ("rediss://h?zz=1", &["redis"]),
        ("redis+unix:///x?zz=1", &["redis"]),
        ("redis+sentinel://h/m?zz=1", &["redis"]),
        ("redlock://a,b,c?zz=1", &["redlock", "redis"]),
    ] {
        let told = run(folder.path(), &format!("leasehold -b '{url}' list 2>&1 || test $? -eq 78"));
        let listed = ["has no parameter zz; it has ", "besides the usual parameters there are "];
        let names = listed.iter().find_map(|words| told.split(words).nth(1)).unwrap_or_else(|| panic!("{url}: {told}"));
        // Some say which URLs have them: `key (with rediss)`.
        let names = names.trim().replace(" and ", ", ");
        let names: Vec<&str> = names.split(", ").map(|name| name.split(' ').next().unwrap()).collect();
        let said: Vec<&str> = backends.iter().flat_map(|backend| parameters_of(backend, parameters)).collect();
        for name in &names {
            assert!(said.contains(name), "{url}: {name} is not in docs/reference.md, only {said:?}");
        }
        assert!(names.len() > 1, "{told}");
    }
}

/// The texts of all source files in a folder and those below.
fn sources(folder: &Path) -> String {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: PathBuf| if path.is_dir() { sources(&path) } else { fs::read_to_string(path).unwrap() };
    paths.filter(|path| path.is_dir() || path.extension().is_some_and(|end| end == "rs")).map(text).collect()
}

#[test]
fn the_reference_has_every_variable_that_is_read() {
    // Of every system, or between processes of ours.
    const LEFT_OUT: [&str; 6] = ["HOME", "LOGNAME", "SHELL", "TERM", "USER", "LEASEHOLD_KEEPER"];
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let code = ["leasehold/src", "leasehold-cli/src"].map(|folder| sources(&crates.join(folder))).concat();
    let mut read = BTreeSet::new();
    for call in ["env(\"", "var(\"", "var_os(\"", "environment(\"", "text(env, \"", "text(\"", "absolute(\""] {
        let names = code.split(call).skip(1).filter_map(|rest| rest.split('"').next());
        read.extend(names.filter(|name| name.len() > 2 && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')));
    }
    for name in &read {
        assert!(LEFT_OUT.contains(name) || REFERENCE.contains(name), "{name} is not in docs/reference.md");
    }
    assert!(read.len() > 30, "only {read:?} were found");
}

#[test]
fn the_config_file_of_the_reference_is_read() {
    let folder = folder();
    fs::write(folder.path().join("config.toml"), blocks(REFERENCE, "toml").remove(0)).unwrap();
    run(folder.path(), "leasehold --config config.toml -b dev list");
    let planned = run(folder.path(), "leasehold --config config.toml -b dev run --dry-run x -- true 2>&1");
    assert!(planned.contains("ttl 30s, kill after 5s"), "{planned}");
    let away = "leasehold --config config.toml --connect-timeout 1ms list 2>&1 || test $? -ne 0";
    let told = run(folder.path(), away);
    assert!(!told.contains("config.toml"), "{told}");
    assert!(told.contains("/run/secrets/locks") || told.contains("redis://locks"), "{told}");
}

#[test]
fn no_page_has_commands_that_are_not_run() {
    let is_ours = |line: &&str| line.trim_start().strip_prefix("$ ").is_some_and(|line| line.contains("leasehold "));
    let ours = |text: &str| text.lines().filter(is_ours).count();
    for (path, text) in pages().into_iter().filter(|(_, text)| ![README, REDIS, POSTGRES].contains(&text.as_str())) {
        // Those of the project itself are for whoever makes a release.
        assert!(ours(&text) == 0 || path.ends_with("/releasing.md"), "{path} has commands, and no test runs them");
    }
    for run in [README, REDIS, POSTGRES] {
        let in_blocks = blocks(run, "console").into_iter().map(ours).sum::<usize>();
        assert_eq!(ours(run), in_blocks, "a command is not in a block of its own");
    }
}

#[test]
fn every_command_of_the_packaged_examples_and_of_a_crontab_works() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples");
    let examples = fs::read_dir(examples).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let crontabs = blocks(README, "crontab").into_iter().map(str::to_owned);
    let folder = folder();
    let mut ran = 0;
    for text in examples.chain(crontabs) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // Kubernetes has a list of words.
            let line = line.replace(", ", " ").replace(['[', ']', '"'], "");
            for verb in ["run", "elect"] {
                let Some((_, command)) = line.split_once(&format!("leasehold {verb} ")) else { continue };
                let (ours, _) = command.split_once(" -- ").unwrap();
                run(folder.path(), &as_run(&format!("leasehold {verb} {ours} -- true")));
                ran += 1;
            }
        }
    }
    assert_eq!(ran, 6, "a crontab, two units, a CronJob, a job of a CI, and the crontab of the README");
}

#[test]
fn the_picture_shows_what_its_text_says() {
    let text = README.lines().find(|line| line.ends_with("(docs/picture.svg)")).unwrap();
    for word in ["first runs", "second waits", "list of locks", "with -n, steps aside"] {
        assert!(text.contains(word), "{text}");
    }
    let lines: Vec<&str> = PICTURE.lines().filter_map(|line| line.split_once('>')?.1.strip_suffix("</text>")).collect();
    let shown = |begin: &str, end: &str| lines.iter().any(|line| line.starts_with(begin) && line.contains(end));
    assert!(shown("$ leasehold run --holder alice@web-3 nightly-report -- ./report.sh", ""), "{lines:#?}");
    assert!(shown("leasehold: waiting for nightly-report — held by alice@web-3", ""), "{lines:#?}");
    assert!(shown("1 lock, 1 waiting", ""), "{lines:#?}");
    assert!(shown("$ leasehold run -n nightly-report -- ./report.sh", ""), "{lines:#?}");
    assert!(shown("leasehold: nightly-report is held by alice@web-3", "not waiting (-n)"), "{lines:#?}");
}

#[test]
fn the_script_that_locks_itself_runs_once_under_its_lock() {
    let folder = folder();
    script(folder.path(), "report.sh", "#!/bin/sh\necho \"under $LEASEHOLD_LOCK\"\n");
    // Many scripts refuse variables that are not set.
    let text = blocks(README, "sh").remove(0).replacen('\n', "\nset -u\n", 1);
    script(folder.path(), "itself.sh", &text);
    assert_eq!(run(folder.path(), "./itself.sh"), "under nightly-report\n");
}

#[test]
fn every_script_of_the_readme_works() {
    let folder = folder();
    let scripts = blocks(README, "sh");
    let with_leases: Vec<&str> = scripts.into_iter().filter(|text| text.starts_with("lease=$(")).collect();
    assert_eq!(with_leases.len(), 2, "the others have tests of their own");
    for text in with_leases {
        run(folder.path(), text);
    }
}

#[test]
fn every_replacement_for_another_command_works() {
    let commands = last_column(MIGRATING);
    assert!(commands.len() >= 12, "only {} commands were found", commands.len());
    run(folder().path(), &commands.join("\n"));
}
