//! One million locks held at once in one process: its peak memory.

use std::{fs, time::Duration};

use leasehold::Leasehold;

use super::prelude::*;
use crate::children::{self, argument};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "memory-held",
    title: "memory:, one million locks held at once by one process, until each has been renewed.",
    measure,
};

const LOCKS: u64 = 1_000_000;
/// The default ttl is 30 s, and renewals come every third of it.
const RENEWED_AFTER: Duration = Duration::from_secs(12);

fn measure(_effort: Effort, section: &mut Section) -> Result<()> {
    let child = children::command("hold", &[&LOCKS.to_string()])?.spawn()?.wait_with_output()?;
    let text = String::from_utf8(child.stdout)?;
    let numbers: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [peak, held] = numbers[..] else {
        return Err(format!("the child that holds a million locks ended with {}: {text:?}", child.status).into());
    };
    section.figure("peak resident memory", peak / 1024.0, "MiB", Some(Bar::AtMost(1024.0)));
    section.figure("peak resident memory of each lock", peak * 1024.0 / LOCKS as f64, "bytes", None);
    section.figure("locks still held at the end", held, "", Some(Bar::AtLeast(LOCKS as f64)));
    Ok(())
}

/// Holds `COUNT` locks, then prints the peak in KiB and how many are still held: `COUNT`.
pub(crate) fn child(arguments: &[String]) -> Result<()> {
    let count = argument(arguments, 0)?;
    one_thread()?.block_on(async {
        let locks = Leasehold::connect("memory:").await?;
        let mut guards = Vec::new();
        for number in 0..count {
            let number: u64 = number;
            guards.push(locks.mutex(format!("order:{number}")).acquire().await?);
        }
        tokio::time::sleep(RENEWED_AFTER).await;
        let held = guards.iter().filter(|guard| guard.check().is_ok()).count();
        let status = fs::read_to_string("/proc/self/status")?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the kernel reports no peak")?;
        println!("{} {held}", peak.trim_end_matches("kB").trim());
        // Releasing a million locks one by one is no part of this.
        std::process::exit(0)
    })
}
