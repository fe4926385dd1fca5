//! The arguments of `completions`, `man`, `schema` and `version`.

use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};

/// Print the script that makes a shell complete commands, flags and live lock names.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  source <(leasehold completions bash)\n  \
                        source <(leasehold completions zsh)\n  leasehold completions fish | source")]
pub(crate) struct CompletionsArgs {
    /// The shell: bash, zsh, fish or elvish
    #[arg(value_enum, hide_possible_values = true)]
    pub(crate) shell: Shell,
}

/// The shells that can be helped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// GNU Bourne-again shell
    Bash,
    /// Z shell
    Zsh,
    /// Friendly interactive shell
    Fish,
    /// Elvish
    Elvish,
}

impl Shell {
    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
            Self::Elvish => "elvish",
        }
    }
}

/// Print the manual page.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold man run | man -l -\n  leasehold man --out ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The page of this command
    #[arg(value_name = "COMMAND")]
    pub(crate) page: Option<String>,
    /// Write all pages to this directory
    #[arg(long, value_name = "DIR", conflicts_with = "page", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
}

/// Print the JSON Schema of a machine output.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold schema          the names\n  \
                        leasehold schema report   what `run --report` writes")]
pub(crate) struct SchemaArgs {
    /// Which: a command, `report` (of `run --report`), or `event` (what `run --json` says) [default: list them]
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// Print the version.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold version\n  leasehold version --json")]
pub(crate) struct VersionArgs {}
