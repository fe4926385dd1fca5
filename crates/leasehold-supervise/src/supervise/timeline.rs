//! When to warn, send TERM and send KILL, so that the child dies before its lease expires.

use std::time::Duration;

use leasehold::{
    Lease, Loss,
    clock::{Clock, SystemClock},
    lease::Moment,
};

use super::Watch;
use crate::{
    KillMode, Limits, OnLost,
    ended::{Cause, Notice},
    group,
    limits::{KILL_MARGIN, POLL_INTERVAL},
    messages::Order,
    signal::Signal,
};

/// How often to check for stragglers that are waited for; the kernel tells of most ends.
const STRAGGLER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long after KILL to wait before warning.
const OVERDUE: Duration = Duration::from_secs(5);

/// How far the end of a child has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It runs as it should.
    Running,
    /// It was asked to end.
    Stopping { kill_at: Moment },
    /// It was killed, and may take a moment to be dead.
    Killed { overdue_at: Moment },
}

impl Stage {
    /// Adapts the running child's deadlines `at_work` to this stage.
    fn orders(self, at_work: Order, is_suspended: bool) -> Order {
        let Order::Deadlines { term_at, kill_at: end } = at_work else { return at_work };
        match self {
            // One that is stopped would have to run to use its grace.
            Self::Running if is_suspended => Order::Deadlines { term_at: Moment::NEVER, kill_at: end },
            Self::Running => Order::Deadlines { term_at, kill_at: end },
            Self::Stopping { kill_at } => Order::Deadlines { term_at: Moment::NEVER, kill_at: kill_at.min(end) },
            Self::Killed { .. } => Order::Deadlines { term_at: Moment::NEVER, kill_at: Moment::from_micros(0) },
        }
    }
}

