//! Renews held leases in one statement, and everything else in a task of its own. A lease that ends with a
//! connection which the instance has left counts as lost, even if the server still has it.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, sync::Mutex, time::timeout};
use tokio_postgres::{
    Row,
    types::{Json, Type},
};
use uuid::Uuid;

use super::{
    calls::Call,
    connection::{Links, Reply},
    decode,
    encode::{int, long, storable_metadata},
    errors::{Failure, Kind},
    liveness::{DeathWatch, Sessions},
    ops::Caller,
};
use crate::{
    backend::HintSender,
    lease::{Answer, Incarnation, Renewal, Standing, micros},
};

/// How many entries that may have to wait for a lock are renewed in one statement.
const EACH_BATCH: usize = 100;

/// The least time for renewals that may have to wait for a lock, where nothing else waits for their answer.
const ALONE: Duration = Duration::from_secs(1);

/// What renews.
#[derive(Debug)]
pub(super) struct Renewals {
    aside: Arc<Aside>,
    turn: Arc<Mutex<()>>,
    runtime: Handle,
}

/// Renews what may have to wait for a lock.
#[derive(Debug)]
struct Aside {
    links: Arc<Links>,
    caller: Caller,
    hints: HintSender,
    deaths: Arc<DeathWatch>,
}

impl Renewals {
    pub(super) fn new(links: Arc<Links>, caller: Caller, hints: HintSender, deaths: Arc<DeathWatch>) -> Self {
        let runtime = links.connector.runtime.clone();
        Self { aside: Arc::new(Aside { links, caller, hints, deaths }), turn: Arc::default(), runtime }
    }

    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        sessions: Sessions,
    ) -> Result<Answer<Vec<Standing>>, Failure> {
        let mut standings = vec![Standing::Unknown; renewals.len()];
        let mut left: Vec<usize> = (0..renewals.len()).collect();
        let plain: Vec<usize> = left.iter().copied().filter(|at| changes_nothing(&renewals[*at])).collect();
        let mut incarnation = None;
        if !plain.is_empty() {
            let renewed = self.aside.together(&sessions, plain.iter().map(|at| &renewals[*at])).await?;
            incarnation = Some(renewed.incarnation);
            for decode::Answer { at, verdict, .. } in renewed.answers {
                if let Some(at) = plain.get(at) {
                    standings[*at] = verdict.standing();
                }
            }
            left.retain(|at| standings[*at] == Standing::Unknown);
        }
        if !left.is_empty() {
            // Those that wait for a stranger's transaction must not keep the answer from those that were renewed.
            let most = renewals.iter().map(|renewal| renewal.ttl.get()).min().unwrap_or_default() / 6;
            let most = if left.len() == renewals.len() { most.max(ALONE) } else { most };
            let asked = left.iter().map(|at| renewals[*at].clone()).collect();
            match timeout(most, self.renew_aside(asked, sessions)).await {
                Ok(Ok((found, life))) => {
                    incarnation = incarnation.or(life);
                    for (at, standing) in left.iter().zip(found) {
                        standings[*at] = standing;
                    }
                }
                Ok(Err(failure)) if incarnation.is_none() => return Err(failure),
                // These leases stay `Unknown`; the next renewal tries them again.
                _ => {}
            }
        }
        for (renewal, standing) in renewals.iter().zip(&standings) {
            self.aside.links.note(renewal.key.id, standing);
        }
        match incarnation {
            Some(incarnation) => Ok(Answer::new(standings, incarnation)),
            None => Ok(Answer::new(standings, self.aside.links.main().await?.greeting.incarnation)),
        }
    }

    /// One at a time and in a task of its own: a statement that waits for a lock goes on when nobody listens for its
    /// answer any more, and more of them must not pile up behind it.
    async fn renew_aside(
        &self,
        asked: Vec<Renewal>,
        sessions: Sessions,
    ) -> Result<(Vec<Standing>, Option<Incarnation>), Failure> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let aside = Arc::clone(&self.aside);
        let task = self.runtime.spawn(async move {
            let renewed = aside.renew(&asked, &sessions).await;
            drop(turn);
            renewed
        });
        task.await.unwrap_or_else(|_| Err(Failure::new(Kind::Unavailable, "the connection to postgres was closed")))
    }
}

