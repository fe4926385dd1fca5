//! Starts this program again as a child process, and chooses what the child does.

use std::{
    env,
    process::{Command, Stdio},
    str::FromStr,
};

use crate::{
    Result, pairs, redis_workers,
    scenarios::{file_handoff, file_queue, memory_held},
};

/// Does what the arguments after `child` say.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (kind, arguments) = arguments.split_first().ok_or("a child needs to know what to do")?;
    match kind.as_str() {
        "redis_workers" => redis_workers::child(arguments),
        "pairs" => pairs::child(arguments),
        "hold" => memory_held::child(arguments),
        "queue" => file_queue::child(arguments),
        "alternate" => file_handoff::child(arguments),
        _ => Err(format!("no child does {kind:?}").into()),
    }
}

/// The arguments with which this program runs a child of this kind.
pub(crate) fn command_line(kind: &str, arguments: &[&str]) -> Result<Vec<String>> {
    let program = env::current_exe()?.to_str().ok_or("this program's path is not UTF-8")?.to_owned();
    Ok([&program, "child", kind].into_iter().chain(arguments.iter().copied()).map(str::to_owned).collect())
}

/// A child of this kind, with pipes for its input and output.
pub(crate) fn command(kind: &str, arguments: &[&str]) -> Result<Command> {
    let line = command_line(kind, arguments)?;
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command)
}

/// Parses one of a child's arguments.
pub(crate) fn argument<T: FromStr>(arguments: &[String], index: usize) -> Result<T> {
    let text = arguments.get(index).ok_or_else(|| format!("a child's argument {index} is missing"))?;
    text.parse().map_err(|_| format!("a child's argument {index} cannot be {text:?}").into())
}