impl Watch<'_> {
    /// Does what is due by the clock.
    pub(super) fn keep_time(&mut self) {
        let now = SystemClock.now();
        // One that is stopped gets no grace: it would have to run to use it.
        if self.stage == Stage::Running && self.is_at_work() && self.suspended.is_none() && !self.has_loss() {
            self.warn_if_in_doubt();
            let grace = self.grace_before_deadline();
            if let (Some(grace), Some(left)) = (grace, self.time_left())
                && left <= grace
            {
                self.stop(Cause::Lost(Loss::RenewTimeout), left);
            } else if self.limits.max_hold.is_some_and(|most| now >= self.started.after(most)) {
                self.stop(Cause::MaxHold, self.limits.kill_after);
            }
        }
        match self.stage {
            Stage::Stopping { kill_at } if now >= kill_at => self.kill(),
            Stage::Killed { overdue_at } => {
                self.kill_remaining();
                if now >= overdue_at {
                    (self.notify)(Notice::Overdue);
                    self.stage = Stage::Killed { overdue_at: Moment::NEVER };
                }
            }
            _ => {}
        }
    }

    /// Reports a late renewal once.
    fn warn_if_in_doubt(&mut self) {
        let latest = self.leases.iter().enumerate().filter_map(|(at, lease)| Some((lease.remaining()?, at))).min();
        let is_late = latest.is_some_and(|(left, _)| is_late(left, self.limits.ttl));
        if let Some((left, lease)) = latest
            && is_late
            && !self.in_doubt
        {
            (self.notify)(Notice::InDoubt { lease, left });
        }
        self.in_doubt = is_late;
    }

    /// How long before the deadline the child is asked to end; `None` if it is not.
    fn grace_before_deadline(&self) -> Option<Duration> {
        matches!(self.limits.on_lost, OnLost::Terminate | OnLost::Signal(_)).then_some(self.limits.kill_after)
    }

    fn remaining(&self) -> Option<Duration> {
        shortest(self.leases)
    }

    /// Whether a lease was lost or taken away a moment ago, which is yet to be acted upon: with its own grace.
    fn has_loss(&self) -> bool {
        !matches!(self.cause, Some(Cause::Lost(_))) && self.leases.iter().any(|lease| lease.loss().is_some())
    }

    /// Tells the supervisor when to act should we hang, if that has changed.
    pub(super) fn give_orders(&mut self) {
        if self.stage == Stage::Running && self.has_loss() {
            return;
        }
        // A command that is being stopped has its grace though one of its leases was taken away.
        let counts = |lease: &&Lease| self.stage == Stage::Running || lease.loss().is_none();
        let at_work = first_orders(self.leases.iter().filter(counts), &self.limits);
        let orders = self.stage.orders(at_work, self.suspended.is_some());
        if differ(orders, self.orders) && self.supervisor.order(orders) {
            self.orders = orders;
        }
    }

    /// The supervisor asked the child to end while we gave no orders.
    pub(super) fn on_term_sent(&mut self) {
        if self.stage == Stage::Running {
            let (cause, signal) = (Cause::Lost(Loss::RenewTimeout), self.signal_for_loss());
            let grace = self.time_left().unwrap_or_default().min(self.limits.kill_after);
            self.cause = Some(cause);
            (self.notify)(Notice::Stopping { cause, signal, grace: Some(grace) });
            self.stage = Stage::Stopping { kill_at: SystemClock.now().after(grace) };
        }
    }

    /// The supervisor was killed, and the child with it; the others are ours to kill.
    pub(super) fn take_over(&mut self) {
        (self.notify)(Notice::SupervisorGone);
        self.kill();
    }

    /// How long the child may go on unless a renewal comes.
    fn time_left(&self) -> Option<Duration> {
        self.remaining().map(|left| left.saturating_sub(self.limits.kill_margin()))
    }

    /// When something is due next; `None` while only a signal or a loss can change anything.
    pub(super) fn next_wake(&mut self) -> Option<Moment> {
        let now = SystemClock.now();
        if !self.is_at_work() || matches!(self.stage, Stage::Killed { .. }) {
            let pause = self.poll_interval;
            self.poll_interval = (self.poll_interval * 2).min(POLL_INTERVAL[1]);
            return Some(now.after(pause));
        }
        if let Stage::Stopping { kill_at } = self.stage {
            return Some(kill_at);
        }
        let after = |left: Duration, point: Duration| now.after(left.saturating_sub(point));
        let half = self.limits.ttl / 2;
        let doubt = self.remaining().filter(|left| !self.in_doubt && !left.is_zero()).map(|left| after(left, half));
        let grace = self.grace_before_deadline();
        let term = self.time_left().and_then(|left| Some(after(left, grace?)));
        let most = self.limits.max_hold.map(|most| self.started.after(most));
        let look = self.awaits_stragglers.then(|| now.after(STRAGGLER_POLL_INTERVAL));
        // The supervisor is told of each renewal well before it would act on the one before.
        let orders = self.remaining().map(|left| {
            let before_it_acts = left.saturating_sub(2 * KILL_MARGIN);
            now.after(if before_it_acts.is_zero() {
                self.limits.ttl / 6
            } else {
                before_it_acts.min(self.limits.ttl / 6)
            })
        });
        doubt.into_iter().chain(term).chain(most).chain(look).chain(orders).min()
    }

    /// A lease is gone for certain.
    pub(super) fn lose(&mut self, loss: Loss) {
        let cause = Cause::Lost(loss);
        let time_is_up = loss == Loss::RenewTimeout || self.suspended.is_some();
        match self.limits.on_lost {
            OnLost::Continue => {
                self.cause = Some(cause);
                (self.notify)(Notice::ContinuesWithoutLease { loss });
            }
            OnLost::Terminate | OnLost::Signal(_) if !time_is_up && self.is_at_work() => {
                self.stop(cause, self.limits.kill_after);
            }
            _ => self.lose_now(loss),
        }
    }

    /// A lease is gone and there is no time left.
    pub(super) fn lose_now(&mut self, loss: Loss) {
        let cause = Cause::Lost(loss);
        if !matches!(self.cause.replace(cause), Some(Cause::Lost(_))) {
            (self.notify)(Notice::Stopping { cause, signal: Signal::KILL, grace: None });
        }
        self.kill();
    }

    /// Asks the child to end, and sees to it after the grace.
    fn stop(&mut self, cause: Cause, grace: Duration) {
        let signal = if matches!(cause, Cause::Lost(_)) { self.signal_for_loss() } else { Signal::TERM };
        self.cause = Some(cause);
        (self.notify)(Notice::Stopping { cause, signal, grace: Some(grace) });
        self.signal(signal);
        self.signal(Signal::CONT);
        let kill_at = SystemClock.now().after(grace);
        self.stage = match self.stage {
            Stage::Stopping { kill_at: earlier } => Stage::Stopping { kill_at: kill_at.min(earlier) },
            _ => Stage::Stopping { kill_at },
        };
    }

    fn signal_for_loss(&self) -> Signal {
        match self.limits.on_lost {
            OnLost::Signal(signal) => signal,
            _ => Signal::TERM,
        }
    }

    fn kill(&mut self) {
        self.stage = Stage::Killed { overdue_at: SystemClock.now().after(OVERDUE) };
        self.poll_interval = POLL_INTERVAL[0];
        self.kill_remaining();
    }

    /// Kills the remaining processes; new processes may have been forked.
    fn kill_remaining(&mut self) {
        self.signal(Signal::KILL);
        if self.limits.kill_mode == KillMode::Process {
            return;
        }
        let denied = group::kill_each(self.left());
        if denied != self.denied {
            self.denied.clone_from(&denied);
            if !denied.is_empty() {
                (self.notify)(Notice::Denied { left: denied });
            }
        }
    }

    /// Whether the child runs, or others do whom we wait for.
    fn is_at_work(&self) -> bool {
        self.status.is_none() || self.awaits_stragglers
    }

    /// Asks those to end who outlive the child in its group.
    pub(super) fn stop_group(&mut self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
        self.stage = Stage::Stopping { kill_at: SystemClock.now().after(self.limits.kill_after) };
    }

    /// Whether the lease is lost and the child goes on all the same, as wished.
    pub(super) fn goes_on(&self) -> bool {
        self.limits.on_lost == OnLost::Continue && self.cause.is_some()
    }
}

