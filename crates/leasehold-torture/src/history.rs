//! What happened in a run, put together from the logs of all workers and the conductor's own actions.

use std::collections::{BTreeMap, HashMap};

use crate::{
    event::{LogEvent, LogLine},
    instant::{Micros, seconds},
    target::TTL,
};

/// Everything the checkers look at.
#[derive(Debug, Default)]
pub(crate) struct RunHistory {
    /// When the run was.
    pub(crate) run: Span,
    pub(crate) asks: Vec<AcquisitionRecord>,
    pub(crate) lives: Vec<WorkerLife>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) losses: Vec<LossTimes>,
    pub(crate) failovers: Vec<Failover>,
    /// When a slow disk held a worker up.
    pub(crate) delays: Vec<Span>,
    pub(crate) children: BTreeMap<i32, Child>,
    pub(crate) callbacks: u64,
    /// What was found after the end: leases that `list` shows, files that nobody owns.
    pub(crate) leftovers: Vec<String>,
    /// Workers that ended or did not answer though no fault was injected.
    pub(crate) failures: Vec<String>,
    by_id: HashMap<String, usize>,
}

/// One acquisition.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcquisitionRecord {
    pub(crate) id: String,
    /// Which of [`RunHistory::lives`] asked.
    pub(crate) life: usize,
    pub(crate) asked: Asked,
    pub(crate) grant: Option<ObservedGrant>,
    /// Before the last check that passed.
    pub(crate) believed: Option<Micros>,
    pub(crate) ending: Option<Micros>,
    pub(crate) released: Option<Micros>,
    /// When the ask ended without a grant.
    pub(crate) gave_up: Option<Micros>,
    pub(crate) lost: Option<Micros>,
    pub(crate) refusal: Option<String>,
}

/// A request, and the time when it was sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) at: Micros,
    pub(crate) name: String,
    pub(crate) units: u32,
    pub(crate) capacity: u32,
}

/// A grant, as the worker got it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedGrant {
    pub(crate) began: Micros,
    pub(crate) fence: u64,
}

/// One worker process from its start to its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerLife {
    pub(crate) label: String,
    /// Before the kill was sent.
    pub(crate) killed: Option<Micros>,
    pub(crate) stops: Vec<Span>,
    /// When its way to the server was disturbed.
    pub(crate) disturbances: Vec<Span>,
    /// Its disk is slow on purpose.
    pub(crate) slow: bool,
    pub(crate) idle: bool,
    pub(crate) listed: Option<Vec<String>>,
}

/// A span of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) from: Micros,
    pub(crate) to: Micros,
}

/// A master was replaced by its replica.
#[derive(Clone, Debug)]
pub(crate) struct Failover {
    /// From the fault until the former master followed the new one.
    pub(crate) span: Span,
    /// What the former master wrote at these times, the new one may not have: Redis copies after it answers.
    pub(crate) forgets: Vec<Span>,
}

/// Those who waited for a name at one instant, in order.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// Not after that instant.
    pub(crate) at: Micros,
    pub(crate) name: String,
    pub(crate) holding: Vec<String>,
    pub(crate) waiting: Vec<String>,
}

/// A loss that was reported.
#[derive(Clone, Debug)]
pub(crate) struct LossTimes {
    pub(crate) life: usize,
    pub(crate) what: String,
    /// From when it was due until `lost` completed.
    pub(crate) delay: Span,
}

/// A forked child.
#[derive(Clone, Debug, Default)]
pub(crate) struct Child {
    pub(crate) life: usize,
    pub(crate) idle: bool,
    /// Each call on the inherited instance, and its answer.
    pub(crate) calls: BTreeMap<String, ForkAnswer>,
}

/// What the library answered in a forked child.
#[derive(Clone, Debug)]
pub(crate) enum ForkAnswer {
    Missing,
    Refused,
    Other(String),
}

