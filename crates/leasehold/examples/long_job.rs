//! Do a job that outlasts its lease several times over.
//!
//! The lock `job:{type}:{id}` has a short ttl, so that others need not wait long after a crash. That says
//! nothing about how long the job may take: the lease is renewed at a third of its ttl, on a thread of its
//! own. What renewal cannot promise is that it succeeds, so the job asks `check` before each step, and asks
//! for more time before the one step that must not be interrupted.

use std::{env, time::Duration};

use leasehold::{Leasehold, Result};

const TTL: Duration = Duration::from_millis(300);

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let (worker, other) = (Leasehold::connect(&url).await?, Leasehold::connect(&url).await?);

    let guard = worker.mutex("job:transcode:7").ttl(TTL).note("transcoding").acquire().await?;
    let fence = guard.fence();

    let mut done = 0;
    for _scene in 0..9 {
        guard.check()?; // an error here ends the job before it does harm
        tokio::time::sleep(Duration::from_millis(100)).await; // … transcode one scene …
        done += 1;
        assert!(other.mutex("job:transcode:7").try_acquire().await?.is_none(), "the job is not done");
    }
    println!("{done} scenes in three times the ttl, still fence {}", guard.fence());
    assert_eq!(guard.fence(), fence);

    // Renewed to last for the upload even if nothing renews it meanwhile.
    guard.renew(Duration::from_secs(10)).await?;
    println!("renewed before the upload: {:?} left", guard.remaining());
    assert!(guard.remaining().is_none_or(|left| left > Duration::from_secs(5)), "None: no clock ends it here");

    guard.release().await?;
    let next = other.mutex("job:transcode:7").try_acquire().await?.expect("free at once, not after 10 s");
    assert!(next.fence() > fence);
    next.release().await?;
    Ok(())
}
