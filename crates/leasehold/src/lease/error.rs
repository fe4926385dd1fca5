//! The error type of this crate and its kinds.

use std::{error, fmt};

use super::{Busy, Fence, HeldBy, Resource, Shape};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed, with a message that says what to do.
///
/// `Err` means that a call could not be carried out; `check` also returns it if the lease
/// is lost. Calls that only try, such as `try_acquire`, report a busy lock as a value.
///
/// `{}` shows the message alone, for reporters that walk [`source`](error::Error::source); `{:#}` shows the causes
/// as well, on one line.
///
/// ```
/// use std::{error::Error as _, io};
/// use leasehold::Error;
///
/// let full = io::Error::other("disk full");
/// let error = Error::unavailable("cannot write the record").caused_by(full);
/// assert_eq!(error.to_string(), "cannot write the record");
/// assert_eq!(format!("{error:#}"), "cannot write the record: disk full");
/// assert!(error.source().is_some_and(|cause| cause.is::<io::Error>()));
/// ```
pub struct Error(Box<Details>);

struct Details {
    kind: ErrorKind,
    message: String,
    resource: Option<Resource>,
    holders: Vec<HeldBy>,
    outcome_unknown: bool,
    source: Option<Box<dyn error::Error + Send + Sync>>,
}

/// The kinds of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lease was not granted within `wait`.
    WaitElapsed,
    /// The resource is busy, and the request did not join the queue: `wait` is zero, or `max_waiters` was exceeded.
    Busy,
    /// The lease is no longer held.
    Lost,
    /// The resource is in use as another kind of lock, or with another limit.
    ShapeMismatch,
    /// The backend rejected the credentials, or they lack a permission.
    PermissionDenied,
    /// A name, holder or note that cannot be used.
    InvalidName,
    /// A URL, ttl, limit or setting that cannot be used.
    InvalidConfig,
    /// The backend cannot be reached or used.
    Unavailable,
    /// The request was sent and not answered: it may have been carried out.
    OutcomeUnknown,
    /// The backend cannot do this.
    Unsupported,
    /// The `Leasehold` was closed, or belongs to the parent of a forked process.
    Closed,
}

/// Writes constructors of errors of one kind, each with a message of the caller's.
macro_rules! constructors {
    ($($(#[$attribute:meta])* pub fn $name:ident($message:ident: $type:ty) -> Self => $kind:expr;)*) => {
        $(
            $(#[$attribute])*
            pub fn $name($message: $type) -> Self {
                Self::new($kind, $message)
            }
        )*
    };
}

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Details {
            kind,
            message: message.into(),
            resource: None,
            holders: Vec::new(),
            outcome_unknown: kind == ErrorKind::OutcomeUnknown,
            source: None,
        }))
    }

    constructors! {
        /// Creates an `InvalidName` error: a name, holder or note cannot be used.
        pub fn invalid_name(message: impl Into<String>) -> Self => ErrorKind::InvalidName;

        /// Creates an `InvalidConfig` error: a setting cannot be used.
        pub fn invalid_config(message: impl Into<String>) -> Self => ErrorKind::InvalidConfig;

        /// Creates an `Unavailable` error: the backend cannot be reached or used.
        ///
        /// Use it only if nothing was changed.
        pub fn unavailable(message: impl Into<String>) -> Self => ErrorKind::Unavailable;

        /// Creates an `OutcomeUnknown` error: the request was sent and not answered.
        ///
        /// The request may have been carried out.
        pub fn unanswered(message: impl Into<String>) -> Self => ErrorKind::OutcomeUnknown;

        /// Creates a `PermissionDenied` error: the credentials were rejected or lack a permission.
        pub fn permission_denied(message: impl Into<String>) -> Self => ErrorKind::PermissionDenied;

        /// Creates an `Unsupported` error: the backend cannot do this.
        pub fn unsupported(message: impl Into<String>) -> Self => ErrorKind::Unsupported;
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "this Leasehold was closed; connect again")
    }

    pub(crate) fn inherited() -> Self {
        let message = "this Leasehold belongs to the parent of this forked process; connect again in the child";
        Self::new(ErrorKind::Closed, message)
    }

    pub(crate) fn lost(resource: &Resource, backend: &str, fence: Fence, reason: impl fmt::Display) -> Self {
        Self::new(
            ErrorKind::Lost,
            format!(
                "{resource} on {backend} is no longer held under fence {fence}: {reason}; stop the work it protects"
            ),
        )
        .about(resource)
    }

    pub(crate) fn wait_elapsed(resource: &Resource, backend: &str, waited: impl fmt::Display, busy: Busy) -> Self {
        let message = format!("{resource} on {backend} was not granted within {waited}: {}", describe(&busy));
        Self::new(ErrorKind::WaitElapsed, message).about(resource).held_by(busy.holders)
    }

    pub(crate) fn busy(resource: &Resource, backend: &str, busy: Busy) -> Self {
        let message = format!("{resource} on {backend} is busy: {}", describe(&busy));
        Self::new(ErrorKind::Busy, message).about(resource).held_by(busy.holders)
    }

    pub(crate) fn wrong_shape(resource: &Resource, backend: &str, asked: Shape, in_force: Shape) -> Self {
        Self::new(
            ErrorKind::ShapeMismatch,
            format!(
                "{resource} on {backend} is in use as {in_force}, asked for as {asked}; use one shape, or another name"
            ),
        )
        .about(resource)
    }

    /// Adds the resource that the error is about.
    #[must_use]
    pub fn about(mut self, resource: &Resource) -> Self {
        self.0.resource = Some(resource.clone());
        self
    }

    /// Adds the cause, which [`source`](error::Error::source) returns.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Marks that an earlier try of the request may have been carried out.
    pub(crate) fn with_unknown_outcome(mut self) -> Self {
        self.0.outcome_unknown = true;
        self
    }

    fn held_by(mut self, holders: Vec<HeldBy>) -> Self {
        self.0.holders = holders;
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the resource that the error is about.
    pub fn resource(&self) -> Option<&Resource> {
        self.0.resource.as_ref()
    }

    /// Returns who held the resource, for `Busy` and `WaitElapsed`.
    pub fn holders(&self) -> &[HeldBy] {
        &self.0.holders
    }

    /// Returns whether the same call, repeated unchanged, may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::WaitElapsed | ErrorKind::Busy | ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
        )
    }

    /// Returns whether the backend could not be reached or did not answer.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
    }

    /// Returns whether the request may have been carried out despite the error.
    pub fn outcome_unknown(&self) -> bool {
        self.0.outcome_unknown
    }
}

fn describe(busy: &Busy) -> String {
    let who = match busy.holders.as_slice() {
        [] => String::from("other requests came first"),
        [one] => format!("held by {one}"),
        [first, rest @ ..] => format!("held by {first} and {} more", rest.len()),
    };
    match busy.waiting {
        0 => who,
        waiting => format!("{who}, {waiting} waiting"),
    }
}

impl fmt::Display for Error {
    /// Writes the message; `{:#}` adds the causes, each after a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        let mut cause = error::Error::source(self).filter(|_| f.alternate());
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    /// Writes the kind, the message and the causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self:#}", self.0.kind)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn error::Error + 'static))
    }
}
