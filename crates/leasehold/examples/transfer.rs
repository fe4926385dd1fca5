//! Move money between two accounts, in both directions at once, without a deadlock.
//!
//! Each account has a lock `lock:account:{id}:balance`. Two tasks that take two of them one after the other,
//! in different orders, would wait for each other for ever. `all` takes them sorted by name, all or none, so
//! that cannot happen. Where both balances are rows of one database, a transaction is enough; this is for
//! accounts that live in different places.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use leasehold::{Lease, Leasehold, Result};
use tokio::task::JoinSet;

const ACCOUNTS: usize = 8;
const TASKS: usize = 32;

type Bank = [AtomicI64; ACCOUNTS];

fn lock_of(account: usize) -> String {
    format!("lock:account:{account}:balance")
}

async fn transfer(locks: &Leasehold, bank: &Bank, from: usize, to: usize, amount: i64) -> Result<()> {
    let both = locks.all([lock_of(from), lock_of(to)]);
    both.with(async |leases| {
        let [giver, taker] = [from, to].map(|account| bank[account].load(Ordering::SeqCst));
        tokio::task::yield_now().await; // without the locks, another transfer would be overwritten here
        leases.iter().try_for_each(Lease::check)?;
        bank[from].store(giver - amount, Ordering::SeqCst);
        bank[to].store(taker + amount, Ordering::SeqCst);
        Ok(())
    })
    .await
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| String::from("memory:"));
    let instances = [Leasehold::connect(&url).await?, Leasehold::connect(&url).await?];
    let bank: Arc<Bank> = Arc::new(std::array::from_fn(|_| AtomicI64::new(100)));

    let mut transfers = JoinSet::new();
    for (task, amount) in (0..TASKS).zip(1..) {
        let (locks, bank) = (instances[task % 2].clone(), Arc::clone(&bank));
        let (here, there) = (task % ACCOUNTS, (task * 3 + 1) % ACCOUNTS);
        transfers.spawn(async move {
            transfer(&locks, &bank, here, there, amount * amount).await?;
            transfer(&locks, &bank, there, here, amount).await
        });
    }
    transfers.join_all().await.into_iter().collect::<Result<()>>()?;

    let balances: Vec<i64> = bank.iter().map(|balance| balance.load(Ordering::SeqCst)).collect();
    println!("{} transfers, balances {balances:?}", TASKS * 2);
    assert_eq!(balances.iter().sum::<i64>(), 800, "money appeared or went away");
    Ok(())
}
