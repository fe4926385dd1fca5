//! The parameters of acquires and releases: scalars for one call, arrays for several.

use serde_json::Value;
use tokio_postgres::{
    Row,
    types::{Json, ToSql, Type},
};
use uuid::Uuid;

use super::{
    connection::{Connection, Parameter},
    errors::Failure,
    ops::InstanceParams,
    statements::Statement,
};
use crate::{
    Result,
    lease::{LeaseKey, Lifetime, Metadata, Mode, Outcome, Patience, Request, micros},
};

/// The values of one parameter, one for each call.
struct Column<T> {
    values: Vec<T>,
    scalar_type: Type,
    array_type: Type,
}

impl<T: ToSql + Sync> Column<T> {
    fn new(scalar_type: Type, array_type: Type) -> Self {
        Self { values: Vec::new(), scalar_type, array_type }
    }

    /// The value itself for one call, an array for several.
    fn parameter(&self) -> Parameter<'_> {
        match self.values.as_slice() {
            [only] => (only, self.scalar_type.clone()),
            _ => (&self.values, self.array_type.clone()),
        }
    }
}

/// The columns of some acquires.
pub(super) struct Acquires<'a> {
    session: Option<i32>,
    names: Column<&'a str>,
    ids: Column<Uuid>,
    modes: Column<i8>,
    units: Column<i32>,
    capacities: Column<i32>,
    ttls: Column<i64>,
    max_ahead: Column<Option<i32>>,
    attached: Column<bool>,
    holders: Column<&'a str>,
    notes: Column<Option<String>>,
    metadata: Column<Json<Metadata>>,
    floors: Column<Option<i64>>,
}

impl Default for Acquires<'_> {
    fn default() -> Self {
        Self {
            session: None,
            names: Column::new(Type::TEXT, Type::TEXT_ARRAY),
            ids: Column::new(Type::UUID, Type::UUID_ARRAY),
            modes: Column::new(Type::CHAR, Type::CHAR_ARRAY),
            units: Column::new(Type::INT4, Type::INT4_ARRAY),
            capacities: Column::new(Type::INT4, Type::INT4_ARRAY),
            ttls: Column::new(Type::INT8, Type::INT8_ARRAY),
            max_ahead: Column::new(Type::INT4, Type::INT4_ARRAY),
            attached: Column::new(Type::BOOL, Type::BOOL_ARRAY),
            holders: Column::new(Type::TEXT, Type::TEXT_ARRAY),
            notes: Column::new(Type::TEXT, Type::TEXT_ARRAY),
            metadata: Column::new(Type::JSONB, Type::JSONB_ARRAY),
            floors: Column::new(Type::INT8, Type::INT8_ARRAY),
        }
    }
}

impl<'a> Acquires<'a> {
    /// Adds a request; all session-bound requests of a batch share one session.
    pub(super) fn push(&mut self, request: &'a Request, session: Option<i32>) {
        self.session = session.or(self.session);
        self.names.values.push(request.key.resource.as_str());
        self.ids.values.push(Uuid::from_u128(request.key.id.as_u128()));
        self.modes.values.push(mode_code(request.claim.mode()));
        self.units.values.push(int(request.claim.units()));
        self.capacities.values.push(int(request.claim.capacity()));
        self.ttls.values.push(long(micros(request.ttl.get())));
        self.max_ahead.values.push(match request.patience {
            Patience::Try => Some(-1),
            Patience::Queue => request.max_waiters.map(int),
        });
        self.attached.values.push(request.lifetime == Lifetime::Attached);
        self.holders.values.push(request.holder.as_str());
        self.notes.values.push(request.note.as_deref().map(storable));
        self.metadata.values.push(Json(storable_metadata(&request.metadata)));
        self.floors.values.push(request.fence_floor.map(|floor| long(floor.get())));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.values.is_empty()
    }

