//! Renewing: one call for each partition, and no lease waits for the server of another.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time};

use super::{RedisBackend, keys::Partition, reply, scripts};
use crate::{
    Error, Result,
    lease::{Answer, Fence, Incarnation, Renewal, Standing, micros},
};

/// When some partitions have answered, the next answer is waited for at most this part of the limit: leases whose
/// server answers must not run out because that of another hangs.
const FOR_LATECOMERS: u32 = 4;

/// Renewals of one partition, and where they stood in the call.
#[derive(Default)]
struct Share {
    places: Vec<usize>,
    renewals: Vec<Renewal>,
}

/// What one partition said.
struct Said {
    places: Vec<usize>,
    answer: Result<Answer<Vec<Standing>>>,
}

impl RedisBackend {
    pub(super) async fn renew_all(&self, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        if let [only] = self.keys.all()
            && !renewals.is_empty()
        {
            return self.renew_in(only, renewals).await;
        }
        let mut asking = self.ask_partitions(renewals)?;
        let mut standings = vec![Standing::Unknown; renewals.len()];
        let mut incarnation = None;
        let mut failed = None;
        loop {
            let limit = match incarnation {
                None => Duration::MAX,
                Some(_) => self.options.answer_limit / FOR_LATECOMERS,
            };
            let Ok(next) = time::timeout(limit, asking.join_next()).await else {
                failed = Some(Error::unanswered("some servers are late"));
                break;
            };
            match next {
                Some(Ok(Said { places, answer: Ok(answer) })) => {
                    incarnation = Some(answer.incarnation);
                    places.iter().zip(answer.value).for_each(|(at, standing)| standings[*at] = standing);
                }
                Some(Ok(Said { answer: Err(error), .. })) => failed = Some(error),
                Some(Err(_)) => failed = Some(Error::unavailable("the runtime ends")),
                None => break,
            }
        }
        // Left to run to their limit, so that a connection from which nothing comes is given up.
        asking.detach_all();
        match (incarnation, failed) {
            (Some(incarnation), failed) => {
                if let Some(error) = failed {
                    tracing::warn!(%error, "some leases were not renewed");
                }
                Ok(Answer::new(standings, incarnation))
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(Answer::new(standings, Incarnation(self.told.misses()))),
        }
    }

    /// Begins to ask each partition about its share.
    fn ask_partitions(&self, renewals: &[Renewal]) -> Result<JoinSet<Said>> {
        let this = self.this.upgrade().ok_or_else(|| Error::unavailable("the backend was closed"))?;
        let mut shares: BTreeMap<u16, Share> = BTreeMap::new();
        for (at, renewal) in renewals.iter().enumerate() {
            let share = shares.entry(self.keys.of(&renewal.key.resource).number).or_default();
            share.places.push(at);
            share.renewals.push(renewal.clone());
        }
        let mut asking = JoinSet::new();
        for Share { places, renewals } in shares.into_values() {
            let this = Arc::clone(&this);
            let ask = async move {
                let partition = this.keys.of(&renewals[0].key.resource);
                let answer = this.renew_in(partition, &renewals).await;
                Said { places, answer }
            };
            asking.spawn_on(ask, &self.runtime);
        }
        Ok(asking)
    }

    /// Renews those that stand in one partition.
    async fn renew_in(&self, partition: &Partition, renewals: &[Renewal]) -> Result<Answer<Vec<Standing>>> {
        let resources = renewals.iter().map(|renewal| &renewal.key.resource);
        let call = scripts::RENEW.call(partition, resources).arg(&self.settings);
        let call = renewals.iter().fold(call, |call, renewal| call.arg(renewal_argument(renewal)));
        let answered = match &self.durable {
            None => self.run(partition, &call).await?,
            Some(durable) => {
                let copied = durable.run(&call).await?;
                copied.check(&self.options.place())?;
                copied.answered
            }
        };
        Ok(self.answer(reply::standings(&answered.value)?, &answered))
    }
}

/// One renewal, in the columns that `renew.lua` names.
fn renewal_argument(renewal: &Renewal) -> Vec<u8> {
    let plain = renewal.fence_floor.is_none() && renewal.downgrade.is_none() && renewal.metadata.is_none();
    let less = match renewal.downgrade {
        Some(less) => format!("{} {} {}", less.units(), reply::shape(less.shape()), less.mode()),
        None => String::from("0 0 - -"),
    };
    let metadata = renewal.metadata.as_ref().map(reply::json).unwrap_or_default();
    format!(
        "{} {:013} {} {} {less}\n{}\n{metadata}",
        renewal.key.id,
        micros(renewal.ttl.get()),
        if plain { 'p' } else { 'c' },
        renewal.fence_floor.map_or(0, Fence::get),
        renewal.key.resource,
    )
    .into_bytes()
}
