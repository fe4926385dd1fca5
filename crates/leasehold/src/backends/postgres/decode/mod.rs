//! The only decoder of what the server answers.

#[cfg(test)]
mod fuzz;
mod records;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use tokio_postgres::{
    Row,
    types::{FromSql, Json},
};
use uuid::Uuid;

pub(super) use self::records::{ended, leases, run};
use super::{
    connection::ServerInfo,
    encode::mode_code,
    errors::{Failure, FailureKind},
    schema::InstalledVersion,
};
use crate::{
    Result,
    backend::Hint,
    lease::{
        Busy, Decision, Evicted, Fence, Grant, HeldBy, Holder, Incarnation, LeaseId, Mode, QueuePosition, Released,
        Resource, Shape, Standing, Timestamp, micros,
    },
};

/// A row of `leasehold.answer`.
#[derive(Debug)]
pub(super) struct AnswerRow {
    /// The index of the element of the call that this row answers.
    pub(super) index: usize,
    /// An error if this library does not understand it; that concerns no other element.
    pub(super) verdict: Result<Verdict, Failure>,
    pub(super) hints: Vec<Hint>,
}

/// What the server decided.
#[derive(Debug)]
pub(super) enum Verdict {
    Holding(Grant),
    Waiting {
        position: QueuePosition,
        behind_session: bool,
    },
    Busy(Busy),
    WrongShape(Shape),
    /// Nothing has this id or fence; for an eviction, the current fences.
    Nothing(Vec<Fence>),
    Freed,
    LeftQueue,
    Evicted(Holder),
}

impl Verdict {
    /// Whether it waits behind a session-bound lease.
    pub(super) fn is_behind_session(&self) -> bool {
        matches!(self, Self::Waiting { behind_session: true, .. })
    }

    pub(super) fn decision(self) -> Result<Decision, Failure> {
        Ok(match self {
            Self::Holding(grant) => Decision::Granted(grant),
            Self::Waiting { position, .. } => Decision::Queued(position),
            Self::Busy(busy) => Decision::Busy(busy),
            Self::WrongShape(in_force) => Decision::WrongShape { in_force },
            other => return Err(unexpected(format!("{other:?} to an acquire"))),
        })
    }

    pub(super) fn standing(&self) -> Standing {
        match self {
            Self::Holding(grant) => Standing::Holding(*grant),
            Self::Waiting { position, .. } => Standing::Waiting(*position),
            Self::Nothing(_) => Standing::Gone,
            _ => Standing::Unknown,
        }
    }

    pub(super) fn released(self) -> Result<Released, Failure> {
        Ok(match self {
            Self::Freed => Released::Freed,
            Self::LeftQueue => Released::LeftQueue,
            Self::Nothing(_) => Released::Gone,
            other => return Err(unexpected(format!("{other:?} to a release"))),
        })
    }

    pub(super) fn evicted(self) -> Result<Evicted, Failure> {
        Ok(match self {
            Self::Evicted(holder) => Evicted::Evicted { holder },
            Self::Nothing(current) => Evicted::NoSuchFence { current },
            other => return Err(unexpected(format!("{other:?} to an eviction"))),
        })
    }
}

/// A holder as the functions list it.
#[derive(Debug, Deserialize)]
struct HolderJson {
    holder: Holder,
    note: Option<String>,
    mode: Option<Mode>,
    fence: Option<Fence>,
    #[serde(default)]
    held_us: u64,
}

pub(super) fn answer(row: &Row) -> Result<AnswerRow, Failure> {
    let lines = get::<Option<Vec<String>>>(row, "hints")?.unwrap_or_default();
    let at = get::<Option<i32>>(row, "at")?.unwrap_or(1);
    Ok(AnswerRow {
        index: index(at)?,
        verdict: verdict(row),
        hints: lines.iter().filter_map(|line| hint(line)).collect(),
    })
}

