//! `leasehold.guard` in the caller's own transaction.

#[cfg(feature = "sqlx")]
use sqlx::postgres::{PgDatabaseError, PgSeverity};
#[cfg(feature = "sqlx")]
use tokio_postgres::error::SqlState;
use tokio_postgres::{Transaction, types::Type};

use super::{
    connection::Parameter,
    encode::long,
    errors::{Failure, ServerError},
    options::checked_schema_name,
    schema::with_schema_name,
};
use crate::{Error, Fence, Resource, Result};

/// The code of the error that `leasehold.guard` raises.
const NOT_HELD: &str = "LH004";

/// Checks inside your transaction that a lease is still held under its fence.
///
/// If the data is in the same database as the locks, this prevents writes that come too late. The check fails if the
/// lease is not held under this fence now. If the check succeeds, nobody else is granted the lock until the transaction
/// ends, even if the lease runs out meanwhile. The lease can still be renewed.
///
/// ```no_run
/// # use leasehold::{Guard, backends::postgres::FenceCheck};
/// # async fn pay(guard: &Guard, client: &mut tokio_postgres::Client) -> std::result::Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// FenceCheck::new(guard.resource(), guard.fence()).run(&transaction).await?;
/// transaction.execute("update invoice set paid = true where id = 42", &[]).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it checks nothing until it is run"]
pub struct FenceCheck {
    resource: Resource,
    fence: Fence,
    namespace: String,
    schema: String,
}

impl FenceCheck {
    /// Creates a check that this resource is held under this fence.
    ///
    /// The namespace is `default` and the schema is `leasehold`, unless you set others.
    pub fn new(resource: &Resource, fence: Fence) -> Self {
        let (namespace, schema) = (String::from("default"), String::from("leasehold"));
        Self { resource: resource.clone(), fence, namespace, schema }
    }

    /// Sets the namespace of the lease; `default` by default.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets the schema of the locks; `leasehold` by default.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Checks the fence in a transaction of tokio-postgres.
    ///
    /// # Errors
    /// `Lost` if the lease is not held under this fence; otherwise the error that the server reported. The transaction
    /// cannot continue after that.
    pub async fn run(&self, transaction: &Transaction<'_>) -> Result<()> {
        let (name, fence) = (self.resource.as_str(), long(self.fence.get()));
        let parameters: [Parameter<'_>; 3] = [(&name, Type::TEXT), (&fence, Type::INT8), (&self.namespace, Type::TEXT)];
        match transaction.query_typed(&self.statement()?, &parameters).await {
            Ok(_) => Ok(()),
            Err(error) if error.code().is_some_and(|code| code.code() == NOT_HELD) => Err(self.lost()),
            Err(error) => {
                let reported = error.as_db_error().map(ServerError::from);
                Err(Failure::in_transaction(Some(self.allow_statement()), reported, &error).error().caused_by(error))
            }
        }
    }

    /// Checks the fence in a transaction of sqlx: `check.run_sqlx(&mut *transaction)`.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    #[cfg(feature = "sqlx")]
    pub async fn run_sqlx(&self, transaction: &mut sqlx::PgConnection) -> Result<()> {
        let text = self.statement()?;
        let query = sqlx::query(&text).bind(self.resource.as_str()).bind(long(self.fence.get())).bind(&self.namespace);
        let Err(error) = query.execute(transaction).await else { return Ok(()) };
        let reported = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
        if reported.is_some_and(|error| error.code() == NOT_HELD) {
            return Err(self.lost());
        }
        let reported = reported.map(|error| ServerError {
            code: SqlState::from_code(error.code()),
            message: error.message(),
            hint: error.hint(),
            is_fatal: matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic),
        });
        Err(Failure::in_transaction(Some(self.allow_statement()), reported, &error).error().caused_by(error))
    }

    fn statement(&self) -> Result<String> {
        Ok(with_schema_name("select leasehold.guard($1, $2, $3)", &checked_schema_name(&self.schema)?))
    }

    /// What lets a role check fences; the drivers do not say which role theirs is.
    fn allow_statement(&self) -> String {
        format!("select {}.allow('ROLE')", self.schema)
    }

    fn lost(&self) -> Error {
        Error::lost(&self.resource, "postgres", self.fence, "the database does not have it under this fence")
    }
}