    pub(super) async fn send(&self, connection: &Connection, instance: &InstanceParams) -> Result<Vec<Row>, Failure> {
        let statement = match self.names.values.len() {
            1 => Statement::AcquireOne,
            _ => Statement::AcquireMany,
        };
        let parameters = [
            (&instance.namespace as &(dyn ToSql + Sync), Type::TEXT),
            (&instance.channel, Type::TEXT),
            (&self.session, Type::INT4),
            (&instance.history, Type::CHAR),
            self.names.parameter(),
            self.ids.parameter(),
            self.modes.parameter(),
            self.units.parameter(),
            self.capacities.parameter(),
            self.ttls.parameter(),
            self.max_ahead.parameter(),
            self.attached.parameter(),
            self.holders.parameter(),
            self.notes.parameter(),
            self.metadata.parameter(),
            self.floors.parameter(),
        ];
        connection.call(statement, &parameters).await
    }
}

/// The columns of some releases.
pub(super) struct Releases<'a> {
    names: Column<&'a str>,
    ids: Column<Uuid>,
    endings: Column<&'static str>,
    problems: Column<Option<String>>,
    details: Column<Option<String>>,
}

impl Default for Releases<'_> {
    fn default() -> Self {
        Self {
            names: Column::new(Type::TEXT, Type::TEXT_ARRAY),
            ids: Column::new(Type::UUID, Type::UUID_ARRAY),
            endings: Column::new(Type::TEXT, Type::TEXT_ARRAY),
            problems: Column::new(Type::TEXT, Type::TEXT_ARRAY),
            details: Column::new(Type::TEXT, Type::TEXT_ARRAY),
        }
    }
}

impl<'a> Releases<'a> {
    pub(super) fn push(&mut self, key: &'a LeaseKey, outcome: &Outcome) {
        let problem = match outcome {
            Outcome::Failed(problem) => Some(problem),
            _ => None,
        };
        self.names.values.push(key.resource.as_str());
        self.ids.values.push(Uuid::from_u128(key.id.as_u128()));
        self.endings.values.push(outcome.ending().as_str());
        self.problems.values.push(problem.map(|problem| storable(&problem.kind)));
        self.details.values.push(problem.map(|problem| storable(&problem.details)));
    }

    pub(super) async fn send(&self, connection: &Connection, instance: &InstanceParams) -> Result<Vec<Row>, Failure> {
        let statement = match self.names.values.len() {
            1 => Statement::ReleaseOne,
            _ => Statement::ReleaseMany,
        };
        let parameters = [
            (&instance.namespace as &(dyn ToSql + Sync), Type::TEXT),
            (&instance.channel, Type::TEXT),
            (&instance.history, Type::CHAR),
            self.names.parameter(),
            self.ids.parameter(),
            self.endings.parameter(),
            self.problems.parameter(),
            self.details.parameter(),
        ];
        connection.call(statement, &parameters).await
    }
}

/// How a mode is stored.
pub(super) fn mode_code(mode: Mode) -> i8 {
    match mode {
        Mode::Exclusive => b'x',
        Mode::Shared => b's',
        Mode::Permit => b'p',
        Mode::Leader => b'l',
    }
    .cast_signed()
}

pub(super) fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(super) fn long(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Replaces NUL, which Postgres cannot store.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The same for every text in metadata: one that cannot be stored would fail all calls of its batch.
pub(super) fn storable_metadata(metadata: &Metadata) -> Metadata {
    fn in_value(value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(storable(text)),
            Value::Array(values) => values.iter().map(in_value).collect(),
            Value::Object(fields) => Value::Object(storable_metadata(fields)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }
    metadata.iter().map(|(name, value)| (storable(name), in_value(value))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_text_in_metadata_can_be_stored() {
        let metadata = |value: Value| value.as_object().unwrap().clone();
        let plain = metadata(json!({"a": [1, {"b": "c"}], "d": null}));
        assert_eq!(storable_metadata(&plain), plain);
        let odd = metadata(json!({"a\0": [1, {"b": "c\0"}], "d": "\0"}));
        let stored = metadata(json!({"a\u{fffd}": [1, {"b": "c\u{fffd}"}], "d": "\u{fffd}"}));
        assert_eq!(storable_metadata(&odd), stored);
    }
}
