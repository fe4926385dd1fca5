//! Uncontended pairs on files, from one task, beside flock(2) on an open file.

use leasehold::Leasehold;

use super::prelude::*;
use crate::system_calls::SystemCalls;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "file-pairs",
    title: "file:, uncontended pairs of one task, beside flock(2) on an open file. A pair of leasehold's includes the \
            fence, the presence check and the history.",
    measure,
};

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let url = format!("file://{}", directory.path().join("locks").display());
    let runtime = one_thread()?;
    let locks = runtime.block_on(Leasehold::connect(&url))?;
    let file = pairs::open_flock(&directory.path().join("flock"))?;
    let scores = compare(
        effort,
        &[
            Contender::new("leasehold", |count| runtime.block_on(pairs::on(&locks, "order:42", count))),
            Contender::new("flock", |count| pairs::on_flock(&file, count)),
        ],
    )?;
    section.contenders(&scores);
    runtime.block_on(locks.close())?;
    let calls = SystemCalls::of_each_pair(&url, 500)?;
    section.figure("system calls of a pair", calls.total(), "", Some(Bar::AtMost(20.0)));
    section.note(format!("System calls of a pair: {}.", calls.breakdown()));
    Ok(())
}