impl Aside {
    async fn renew(
        &self,
        asked: &[Renewal],
        sessions: &Sessions,
    ) -> Result<(Vec<Standing>, Option<Incarnation>), Failure> {
        let mut standings = vec![Standing::Unknown; asked.len()];
        let mut life = None;
        for (asked, standings) in asked.chunks(EACH_BATCH).zip(standings.chunks_mut(EACH_BATCH)) {
            match self.renew_chunk(asked, sessions, standings).await {
                Ok(now) => life = Some(now),
                Err(failure) if !matches!(failure.kind, Kind::Locked | Kind::Overtaken) => return Err(failure),
                // One that is locked leaves the others in the chunk unknown: ask for each alone.
                Err(_) if asked.len() > 1 => {
                    for (asked, standings) in asked.chunks(1).zip(standings.chunks_mut(1)) {
                        life = self.renew_chunk(asked, sessions, standings).await.ok().or(life);
                    }
                }
                Err(_) => {}
            }
        }
        Ok((standings, life))
    }

    async fn renew_chunk(
        &self,
        asked: &[Renewal],
        sessions: &Sessions,
        standings: &mut [Standing],
    ) -> Result<Incarnation, Failure> {
        let Renewed { answers, incarnation } = self.one_by_one(sessions, asked.iter()).await?;
        for decode::Answer { at, verdict, hints } in answers {
            for hint in hints {
                self.hints.send(hint);
            }
            if let (Some(asked), Some(standing)) = (asked.get(at), standings.get_mut(at)) {
                if verdict.is_bound() {
                    self.deaths.add(&asked.key);
                }
                *standing = verdict.standing();
            }
        }
        Ok(incarnation)
    }

    async fn together<'a>(
        &self,
        sessions: &Sessions,
        renewals: impl Iterator<Item = &'a Renewal>,
    ) -> Result<Renewed, Failure> {
        let (mut names, mut ids, mut ttls) = (Vec::new(), Vec::new(), Vec::new());
        for renewal in renewals {
            names.push(renewal.key.resource.as_str());
            ids.push(Uuid::from_u128(renewal.key.id.as_u128()));
            ttls.push(long(micros(renewal.ttl.get())));
        }
        let reply = self
            .links
            .ask(
                Call::RenewMany,
                &[
                    (&self.caller.namespace, Type::TEXT),
                    (&self.caller.channel, Type::TEXT),
                    (&sessions.left, Type::INT4_ARRAY),
                    (&names, Type::TEXT_ARRAY),
                    (&ids, Type::UUID_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                ],
            )
            .await?;
        Renewed::from(&reply, decode::renewed)
    }

    async fn one_by_one<'a>(
        &self,
        sessions: &Sessions,
        renewals: impl Iterator<Item = &'a Renewal>,
    ) -> Result<Renewed, Failure> {
        let (mut names, mut ids, mut ttls) = (Vec::new(), Vec::new(), Vec::new());
        let (mut floors, mut modes, mut units) = (Vec::new(), Vec::new(), Vec::new());
        let (mut capacities, mut metadata) = (Vec::new(), Vec::new());
        for renewal in renewals {
            names.push(renewal.key.resource.as_str());
            ids.push(Uuid::from_u128(renewal.key.id.as_u128()));
            ttls.push(long(micros(renewal.ttl.get())));
            floors.push(renewal.fence_floor.map(|floor| long(floor.get())));
            modes.push(renewal.downgrade.map(|claim| decode::code(claim.mode())));
            units.push(renewal.downgrade.map(|claim| int(claim.units())));
            capacities.push(renewal.downgrade.map(|claim| int(claim.capacity())));
            metadata.push(renewal.metadata.as_ref().map(|metadata| Json(storable_metadata(metadata))));
        }
        let reply = self
            .links
            .ask_aside(
                Call::RenewEach,
                &[
                    (&self.caller.namespace, Type::TEXT),
                    (&self.caller.channel, Type::TEXT),
                    (&sessions.now, Type::INT4),
                    (&sessions.left, Type::INT4_ARRAY),
                    (&self.caller.history, Type::CHAR),
                    (&names, Type::TEXT_ARRAY),
                    (&ids, Type::UUID_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                    (&floors, Type::INT8_ARRAY),
                    (&modes, Type::CHAR_ARRAY),
                    (&units, Type::INT4_ARRAY),
                    (&capacities, Type::INT4_ARRAY),
                    (&metadata, Type::JSONB_ARRAY),
                ],
            )
            .await?;
        Renewed::from(&reply, decode::answer)
    }
}

/// What became of some renewals.
struct Renewed {
    answers: Vec<decode::Answer>,
    incarnation: Incarnation,
}

impl Renewed {
    fn from(reply: &Reply, decode: fn(&Row) -> Result<decode::Answer, Failure>) -> Result<Self, Failure> {
        let answers = reply.rows.iter().map(decode).collect::<Result<_, _>>()?;
        Ok(Self { answers, incarnation: reply.incarnation })
    }
}

fn changes_nothing(renewal: &Renewal) -> bool {
    renewal.fence_floor.is_none() && renewal.downgrade.is_none() && renewal.metadata.is_none()
}
