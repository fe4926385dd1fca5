//! Liveness: the listening connection, its session, and detection of dead ones.

mod death_watch;
mod late_requests;
mod listener;

pub(super) use self::{
    death_watch::DeathWatch,
    late_requests::LateRequests,
    listener::{Listener, Sessions},
};
