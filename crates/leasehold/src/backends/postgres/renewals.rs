//! Renewals: all that hold in one statement, whatever else it is one by one.

use tokio_postgres::types::{Json, Type};
use uuid::Uuid;

use super::{
    columns::{int, long},
    connection::{Call, Slot},
    deaths::Deaths,
    failure::{Failure, Kind},
    row,
    work::Caller,
};
use crate::{
    backend::HintSender,
    lease::{Answer, Renewal, Standing, micros},
};

/// So many places in queues are looked after in one statement: each may have to wait for a lock.
const EACH_BATCH: usize = 100;

pub(super) async fn renew(
    slot: &Slot,
    caller: &Caller,
    renewals: &[Renewal],
    hints: &HintSender,
    deaths: &Deaths,
) -> Result<Answer<Vec<Standing>>, Failure> {
    let mut standings = vec![Standing::Unknown; renewals.len()];
    let plain: Vec<usize> = (0..renewals.len()).filter(|at| changes_nothing(&renewals[*at])).collect();
    let mut answered = vec![false; renewals.len()];
    let mut incarnation = None;
    if !plain.is_empty() {
        let told = together(slot, caller, plain.iter().map(|at| &renewals[*at])).await?;
        incarnation = Some(told.1);
        for row::Answered { at, said, .. } in told.0 {
            if let Some(at) = plain.get(at) {
                standings[*at] = said.standing();
                answered[*at] = true;
            }
        }
    }
    let left: Vec<usize> = (0..renewals.len()).filter(|at| !answered[*at]).collect();
    for chunk in left.chunks(EACH_BATCH) {
        let told = one_by_one(slot, caller, chunk.iter().map(|at| &renewals[*at])).await;
        let told = match told {
            // One that is locked leaves the others in the chunk unknown: ask for each alone.
            Err(failure) if chunk.len() > 1 && matches!(failure.kind, Kind::Locked | Kind::Overtaken) => {
                for at in chunk {
                    if let Ok((answers, life)) = one_by_one(slot, caller, std::iter::once(&renewals[*at])).await {
                        incarnation = Some(life);
                        for row::Answered { said, hints: told, .. } in answers {
                            for hint in told {
                                hints.send(hint);
                            }
                            standings[*at] = said.standing();
                        }
                    }
                }
                continue;
            }
            Err(failure) if matches!(failure.kind, Kind::Locked | Kind::Overtaken) && incarnation.is_some() => continue,
            told => told?,
        };
        incarnation = Some(told.1);
        for row::Answered { at, said, hints: told } in told.0 {
            for hint in told {
                hints.send(hint);
            }
            if let Some(at) = chunk.get(at) {
                if said.is_bound() {
                    deaths.fear_for(&renewals[*at].key);
                }
                standings[*at] = said.standing();
            }
        }
    }
    match incarnation {
        Some(incarnation) => Ok(Answer { value: standings, incarnation }),
        None => Ok(Answer { value: standings, incarnation: slot.get().await?.greeting.incarnation }),
    }
}

type Told = (Vec<row::Answered>, crate::lease::Incarnation);

fn changes_nothing(renewal: &Renewal) -> bool {
    renewal.fence_floor.is_none() && renewal.downgrade.is_none() && renewal.metadata.is_none()
}

async fn together<'a>(
    slot: &Slot,
    caller: &Caller,
    renewals: impl Iterator<Item = &'a Renewal>,
) -> Result<Told, Failure> {
    let (mut names, mut ids, mut ttls) = (Vec::new(), Vec::new(), Vec::new());
    for renewal in renewals {
        names.push(renewal.key.resource.as_str());
        ids.push(Uuid::from_u128(renewal.key.id.as_u128()));
        ttls.push(long(micros(renewal.ttl.get())));
    }
    let told = slot
        .ask(
            Call::Renew,
            &[
                (&caller.namespace, Type::TEXT),
                (&names, Type::TEXT_ARRAY),
                (&ids, Type::UUID_ARRAY),
                (&ttls, Type::INT8_ARRAY),
            ],
        )
        .await?;
    Ok((told.rows.iter().map(row::renewed).collect::<Result<_, _>>()?, told.incarnation))
}

async fn one_by_one<'a>(
    slot: &Slot,
    caller: &Caller,
    renewals: impl Iterator<Item = &'a Renewal>,
) -> Result<Told, Failure> {
    let (mut names, mut ids, mut ttls) = (Vec::new(), Vec::new(), Vec::new());
    let (mut floors, mut modes, mut units) = (Vec::new(), Vec::new(), Vec::new());
    let (mut capacities, mut metadata) = (Vec::new(), Vec::new());
    for renewal in renewals {
        names.push(renewal.key.resource.as_str());
        ids.push(Uuid::from_u128(renewal.key.id.as_u128()));
        ttls.push(long(micros(renewal.ttl.get())));
        floors.push(renewal.fence_floor.map(|floor| long(floor.get())));
        modes.push(renewal.downgrade.map(|claim| row::code(claim.mode())));
        units.push(renewal.downgrade.map(|claim| int(claim.units())));
        capacities.push(renewal.downgrade.map(|claim| int(claim.capacity())));
        metadata.push(renewal.metadata.as_ref().map(Json));
    }
    let told = slot
        .ask(
            Call::RenewEach,
            &[
                (&caller.namespace, Type::TEXT),
                (&caller.channel, Type::TEXT),
                (&caller.history, Type::CHAR),
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
    Ok((told.rows.iter().map(row::answered).collect::<Result<_, _>>()?, told.incarnation))
}
