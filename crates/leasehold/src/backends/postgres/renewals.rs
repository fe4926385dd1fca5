//! Renewals: all that hold in one statement, whatever else it is one by one.

use tokio::time::timeout;
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
    lease::{Answer, Incarnation, Renewal, Standing, micros},
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
    // Those that wait for a stranger's transaction must not keep the answer from those that were renewed.
    let most = renewals.iter().map(|renewal| renewal.ttl.get()).min().unwrap_or_default() / 6;
    let mut life = incarnation;
    let looking = async {
        for chunk in left.chunks(EACH_BATCH) {
            match each(slot, caller, renewals, chunk, hints, deaths, &mut standings).await {
                Ok(told) => life = Some(told),
                // One that is locked leaves the others in the chunk unknown: ask for each alone.
                Err(failure) if matches!(failure.kind, Kind::Locked | Kind::Overtaken) => {
                    for at in chunk.iter().filter(|_| chunk.len() > 1) {
                        let alone = std::slice::from_ref(at);
                        if let Ok(told) = each(slot, caller, renewals, alone, hints, deaths, &mut standings).await {
                            life = Some(told);
                        }
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    };
    match timeout(most, looking).await {
        Ok(Err(failure)) if incarnation.is_none() => return Err(failure),
        // What was not heard of stays unknown, and is asked about again.
        _ => {}
    }
    match life {
        Some(incarnation) => Ok(Answer { value: standings, incarnation }),
        None => Ok(Answer { value: standings, incarnation: slot.get().await?.greeting.incarnation }),
    }
}

/// Renews these one by one, in one call; answers which life of the server told it.
async fn each(
    slot: &Slot,
    caller: &Caller,
    renewals: &[Renewal],
    chunk: &[usize],
    hints: &HintSender,
    deaths: &Deaths,
    standings: &mut [Standing],
) -> Result<Incarnation, Failure> {
    let (answers, incarnation) = one_by_one(slot, caller, chunk.iter().map(|at| &renewals[*at])).await?;
    for row::Answered { at, said, hints: told } in answers {
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
    Ok(incarnation)
}

type Told = (Vec<row::Answered>, Incarnation);

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
