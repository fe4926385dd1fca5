//! `leasehold man`: the manual pages, made of the same words as `--help`.

use std::{fmt::Write as _, fs};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::{
    args::{Cli, ManArgs},
    error::{CommandError, Result},
    exit, json,
};

/// What a code means, in the commands that take a lock.
const CODES_OF_WORK: [(&str, &str); 5] = [
    ("0-255", "the command's own, if it ran and the lock was held throughout; 128+N if signal N ended it"),
    ("75", "not acquired: busy with -n, or -w ran out; -E chooses another code"),
    ("121", "the lock was lost before the command ended"),
    ("124", "--max-hold ran out"),
    ("126, 127", "the command cannot be run; was not found"),
];
/// The same in those that answer.
const CODES_OF_ANSWERS: [(&str, &str); 2] = [
    ("0", "done, or the answer is yes"),
    ("1", "the answer is no: not held, no such lock, a name that nothing is known of, a failure found"),
];
/// The same in all.
const CODES_OF_ALL: [(&str, &str); 5] = [
    ("64", "wrong use"),
    ("69", "the backend is away or cannot be used"),
    ("70", "a bug"),
    ("77", "the backend refused: credentials or rights"),
    ("78", "bad configuration or URL, or the schema is missing"),
];
const ENVIRONMENT: [(&str, &str); 8] = [
    ("LEASEHOLD_URL", "where locks live, as -b"),
    ("LEASEHOLD_NAMESPACE", "as --namespace"),
    ("LEASEHOLD_CONFIG", "as --config"),
    ("LEASEHOLD_JSON", "1: as --json"),
    ("LEASEHOLD_LOG", "quiet, info (as -v) or debug (as -vv)"),
    ("LEASEHOLD_LEASE", "the lease that check, renew and release mean, if no flag names one"),
    ("LEASEHOLD_MACHINE_DIR", "for packagers and tests: the machine's directory, instead of /var/lib/leasehold"),
    ("NO_COLOR, CLICOLOR_FORCE", "no colours; colours also where there is no terminal"),
];
/// What a command finds that runs under a lock.
const ENVIRONMENT_OF_CHILD: &str = "A command under a lock finds LEASEHOLD_HELD=1, LEASEHOLD_LOCK, LEASEHOLD_LOCK_STACK, \
    LEASEHOLD_MODE, LEASEHOLD_FENCE, LEASEHOLD_HOLDER, LEASEHOLD_LEASE (secret: it can release), LEASEHOLD_TTL_MS and \
    LEASEHOLD_BACKEND.";
const FILES: [(&str, &str); 4] = [
    (
        "/var/lib/leasehold",
        "the locks of file: for the whole machine, once `leasehold init file: --group NAME` has made it",
    ),
    ("$XDG_STATE_HOME/leasehold, ~/.local/state/leasehold", "the locks of file: for one user, before that"),
    ("$XDG_CONFIG_HOME/leasehold/config.toml, ~/.config/leasehold/config.toml", "the user's config file"),
    ("/etc/leasehold/config.toml", "the config file, if the user has none"),
];

/// Prints a page, or writes all of them.
pub(crate) fn run(args: &ManArgs) -> Result<u8> {
    let mut root = Cli::command();
    root.build();
    if let Some(directory) = &args.out {
        fs::create_dir_all(directory).map_err(|error| cannot_write(&directory.display(), &error))?;
        let commands = root.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help");
        for command in std::iter::once(&root).chain(commands) {
            let path = directory.join(format!("{}.1", file_name(command)));
            fs::write(&path, page(command)?).map_err(|error| cannot_write(&path.display(), &error))?;
        }
        return Ok(exit::OK);
    }
    let command = match &args.page {
        None => &root,
        Some(name) => root
            .find_subcommand(name)
            .ok_or_else(|| CommandError::usage(format!("there is no command {name}")).hint("see: leasehold --help"))?,
    };
    json::write(&page(command)?)?;
    Ok(exit::OK)
}

fn file_name(command: &Command) -> String {
    match command.get_name() {
        "leasehold" => String::from("leasehold"),
        name => format!("leasehold-{name}"),
    }
}

fn page(command: &Command) -> Result<String> {
    let help = AfterHelp::of(command);
    let mut roff = Vec::new();
    let man = Man::new(command.clone()).title(file_name(command));
    let written = man
        .render_title(&mut roff)
        .and_then(|()| man.render_name_section(&mut roff))
        .and_then(|()| man.render_synopsis_section(&mut roff))
        .and_then(|()| man.render_description_section(&mut roff))
        .map(|()| roff.extend(help.prose_section().into_bytes()))
        .and_then(|()| man.render_options_section(&mut roff))
        .and_then(|()| if command.has_subcommands() { man.render_subcommands_section(&mut roff) } else { Ok(()) });
    written.map_err(|error| CommandError::unavailable(format!("cannot write the page: {error}")))?;
    let mut page = String::from_utf8(roff)
        .map_err(|error| CommandError::unavailable(format!("cannot write the page: {error}")))?;
    let works = matches!(command.get_name(), "leasehold" | "run" | "elect" | "acquire");
    let codes: &[_] = if works { &CODES_OF_WORK } else { &CODES_OF_ANSWERS };
    page.push_str(&section("EXIT STATUS", &[codes, &CODES_OF_ALL].concat()));
    page.push_str(&section("ENVIRONMENT", &ENVIRONMENT));
    if works {
        let _infallible = writeln!(page, ".PP\n{}", escaped(ENVIRONMENT_OF_CHILD));
    }
    page.push_str(&section("FILES", &FILES));
    page.push_str(&help.example_section());
    if command.get_name() != "leasehold" {
        page.push_str(".SH \"SEE ALSO\"\n\\fBleasehold\\fR(1)\n");
    }
    Ok(page)
}

/// The text below the options, taken apart.
struct AfterHelp {
    prose: Vec<String>,
    examples: Vec<String>,
}

impl AfterHelp {
    fn of(command: &Command) -> Self {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (mut prose, mut examples) = (Vec::new(), Vec::new());
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
            let mut lines = paragraph.lines();
            match lines.next() {
                Some("Examples:" | "Example:") => examples.extend(lines.map(|line| line.trim_start().to_owned())),
                // They have a section of their own.
                Some(first) if first.starts_with("Exit codes:") => {}
                _ => prose.extend(paragraph.lines().map(str::to_owned)),
            }
        }
        Self { prose, examples }
    }

    fn prose_section(&self) -> String {
        self.prose.iter().fold(String::new(), |text, line| text + ".PP\n" + &escaped(line) + "\n")
    }

    fn example_section(&self) -> String {
        if self.examples.is_empty() {
            return String::new();
        }
        let lines = self.examples.iter().fold(String::new(), |text, line| text + &escaped(line) + "\n");
        format!(".SH EXAMPLES\n.nf\n{lines}.fi\n")
    }
}

fn section(title: &str, entries: &[(&str, &str)]) -> String {
    let mut text = format!(".SH \"{title}\"\n");
    for (term, words) in entries {
        let _infallible = write!(text, ".TP\n\\fB{}\\fR\n{}\n", escaped(term), escaped(words));
    }
    text
}

/// The line as roff shows it, and takes for no request of its own.
fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

fn cannot_write(path: &dyn std::fmt::Display, error: &std::io::Error) -> CommandError {
    CommandError::usage(format!("--out: cannot write {path}: {error}"))
}
