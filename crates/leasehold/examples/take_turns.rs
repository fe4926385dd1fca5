//! Wait in line with programs of other languages.
//!
//! Whoever asks for `singleton:printer` waits in one queue, be it a Rust program, the command `leasehold run`, a
//! Python or a TypeScript program. The note tells the others who is at it.

use std::env;

use leasehold::{Leasehold, Result};

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let locks = Leasehold::connect(&url).await?;

    let guard = locks.mutex("singleton:printer").note("rust").wait_forever().acquire().await?;
    println!("my turn, after {:?}", guard.waited());
    guard.release().await?;
    locks.close().await
}