impl RunHistory {
    /// Adds one line of the log of a worker.
    pub(crate) fn add(&mut self, life: usize, LogLine { at, event }: LogLine) {
        match event {
            LogEvent::Asked { id, name, units, capacity } => {
                self.by_id.insert(id.clone(), self.asks.len());
                self.asks.push(AcquisitionRecord {
                    id,
                    life,
                    asked: Asked { at, name, units, capacity },
                    ..AcquisitionRecord::default()
                });
            }
            LogEvent::Refused { id, error } => self.change(&id, |ask| {
                ask.gave_up = Some(at);
                ask.refusal = Some(error);
            }),
            LogEvent::Cancelled { id } => self.change(&id, |ask| ask.gave_up = Some(at)),
            LogEvent::Began { id, fence } => {
                self.change(&id, |ask| ask.grant = Some(ObservedGrant { began: at, fence }));
            }
            LogEvent::Believed { id } => self.change(&id, |ask| ask.believed = Some(at)),
            LogEvent::Ending { id } => self.change(&id, |ask| ask.ending = Some(at)),
            LogEvent::Released { id, .. } => self.change(&id, |ask| ask.released = Some(at)),
            LogEvent::Lost { id, failed_at } => {
                self.change(&id, |ask| ask.lost = Some(failed_at));
                self.losses.push(LossTimes { life, what: id, delay: Span { from: failed_at, to: at } });
            }
            LogEvent::Probe { due } => {
                let what = format!("the probe of {}", self.lives[life].label);
                self.losses.push(LossTimes { life, what, delay: Span { from: due, to: at } });
            }
            LogEvent::Queue { name, holding, waiting } => self.queues.push(Queue { at, name, holding, waiting }),
            LogEvent::Callback => self.callbacks += 1,
            LogEvent::Forked { child, idle } => {
                let entry = self.children.entry(child).or_default();
                (entry.life, entry.idle) = (life, idle);
            }
            LogEvent::InChild { child, call, answer, refused } => {
                let answer = match answer {
                    None => ForkAnswer::Missing,
                    Some(_) if refused => ForkAnswer::Refused,
                    Some(text) => ForkAnswer::Other(text),
                };
                self.children.entry(child).or_default().calls.insert(call, answer);
            }
            LogEvent::Idle => self.lives[life].idle = true,
            LogEvent::Listed { left } => self.lives[life].listed = Some(left),
        }
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut AcquisitionRecord)) {
        if let Some(&index) = self.by_id.get(id) {
            change(&mut self.asks[index]);
        }
    }

    /// The acquisition with this id.
    pub(crate) fn ask(&self, id: &str) -> Option<&AcquisitionRecord> {
        self.by_id.get(id).map(|&index| &self.asks[index])
    }

    /// The names that workers asked for, each with its acquisitions.
    pub(crate) fn by_name(&self) -> BTreeMap<&str, Vec<&AcquisitionRecord>> {
        let mut names: BTreeMap<&str, Vec<&AcquisitionRecord>> = BTreeMap::new();
        for ask in &self.asks {
            names.entry(&ask.asked.name).or_default().push(ask);
        }
        names
    }

    /// Whether one of the two may have been forgotten in a failover when the other was granted.
    pub(crate) fn one_may_be_forgotten(&self, one: &AcquisitionRecord, other: &AcquisitionRecord) -> bool {
        self.may_be_forgotten(one, other) || self.may_be_forgotten(other, one)
    }

    /// Whether the former master granted or renewed this lease too late for the new one to know when it granted the
    /// other. The holder learns of it within one ttl.
    fn may_be_forgotten(&self, ask: &AcquisitionRecord, other: &AcquisitionRecord) -> bool {
        let (Some(began), Some(believed)) = (ask.began(), ask.believed) else { return false };
        let ttl = u64::try_from(TTL.as_micros()).unwrap_or(u64::MAX);
        // Renewals go at a third of the ttl, with jitter.
        let is_renewed = believed > began + ttl / 4;
        let late = |span: &Span| {
            let granted = ask.asked.at <= span.to && span.from <= began;
            let renewed = is_renewed && began <= span.to && span.from <= believed;
            (granted || renewed) && believed <= span.to + ttl
        };
        let granted_after = |failover: &Failover| other.began().is_some_and(|began| began >= failover.span.from);
        self.failovers.iter().any(|failover| granted_after(failover) && failover.forgets.iter().any(late))
    }

    /// Whether a master was being replaced at some time in this span.
    pub(crate) fn failing_over_within(&self, from: Micros, to: Micros) -> bool {
        self.failovers.iter().any(|failover| failover.span.from <= to && from <= failover.span.to)
    }

    /// The worker process that made the ask.
    pub(crate) fn life_of(&self, ask: &AcquisitionRecord) -> &WorkerLife {
        &self.lives[ask.life]
    }
}

impl WorkerLife {
    /// Whether the process was stopped at some time in this span.
    pub(crate) fn stopped_within(&self, from: Micros, to: Micros) -> bool {
        overlaps(&self.stops, from, to)
    }

    /// Whether the way to the server was disturbed at some time in this span.
    pub(crate) fn disturbed_within(&self, from: Micros, to: Micros) -> bool {
        overlaps(&self.disturbances, from, to)
    }
}

fn overlaps(spans: &[Span], from: Micros, to: Micros) -> bool {
    spans.iter().any(|span| span.from <= to && from <= span.to)
}

impl AcquisitionRecord {
    pub(crate) fn began(&self) -> Option<Micros> {
        self.grant.map(|grant| grant.began)
    }

    /// The fence of the grant, or zero without one.
    pub(crate) fn fence(&self) -> u64 {
        self.grant.map_or(0, |grant| grant.fence)
    }

    /// A line for a report, with instants in seconds after `zero`.
    pub(crate) fn describe(&self, zero: Micros) -> String {
        let since = |at: Micros| seconds(at.saturating_sub(zero));
        let or_none = |at: Option<Micros>| at.map_or_else(|| String::from("-"), since);
        format!(
            "{} {} units={} fence={} asked={} began={} believed={} ending={} released={} gave_up={} lost={}",
            self.id,
            self.asked.name,
            self.asked.units,
            self.fence(),
            since(self.asked.at),
            or_none(self.began()),
            or_none(self.believed),
            or_none(self.ending),
            or_none(self.released),
            or_none(self.gave_up),
            or_none(self.lost),
        )
    }
}
