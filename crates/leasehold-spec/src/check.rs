//! Runs the checker on a specification and reports what it saw.

use std::{collections::BTreeMap, fmt, time::Duration};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// What the checker saw.
#[derive(Debug)]
pub struct CheckReport {
    /// How many different states it saw.
    pub states: usize,
    /// The longest path it followed.
    pub depth: usize,
    /// Whether it saw every state within the bounds of the specification.
    pub exhaustive: bool,
    /// The broken promises, each with the events that break it.
    pub violations: BTreeMap<&'static str, Vec<String>>,
    /// The situations that were reached.
    pub reached: Vec<&'static str>,
}

/// When to stop before every state was seen.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// How many states to look at.
    pub states: usize,
    /// How long to look.
    pub time: Duration,
}

impl Default for Limit {
    fn default() -> Self {
        Self { states: usize::MAX, time: Duration::from_secs(24 * 3600) }
    }
}

/// Looks at every state within the limit, breadth first, or until a promise is broken.
pub fn check<M>(spec: M, limit: Limit) -> CheckReport
where
    M: Model + Send + Sync + 'static,
    M::State: fmt::Debug + std::hash::Hash + Clone + PartialEq + Send + Sync + 'static,
    M::Action: fmt::Debug + Clone + PartialEq + Send + Sync + 'static,
{
    let always: Vec<&'static str> = spec
        .properties()
        .iter()
        .filter(|property| matches!(property.expectation, Expectation::Always))
        .map(|property| property.name)
        .collect();
    let checker = spec
        .checker()
        .threads(1)
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(limit.states)
        .timeout(limit.time)
        .spawn_bfs()
        .join();
    let (mut violations, mut reached) = (BTreeMap::new(), Vec::new());
    for (name, path) in checker.discoveries() {
        if always.contains(&name) {
            violations.insert(name, path.into_actions().iter().map(|action| format!("{action:?}")).collect());
        } else {
            reached.push(name);
        }
    }
    let exhaustive = violations.is_empty() && checker.is_done() && checker.state_count() < limit.states;
    CheckReport { states: checker.unique_state_count(), depth: checker.max_depth(), exhaustive, violations, reached }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extent = if self.exhaustive { "all within bounds" } else { "not exhaustive" };
        write!(f, "{} states, depth {}, {extent}", self.states, self.depth)?;
        for (promise, steps) in &self.violations {
            write!(f, "\n  broken in {} steps: {promise}", steps.len())?;
            for step in steps {
                write!(f, "\n    {step}")?;
            }
        }
        Ok(())
    }
}
