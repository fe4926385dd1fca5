//! Followers see what happens, in the order it happens, from every instance.

use leasehold::{
    Holder,
    backend::Missed,
    lease::{Claim, Ending, Event, EventKind, Names, Outcome},
};

use super::TrialContext;
use crate::instance::{EventReader, ask, attempt, resource};

pub(super) async fn in_order(context: TrialContext) {
    let (one, two, three) = (context.instance().await, context.instance().await, context.instance().await);
    let mut watches = [three.watch(Names::All).await, one.watch(Names::Exactly(resource("x"))).await];
    let (first, second, third) = (ask("x", Claim::EXCLUSIVE), ask("x", Claim::EXCLUSIVE), ask("x", Claim::EXCLUSIVE));
    let fence = one.granted(&first).await.fence;
    two.queued(&second).await;
    two.queued(&third).await;
    two.busy(&attempt("x", Claim::EXCLUSIVE)).await;
    one.release_as(&first, &Outcome::failed("E", "it broke")).await;
    let second_fence = two.holding(&second).await.fence;
    two.release(&third).await;
    three.evict("x", second_fence, "stuck").await;

    let expected = [
        (&first.holder, EventKind::Acquired { fence }),
        (&second.holder, EventKind::Waiting),
        (&third.holder, EventKind::Waiting),
        (&first.holder, EventKind::Ended { ending: Ending::Failed, fence: Some(fence) }),
        (&second.holder, EventKind::Acquired { fence: second_fence }),
        (&third.holder, EventKind::Ended { ending: Ending::Cancelled, fence: None }),
        (&second.holder, EventKind::Ended { ending: Ending::Evicted, fence: Some(second_fence) }),
    ];
    for watch in &mut watches {
        let mut last = None;
        for (holder, kind) in &expected {
            let event = expect(watch, holder, kind).await;
            assert!(last <= Some(event.at), "events are dated in order");
            last = Some(event.at);
        }
        watch.nothing().await;
    }
}

async fn expect(watch: &mut EventReader, holder: &Holder, kind: &EventKind) -> Event {
    let event = watch.next().await;
    assert_eq!((&event.holder, &event.kind), (holder, kind));
    assert_eq!((event.resource.as_str(), event.claim), ("x", Claim::EXCLUSIVE));
    event
}

pub(super) async fn only_these_names(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    one.granted(&ask("job:0", Claim::EXCLUSIVE)).await;
    let mut jobs = two.watch(Names::Prefix(String::from("job:"))).await;
    let mut exactly = two.watch(Names::Exactly(resource("job:2"))).await;
    for name in ["jo", "job:1", "other", "job:2", "job:22"] {
        one.granted(&ask(name, Claim::EXCLUSIVE)).await;
    }
    for name in ["job:1", "job:2", "job:22"] {
        assert_eq!(jobs.next().await.resource.as_str(), name);
    }
    assert_eq!(exactly.next().await.resource.as_str(), "job:2");
    jobs.nothing().await;
    exactly.nothing().await;
}

/// Far more happens than anyone keeps for a slow reader.
pub(super) async fn late_reader(context: TrialContext) {
    let (one, two) = context.two_instances().await;
    let mut watch = two.watch(Names::Exactly(resource("x"))).await;
    let grants = 1200;
    for _ in 1..grants {
        let request = ask("x", Claim::EXCLUSIVE);
        one.granted(&request).await;
        one.free(&request).await;
    }
    let last = one.granted(&ask("x", Claim::EXCLUSIVE)).await.fence;
    let (mut seen, mut missed) = (0, false);
    loop {
        match watch.next_or_missed().await {
            Err(Missed { .. }) => missed = true,
            Ok(Event { kind: EventKind::Acquired { fence }, .. }) => {
                seen += 1;
                if fence == last {
                    break;
                }
            }
            Ok(_) => {}
        }
    }
    assert!(missed || seen == grants, "{seen} of {grants} grants, and not a word of what was missed");
}
