//! Run a scheduler on one instance, and on another as soon as that one stops.
//!
//! Every instance takes part in the election `leader:scheduler`. `start` campaigns in the background, again
//! after each loss; the callbacks tell when to start and stop scheduling. `is_leader` is false from the
//! deadline on, whatever the network does, so the leader asks it before each step. The lease's fence is the
//! number of its term: send it along with what the scheduler writes.

use std::{env, time::Duration};

use leasehold::{Candidate, Holder, Leasehold, Result};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[derive(Debug, PartialEq)]
enum Change {
    Elected(&'static str),
    SteppedDown(&'static str),
}

async fn take_part(url: &str, name: &'static str, changes: &UnboundedSender<Change>) -> Result<Candidate> {
    let (elected, lost) = (changes.clone(), changes.clone());
    let election = Leasehold::connect(url).await?.election("leader:scheduler");
    election
        .holder(Holder::new(name)?)
        .value(format!("http://{name}:8080"))
        .on_elected(move |_lease| drop(elected.send(Change::Elected(name))))
        .on_lost(move || drop(lost.send(Change::SteppedDown(name))))
        .start()
        .await
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let (changes, mut received) = unbounded_channel();

    let one = take_part(&url, "one", &changes).await?;
    assert_eq!(received.recv().await, Some(Change::Elected("one")));
    let two = take_part(&url, "two", &changes).await?;

    // Anyone may follow who leads, without being a candidate.
    let clients = Leasehold::connect(&url).await?;
    let mut observer = clients.election("leader:scheduler").observe().await?;
    let leader = observer.next().await.expect("the backend is there")?.expect("someone leads");
    println!("{} leads at {}", leader.holder, leader.value.unwrap_or_default());
    assert_eq!(leader.holder.as_str(), "one");

    let mut ticks = 0;
    while one.is_leader() && ticks < 3 {
        tokio::time::sleep(Duration::from_millis(20)).await; // … start what is due …
        ticks += 1;
    }
    assert_eq!(ticks, 3);
    assert!(!two.is_leader());

    one.stop().await?;
    assert_eq!(received.recv().await, Some(Change::SteppedDown("one")), "before anyone else can lead");
    assert_eq!(received.recv().await, Some(Change::Elected("two")));
    assert!(two.is_leader());

    let next = loop {
        if let Some(next) = observer.next().await.expect("the backend is there")? {
            break next;
        }
    };
    println!("{} leads at {}", next.holder, next.value.unwrap_or_default());
    assert!(next.holder.as_str() == "two" && next.fence > leader.fence, "terms rise");
    two.stop().await
}
