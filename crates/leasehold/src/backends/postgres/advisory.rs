//! Advisory locks.
