//! Tortures locks: worker processes take them under faults, and checkers compare what the workers believed.

mod args;
mod broken;
mod check;
mod conductor;
mod event;
mod faults;
mod fleet;
mod history;
mod instant;
mod lane;
mod leftovers;
mod network;
mod probe;
mod report;
mod servers;
mod target;
mod worker;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    let ran = match args::parse() {
        Command::Run(plan) => conductor::run(&plan).and_then(|report| report.print(&plan).map(|()| report.is_clean())),
        Command::Worker(role) => worker::run(&role).map(|()| true),
    };
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("leasehold-torture: {error}");
            ExitCode::from(2)
        }
    }
}
