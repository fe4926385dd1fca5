//! Charge an order exactly once, although its message is delivered to two instances.
//!
//! The lock `lock:order:{id}:process` lets one instance at a time work on an order. A lock alone is not
//! enough: its holder may be stopped for so long that the lock passes on, and wake up believing in it. So
//! each charge carries the fence, and the ledger refuses a fence below the newest it has seen. That an
//! order is paid is the ledger's own knowledge; the lock makes looking, asking the bank and writing one step.

use std::{
    collections::HashMap,
    env,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use leasehold::{Fence, Leasehold, Result};
use tokio::sync::Mutex;

#[derive(Debug, PartialEq)]
enum Charge {
    Done,
    AlreadyPaid,
    StaleFence,
}

#[derive(Default)]
struct Ledger {
    /// For each order the newest fence seen, and whether it is paid.
    orders: Mutex<HashMap<u32, (Fence, bool)>>,
    asked_the_bank: AtomicU32,
}

impl Ledger {
    async fn charge(&self, order: u32, fence: Fence) -> Charge {
        let mut orders = self.orders.lock().await;
        let (newest, paid) = orders.entry(order).or_default();
        if fence < *newest {
            return Charge::StaleFence;
        }
        *newest = fence;
        if std::mem::replace(paid, true) { Charge::AlreadyPaid } else { Charge::Done }
    }

    async fn is_paid(&self, order: u32) -> bool {
        self.orders.lock().await.get(&order).is_some_and(|(_, paid)| *paid)
    }
}

async fn process(instance: &Leasehold, ledger: &Ledger, order: u32) -> Result<Charge> {
    let lock = instance.mutex(format!("lock:order:{order}:process"));
    lock.with(async |lease| {
        if ledger.is_paid(order).await {
            return Ok(Charge::AlreadyPaid);
        }
        ledger.asked_the_bank.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await; // … the bank thinks …
        Ok(ledger.charge(order, lease.fence()).await)
    })
    .await
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let (one, two) = (Leasehold::connect(&url).await?, Leasehold::connect(&url).await?);
    let ledger = Ledger::default();

    let (first, second) = tokio::join!(process(&one, &ledger, 42), process(&two, &ledger, 42));
    let answers = [first?, second?];
    println!("order 42, delivered twice: {answers:?}");
    assert!(answers.contains(&Charge::Done) && answers.contains(&Charge::AlreadyPaid));
    assert_eq!(ledger.asked_the_bank.load(Ordering::SeqCst), 1);

    // An instance that hangs before it charges: an operator takes its lock away and another one goes on.
    let hung = one.mutex("lock:order:43:process").acquire().await?;
    two.evict(hung.resource(), hung.fence(), "hangs since noon").await?;
    assert_eq!(process(&two, &ledger, 43).await?, Charge::Done);

    let too_late = ledger.charge(43, hung.fence()).await;
    println!("order 43, by the one who woke up too late: {too_late:?}");
    assert_eq!(too_late, Charge::StaleFence);
    Ok(())
}
