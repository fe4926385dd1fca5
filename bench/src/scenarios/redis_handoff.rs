//! Hand-off on Redis: tasks that want the same name, beside a bare hand-off by PUBLISH.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use leasehold::Leasehold;
use leasehold_testkit::redis::Server;
use parking_lot::Mutex;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Script, Value, aio::MultiplexedConnection};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::yield_now,
};

use super::prelude::*;
use crate::redis_locks::report_server_costs;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "redis-handoff",
    title: "redis:, hand-off among 16 and among 64 tasks on one name, beside a bare reference: a list of waiters, and a \
            script that hands the key to the first of them and publishes its number, all on one connection.",
    measure,
};

fn measure(effort: Effort, section: &mut Section) -> Result<()> {
    let server = Server::start();
    let runtime = two_workers()?;
    let locks = runtime.block_on(Leasehold::builder().wait_forever().connect(&server.url()))?;
    let push = runtime.block_on(PushLock::open(&server))?;
    for waiters in [16, 64] {
        let contenders = [
            pairs::turns(&runtime, waiters, &locks),
            Contender::new("push", |count| {
                pairs::spread(&runtime, waiters, count, |_, count| {
                    let mut push = push.clone();
                    async move {
                        for _ in 0..count {
                            push.acquire().await?;
                            yield_now().await;
                            push.release().await?;
                        }
                        Ok(())
                    }
                })
            }),
        ];
        let scores = compare(effort, &contenders)?;
        section.contenders(&scores);
        report_server_costs(&server, &contenders, &format!("{waiters} waiters: "), section)?;
        section.ratio(format!("{waiters} waiters: rate, beside push"), scores[1].ratio, Bar::AtLeast(0.8));
    }
    runtime.block_on(locks.close())?;
    Ok(())
}

const CHANNEL: &str = "push:granted";

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return 1 end \
         redis.call('RPUSH', KEYS[2], ARGV[1]) return 0",
    )
});

static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local next = redis.call('LPOP', KEYS[2]) \
         if next then redis.call('SET', KEYS[1], next, 'PX', 30000) redis.call('PUBLISH', ARGV[1], next) \
         else redis.call('DEL', KEYS[1]) end return 1",
    )
});

/// The least that a hand-off by PUBLISH costs: no expiry of waiters, no fence, no history.
#[derive(Clone)]
struct PushLock {
    connection: MultiplexedConnection,
    next_waiter: Arc<AtomicU64>,
    waiters: Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>,
}

impl PushLock {
    async fn open(server: &Server) -> Result<Self> {
        let (sender, mut pushes) = mpsc::unbounded_channel::<PushInfo>();
        let client = redis::Client::open(format!("{}?protocol=resp3", server.url()))?;
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        connection.subscribe(CHANNEL).await?;
        let waiters = Arc::new(Mutex::new(HashMap::<u64, oneshot::Sender<()>>::new()));
        let waiting = Arc::clone(&waiters);
        Handle::current().spawn(async move {
            while let Some(push) = pushes.recv().await {
                if push.kind == PushKind::Message
                    && let Some(Value::BulkString(number)) = push.data.get(1)
                    && let Some(waiter) = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok())
                    && let Some(granted) = waiting.lock().remove(&waiter)
                {
                    let _waiter_left = granted.send(());
                }
            }
        });
        Ok(Self { connection, next_waiter: Arc::default(), waiters })
    }

    async fn acquire(&mut self) -> Result<()> {
        let waiter = self.next_waiter.fetch_add(1, Relaxed);
        let (granted, grant) = oneshot::channel();
        self.waiters.lock().insert(waiter, granted);
        if ACQUIRE.key("push:lock").key("push:queue").arg(waiter).invoke_async::<u64>(&mut self.connection).await? == 1
        {
            self.waiters.lock().remove(&waiter);
            return Ok(());
        }
        Ok(grant.await?)
    }

    async fn release(&mut self) -> Result<()> {
        RELEASE.key("push:lock").key("push:queue").arg(CHANNEL).invoke_async::<u64>(&mut self.connection).await?;
        Ok(())
    }
}
