//! Whether holders live: notifications, the connection that leases end with, and the death of others' connections.

mod death_watch;
mod late_requests;
mod listener;

pub(super) use self::{
    death_watch::DeathWatch,
    late_requests::LateRequests,
    listener::{Listener, Sessions},
};