fn shortest<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> Option<Duration> {
    leases.into_iter().filter_map(Lease::remaining).min()
}

/// When the supervisor acts by itself unless it hears of a renewal.
pub(super) fn first_orders<'a>(leases: impl IntoIterator<Item = &'a Lease>, limits: &Limits) -> Order {
    match shortest(leases) {
        Some(left) => orders_before(SystemClock.now().after(left), limits),
        None => Order::Deadlines { term_at: Moment::NEVER, kill_at: Moment::NEVER },
    }
}

/// What the supervisor should do before a lease ends.
///
/// It sends TERM a moment later than we would, so that it sends it only if we do not. It kills when we would: on a busy
/// machine its timer fires late, too, and to be killed twice makes no difference.
fn orders_before(end: Moment, limits: &Limits) -> Order {
    match limits.on_lost {
        OnLost::Terminate | OnLost::Signal(_) => {
            let kill_at = end.before(limits.kill_margin());
            let later = KILL_MARGIN.min(limits.kill_after / 2);
            Order::Deadlines { term_at: kill_at.before(limits.kill_after).after(later), kill_at }
        }
        OnLost::Kill => Order::Deadlines { term_at: Moment::NEVER, kill_at: end },
        OnLost::Continue => Order::Deadlines { term_at: Moment::NEVER, kill_at: Moment::NEVER },
    }
}

/// Whether orders differ by more than what reading the clock twice does.
fn differ(one: Order, other: Order) -> bool {
    match (one, other) {
        (
            Order::Deadlines { term_at, kill_at },
            Order::Deadlines { term_at: other_term_at, kill_at: other_kill_at },
        ) => {
            let far = |a: Moment, b: Moment| a.since(b).max(b.since(a)) > Duration::from_millis(5);
            far(term_at, other_term_at) || far(kill_at, other_kill_at)
        }
        _ => true,
    }
}

/// Whether half of the lease is gone. When all of it is, as after a stop, there is nothing left to warn of.
fn is_late(left: Duration, ttl: Duration) -> bool {
    left <= ttl / 2 && !left.is_zero()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_late_while_something_is_left_of_the_lease() {
        let ttl = Duration::from_secs(30);
        for (left, expected) in [(30_000, false), (15_001, false), (15_000, true), (1, true), (0, false)] {
            assert_eq!(is_late(Duration::from_millis(left), ttl), expected, "{left}");
        }
    }

    #[test]
    fn the_supervisor_kills_as_early_as_we_would_and_sends_term_a_little_later() {
        let at = |millis: u64| Moment::from_micros(millis * 1000);
        for (kill_after, term_at) in [(5000, 25_000), (60, 29_870), (0, 29_900)] {
            let limits = Limits {
                ttl: Duration::from_secs(30),
                kill_after: Duration::from_millis(kill_after),
                kill_mode: KillMode::Group,
                on_lost: OnLost::Terminate,
                max_hold: None,
                kill_on_term: false,
                stragglers: crate::Stragglers::Stop,
            };
            let expected = Order::Deadlines { term_at: at(term_at), kill_at: at(29_900) };
            assert_eq!(orders_before(at(30_000), &limits), expected, "{kill_after}");
        }
    }

    #[test]
    fn a_grace_never_outlasts_the_lease() {
        let at = Moment::from_micros;
        let orders = |stage: Stage| stage.orders(Order::Deadlines { term_at: at(5), kill_at: at(10) }, false);
        for (kill_at, expected) in [(7, 7), (10, 10), (12, 10)] {
            let expected = Order::Deadlines { term_at: Moment::NEVER, kill_at: at(expected) };
            assert_eq!(orders(Stage::Stopping { kill_at: at(kill_at) }), expected);
        }
        assert_eq!(orders(Stage::Running), Order::Deadlines { term_at: at(5), kill_at: at(10) });
    }
}