fn verdict(row: &Row) -> Result<Verdict, Failure> {
    let holders = || -> Result<Vec<HolderJson>, Failure> {
        Ok(get::<Option<Json<Vec<HolderJson>>>>(row, "holders")?.map(|Json(holders)| holders).unwrap_or_default())
    };
    Ok(match letter(get(row, "verdict")?) {
        'g' => Verdict::Holding(grant(row)?),
        'q' => Verdict::Waiting {
            position: QueuePosition {
                ahead: to_u32(get::<i32>(row, "ahead")?),
                last_fence: fence(get(row, "fence")?),
                ask_again_in: get::<Option<i64>>(row, "ask_again_us")?.map(length),
            },
            behind_session: get::<Option<bool>>(row, "behind_session")?.unwrap_or_default(),
        },
        'b' => Verdict::Busy(Busy {
            holders: match get::<Option<&str>>(row, "holder")? {
                Some(_) => vec![only_holder(row)?],
                None => holders()?.into_iter().map(held_by).collect(),
            },
            waiting: to_u32(get::<Option<i32>>(row, "waiting")?.unwrap_or_default()),
        }),
        's' => Verdict::WrongShape(Shape {
            family: mode(get(row, "mode")?)?.family(),
            capacity: to_u32(get::<i32>(row, "capacity")?),
        }),
        'n' => Verdict::Nothing(holders()?.into_iter().filter_map(|holding| holding.fence).collect()),
        'f' => Verdict::Freed,
        'l' => Verdict::LeftQueue,
        'e' => match holders()?.into_iter().next() {
            Some(holding) => Verdict::Evicted(holding.holder),
            None => return Err(unexpected("an eviction from nobody")),
        },
        other => return Err(unexpected(format!("the verdict {other:?}"))),
    })
}

/// Converts an array index of SQL, which counts from 1.
fn index(at: i32) -> Result<usize, Failure> {
    at.checked_sub(1).and_then(|at| usize::try_from(at).ok()).ok_or_else(|| unexpected("an answer to nothing"))
}

/// A row of `renew_many`: which element, and how it holds; the fence is null if the lease is gone.
pub(super) fn renewed(row: &Row) -> Result<AnswerRow, Failure> {
    let at: i32 = get(row, "at")?;
    let index = index(at)?;
    let verdict = match get::<Option<i64>>(row, "fence")? {
        Some(_) => grant(row).map(Verdict::Holding),
        None => Ok(Verdict::Nothing(Vec::new())),
    };
    Ok(AnswerRow { index, verdict, hints: Vec::new() })
}

/// A row of `settle_dead`.
#[derive(Debug)]
pub(super) struct DeadCheck {
    pub(super) index: usize,
    pub(super) waits: bool,
    pub(super) hints: Vec<Hint>,
}

pub(super) fn dead_check(row: &Row) -> Result<DeadCheck, Failure> {
    let at: i32 = get(row, "at")?;
    let lines = get::<Option<Vec<String>>>(row, "hints")?.unwrap_or_default();
    Ok(DeadCheck {
        index: index(at)?,
        waits: get(row, "waits")?,
        hints: lines.iter().filter_map(|line| hint(line)).collect(),
    })
}

fn grant(row: &Row) -> Result<Grant, Failure> {
    Ok(Grant { fence: fence(get(row, "fence")?), acquired_at: timestamp(get(row, "acquired_us")?) })
}

fn only_holder(row: &Row) -> Result<HeldBy, Failure> {
    Ok(HeldBy {
        holder: holder(row)?,
        note: get(row, "note")?,
        mode: mode(get(row, "mode")?)?,
        fence: fence(get(row, "fence")?),
        held_for: length(get(row, "held_us")?),
    })
}

fn held_by(holding: HolderJson) -> HeldBy {
    HeldBy {
        holder: holding.holder,
        note: holding.note,
        mode: holding.mode.unwrap_or(Mode::Exclusive),
        fence: holding.fence.unwrap_or_default(),
        held_for: Duration::from_micros(holding.held_us),
    }
}

