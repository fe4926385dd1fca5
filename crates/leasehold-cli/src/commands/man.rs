//! `leasehold man`: the manual pages, made of the same words as `--help`.

use std::fs;

use clap::{Command, CommandFactory};

use crate::{
    args::{Cli, ManArgs},
    exit::{self, Failure, Result},
    json,
};

/// Prints a page, or writes all of them.
pub(crate) fn run(args: &ManArgs) -> Result<u8> {
    let mut root = Cli::command();
    root.build();
    if let Some(directory) = &args.out {
        fs::create_dir_all(directory).map_err(|error| cannot_write(&directory.display(), &error))?;
        for command in std::iter::once(&root).chain(root.get_subcommands().filter(|command| !command.is_hide_set())) {
            let path = directory.join(format!("{}.1", file_name(command)));
            fs::write(&path, page(command)?).map_err(|error| cannot_write(&path.display(), &error))?;
        }
        return Ok(exit::OK);
    }
    let command = match &args.page {
        None => &root,
        Some(name) => root
            .find_subcommand(name)
            .ok_or_else(|| Failure::usage(format!("there is no command {name}")).hint("see: leasehold --help"))?,
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
    let mut roff = Vec::new();
    clap_mangen::Man::new(command.clone())
        .title(file_name(command))
        .render(&mut roff)
        .map_err(|error| Failure::unavailable(format!("cannot write the page: {error}")))?;
    String::from_utf8(roff).map_err(|error| Failure::unavailable(format!("cannot write the page: {error}")))
}

fn cannot_write(path: &dyn std::fmt::Display, error: &std::io::Error) -> Failure {
    Failure::usage(format!("--out: cannot write {path}: {error}"))
}
