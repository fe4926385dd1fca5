//! Watches that no two believe to hold at once, and that fences never repeat or fall.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

/// What is seen of the holders of exclusive locks; panics tell what went wrong.
#[derive(Clone, Debug, Default)]
pub struct Witness(Arc<Mutex<WitnessLog>>);

#[derive(Debug, Default)]
struct WitnessLog {
    inside: HashMap<String, u64>,
    last: HashMap<String, u64>,
    entered: u64,
    overlaps: Vec<String>,
    falls: Vec<String>,
}

/// A stay inside a lock; ends when it is dropped.
#[derive(Debug)]
pub struct Stay {
    witness: Witness,
    name: String,
    fence: u64,
}

impl Witness {
    /// Someone believes to hold this lock alone, under this fence.
    pub fn enter(&self, name: &str, fence: u64) -> Stay {
        let mut seen = self.0.lock();
        seen.entered += 1;
        if let Some(other) = seen.inside.insert(name.to_owned(), fence) {
            seen.overlaps.push(format!("{name}: {other} and {fence}"));
        }
        let last = seen.last.insert(name.to_owned(), fence).unwrap_or(0);
        if fence <= last {
            seen.falls.push(format!("{name}: {fence} after {last}"));
        }
        Stay { witness: self.clone(), name: name.to_owned(), fence }
    }

    /// How often anyone entered.
    pub fn entered(&self) -> u64 {
        self.0.lock().entered
    }

    /// Where two believed at once.
    pub fn overlaps(&self) -> Vec<String> {
        self.0.lock().overlaps.clone()
    }

    /// Where a fence repeated or fell.
    pub fn falls(&self) -> Vec<String> {
        self.0.lock().falls.clone()
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut seen = self.witness.0.lock();
        if seen.inside.get(&self.name) == Some(&self.fence) {
            seen.inside.remove(&self.name);
        }
    }
}
