//! Liveness: the listening connection, its session, and detection of dead ones.

mod dead_holder_poller;
mod late_requests;
mod listener;

pub(super) use self::{
    dead_holder_poller::DeadHolderPoller,
    late_requests::LateRequests,
    listener::{Listener, Sessions},
};
