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
    lease::{LeaseKey, Lifetime, Metadata, Mode, Outcome, Patience, Renewal, Request, micros},
};

/// A type of one value, and the type of an array of such values.
trait Scalar: ToSql + Sync {
    const TYPES: [Type; 2];
}

/// The types of the values in Rust, and what they are in Postgres.
macro_rules! scalars {
    ($($scalar:ty => $of_one:ident, $of_many:ident);+ $(;)?) => {
        $(impl Scalar for $scalar {
            const TYPES: [Type; 2] = [Type::$of_one, Type::$of_many];
        })+
    };
}

scalars! {
    &str => TEXT, TEXT_ARRAY;
    String => TEXT, TEXT_ARRAY;
    Uuid => UUID, UUID_ARRAY;
    i8 => CHAR, CHAR_ARRAY;
    i32 => INT4, INT4_ARRAY;
    i64 => INT8, INT8_ARRAY;
    bool => BOOL, BOOL_ARRAY;
    Json<Metadata> => JSONB, JSONB_ARRAY;
}

impl<T: Scalar> Scalar for Option<T> {
    const TYPES: [Type; 2] = T::TYPES;
}

/// Values as a parameter: the value itself for one call, an array for several.
fn parameter<T: Scalar>(values: &Vec<T>) -> Parameter<'_> {
    let [of_one, of_many] = T::TYPES;
    match values.as_slice() {
        [only] => (only, of_one),
        _ => (values, of_many),
    }
}

/// Values as a parameter that is always an array.
fn array<T: Scalar>(values: &Vec<T>) -> Parameter<'_> {
    let [_, of_many] = T::TYPES;
    (values, of_many)
}

/// Defines a struct that has a value of each column for each call, in the order of the function's parameters. `as` says
/// which function makes a parameter of a column.
macro_rules! columns {
    ($(#[$doc:meta])* struct $columns:ident<$text:lifetime> as $parameter:ident { $($column:ident: $value:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Default)]
        pub(super) struct $columns<$text> { $($column: Vec<$value>),+ }

        impl $columns<'_> {
            pub(super) fn parameters(&self) -> impl Iterator<Item = Parameter<'_>> {
                [$($parameter(&self.$column)),+].into_iter()
            }
        }
    };
}

columns! {
    /// The columns of some acquires.
    struct AcquireColumns<'a> as parameter {
        names: &'a str,
        ids: Uuid,
        modes: i8,
        units: i32,
        capacities: i32,
        ttls: i64,
        max_ahead: Option<i32>,
        attached: bool,
        holders: &'a str,
        notes: Option<String>,
        metadata: Json<Metadata>,
        floors: Option<i64>,
    }
}

columns! {
    /// The columns of some releases.
    struct Releases<'a> as parameter {
        names: &'a str,
        ids: Uuid,
        endings: &'static str,
        problems: Option<String>,
        details: Option<String>,
    }
}

columns! {
    /// The columns of some renewals that change nothing but the expiry.
    struct ExtensionColumns<'a> as array {
        names: &'a str,
        ids: Uuid,
        ttls: i64,
    }
}

columns! {
    /// The columns of some renewals.
    struct RenewalColumns<'a> as array {
        names: &'a str,
        ids: Uuid,
        ttls: i64,
        floors: Option<i64>,
        modes: Option<i8>,
        units: Option<i32>,
        capacities: Option<i32>,
        metadata: Option<Json<Metadata>>,
        detached: bool,
    }
}

/// Some acquires; those that are bound to a session are all bound to the same one.
#[derive(Default)]
pub(super) struct Acquires<'a> {
    session: Option<i32>,
    columns: AcquireColumns<'a>,
}

impl<'a> Acquires<'a> {
    pub(super) fn push(&mut self, request: &'a Request, session: Option<i32>) {
        self.session = session.or(self.session);
        let columns = &mut self.columns;
        columns.names.push(request.key.resource.as_str());
        columns.ids.push(Uuid::from_u128(request.key.id.as_u128()));
        columns.modes.push(mode_code(request.claim.mode()));
        columns.units.push(int(request.claim.units()));
        columns.capacities.push(int(request.claim.capacity()));
        columns.ttls.push(long(micros(request.ttl.get())));
        columns.max_ahead.push(match request.patience {
            Patience::Try => Some(-1),
            Patience::Queue => request.max_waiters.map(int),
        });
        columns.attached.push(request.lifetime == Lifetime::Attached);
        columns.holders.push(request.holder.as_str());
        columns.notes.push(request.note.as_deref().map(storable));
        columns.metadata.push(Json(storable_metadata(&request.metadata)));
        columns.floors.push(request.fence_floor.map(|floor| long(floor.get())));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.columns.names.is_empty()
    }

    pub(super) async fn send(&self, connection: &Connection, instance: &InstanceParams) -> Result<Vec<Row>, Failure> {
        let statement = if self.columns.names.len() == 1 { Statement::AcquireOne } else { Statement::AcquireMany };
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&instance.namespace, Type::TEXT),
            (&instance.channel, Type::TEXT),
            (&self.session, Type::INT4),
            (&instance.history, Type::CHAR),
        ];
        parameters.extend(self.columns.parameters());
        connection.call(statement, &parameters).await
    }
}

impl<'a> Releases<'a> {
    pub(super) fn push(&mut self, key: &'a LeaseKey, outcome: &Outcome) {
        let problem = match outcome {
            Outcome::Failed(problem) => Some(problem),
            _ => None,
        };
        self.names.push(key.resource.as_str());
        self.ids.push(Uuid::from_u128(key.id.as_u128()));
        self.endings.push(outcome.ending().as_str());
        self.problems.push(problem.map(|problem| storable(&problem.kind)));
        self.details.push(problem.map(|problem| storable(&problem.details)));
    }

    pub(super) async fn send(&self, connection: &Connection, instance: &InstanceParams) -> Result<Vec<Row>, Failure> {
        let statement = if self.names.len() == 1 { Statement::ReleaseOne } else { Statement::ReleaseMany };
        let mut parameters: Vec<Parameter<'_>> =
            vec![(&instance.namespace, Type::TEXT), (&instance.channel, Type::TEXT), (&instance.history, Type::CHAR)];
        parameters.extend(self.parameters());
        connection.call(statement, &parameters).await
    }
}

impl<'a> ExtensionColumns<'a> {
    pub(super) fn of(renewals: impl Iterator<Item = &'a Renewal>) -> Self {
        let mut columns = Self::default();
        for renewal in renewals {
            columns.names.push(renewal.key.resource.as_str());
            columns.ids.push(Uuid::from_u128(renewal.key.id.as_u128()));
            columns.ttls.push(long(micros(renewal.ttl.get())));
        }
        columns
    }
}

impl<'a> RenewalColumns<'a> {
    pub(super) fn of(renewals: &[&'a Renewal]) -> Self {
        let ExtensionColumns { names, ids, ttls } = ExtensionColumns::of(renewals.iter().copied());
        let mut columns = Self { names, ids, ttls, ..Self::default() };
        for renewal in renewals {
            columns.floors.push(renewal.fence_floor.map(|floor| long(floor.get())));
            columns.modes.push(renewal.downgrade.map(|claim| mode_code(claim.mode())));
            columns.units.push(renewal.downgrade.map(|claim| int(claim.units())));
            columns.capacities.push(renewal.downgrade.map(|claim| int(claim.capacity())));
            columns.detached.push(renewal.detach);
            columns.metadata.push(renewal.metadata.as_ref().map(|metadata| Json(storable_metadata(metadata))));
        }
        columns
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
