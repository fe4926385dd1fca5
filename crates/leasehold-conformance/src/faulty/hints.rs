//! What happens to the hints of a faulty backend on their way.

use std::{sync::Arc, thread, time::Duration};

use leasehold::backend::{Hint, HintSender, Hints};
use parking_lot::Mutex;
use tokio::{runtime, sync::oneshot, task::JoinSet, time};

/// What happens to hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintFaults {
    /// All are lost.
    pub drop: bool,
    /// All come twice.
    pub double: bool,
    /// All come so much later.
    pub delay: Duration,
}

/// Passes hints on. A thread of its own does, so that no runtime is asked for.
#[derive(Debug)]
pub(super) struct Relay {
    road: Arc<Road>,
    _stopped_by_drop: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct Road {
    sender: HintSender,
    faults: Mutex<HintFaults>,
    cut: Mutex<bool>,
}

impl Relay {
    pub(super) fn start(hints: Hints) -> Self {
        let road = Arc::new(Road::default());
        let (stop, stopped) = oneshot::channel();
        let relay = Self { road: Arc::clone(&road), _stopped_by_drop: stop };
        thread::Builder::new()
            .name(String::from("faulty-hints"))
            .spawn(move || {
                let runtime = runtime::Builder::new_current_thread().enable_time().build();
                runtime.expect("a timer can be made").block_on(road.carry(hints, stopped));
            })
            .expect("a thread can be started");
        relay
    }

    pub(super) fn hints(&self) -> Hints {
        self.road.sender.subscribe()
    }

    pub(super) fn send(&self, hint: Hint) {
        self.road.sender.send(hint);
    }

    pub(super) fn cut(&self) {
        *self.road.cut.lock() = true;
    }

    pub(super) fn heal(&self) {
        *self.road.cut.lock() = false;
    }

    pub(super) fn faults(&self) -> HintFaults {
        *self.road.faults.lock()
    }

    pub(super) fn set(&self, faults: HintFaults) {
        *self.road.faults.lock() = faults;
    }
}

impl Road {
    async fn carry(&self, mut hints: Hints, mut stopped: oneshot::Receiver<()>) {
        let mut on_the_way = JoinSet::new();
        let mut hints_end = false;
        loop {
            tokio::select! {
                _ = &mut stopped => return,
                Some(Ok(arrived)) = on_the_way.join_next() => self.sender.send(arrived),
                hint = hints.next(), if !hints_end => match hint {
                    Some(hint) => self.take(&hint, &mut on_the_way),
                    None => hints_end = true,
                },
            }
        }
    }

    fn take(&self, hint: &Hint, on_the_way: &mut JoinSet<Hint>) {
        let faults = *self.faults.lock();
        if faults.drop || *self.cut.lock() {
            return;
        }
        let copies = if faults.double { 2 } else { 1 };
        for hint in (0..copies).map(|_| hint.clone()) {
            if faults.delay.is_zero() {
                self.sender.send(hint);
            } else {
                on_the_way.spawn(async move {
                    time::sleep(faults.delay).await;
                    hint
                });
            }
        }
    }
}