/// Parses a line for an instance: `g id fence` granted, `p id fence` provisionally, `e id` evicted, `c name` changed.
pub(super) fn hint(line: &str) -> Option<Hint> {
    let (kind, rest) = line.split_once(' ')?;
    let id = |text: &str| Uuid::try_parse(text).ok().map(|id| LeaseId::from_u128(id.as_u128()));
    match kind {
        "g" | "p" => {
            let (who, number) = rest.split_once(' ')?;
            let fence = Fence::new(number.parse().ok()?);
            Some(Hint::Granted { id: id(who)?, fence, provisional: kind == "p" })
        }
        "e" => Some(Hint::Evicted { id: id(rest)? }),
        "c" => Some(Hint::Changed { resource: Resource::new(rest).ok()? }),
        _ => None,
    }
}

pub(super) fn server_info(rows: &[Row]) -> Result<ServerInfo, Failure> {
    let row = rows.first().ok_or_else(|| unexpected("nothing about itself"))?;
    let walfile: Option<&str> = get(row, "walfile")?;
    let timeline = walfile.and_then(|name| u64::from_str_radix(name.get(..8)?, 16).ok()).unwrap_or(0);
    let started: SystemTime = get(row, "started")?;
    let started_us = started.duration_since(UNIX_EPOCH).map_or(0, micros);
    Ok(ServerInfo {
        in_recovery: walfile.is_none(),
        incarnation: Incarnation(started_us ^ timeline << 52),
        installed: get(row, "installed")?,
        marker: get(row, "marker")?,
        default_transaction_ok: get::<&str>(row, "isolation")? == "read committed"
            && get::<&str>(row, "read_only")? == "off",
    })
}

pub(super) fn installed_version(rows: &[Row]) -> Result<InstalledVersion, Failure> {
    let row = rows.first().ok_or_else(|| unexpected("no version"))?;
    Ok(InstalledVersion {
        version: get(row, "version")?,
        usable_since: get(row, "usable_since")?,
        unlogged: get(row, "unlogged")?,
    })
}

/// Whether this role may install the schema, and the name of the role that owns it, or else the database.
pub(super) fn who_may_install(rows: &[Row]) -> Result<(bool, String), Failure> {
    let row = rows.first().ok_or_else(|| unexpected("nothing about its owner"))?;
    Ok((get(row, "is_this_role")?, get(row, "owner")?))
}

/// The one value of one row.
pub(super) fn only<'a, T: FromSql<'a>>(rows: &'a [Row]) -> Result<T, Failure> {
    by_index(rows.first().ok_or_else(|| unexpected("no row"))?, 0)
}

fn resource(row: &Row) -> Result<Resource, Failure> {
    Resource::new(get::<&str>(row, "name")?).map_err(|error| unexpected(error.to_string()))
}

fn holder(row: &Row) -> Result<Holder, Failure> {
    Holder::new(get::<&str>(row, "holder")?).map_err(|error| unexpected(error.to_string()))
}

fn mode(code: i8) -> Result<Mode, Failure> {
    [Mode::Exclusive, Mode::Shared, Mode::Permit, Mode::Leader]
        .into_iter()
        .find(|mode| mode_code(*mode) == code)
        .ok_or_else(|| unexpected(format!("the mode {code}")))
}

fn letter(code: i8) -> char {
    char::from(code.cast_unsigned())
}

fn fence(number: i64) -> Fence {
    Fence::new(number.unsigned_abs())
}

fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn length(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn to_u32(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// The value of a column.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T, Failure> {
    row.try_get(column).map_err(|error| unexpected(format!("{column}: {error}")))
}

fn by_index<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, Failure> {
    row.try_get(column).map_err(|error| unexpected(format!("column {column}: {error}")))
}

fn unexpected(what: impl Into<String>) -> Failure {
    let what = what.into();
    Failure::new(FailureKind::Unanswered, format!("postgres answered what this library does not understand: {what}"))
}
