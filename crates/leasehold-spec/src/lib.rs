//! A specification of leases, checked by looking at every state within bounds.
//!
//! The backend is the real code of `leasehold::backend::model`. Around it stand clients
//! that follow the engine's rules of belief, a network that delays, loses,
//! doubles and reorders, clocks that drift, and processes that crash and stop.
//!
//! Two kinds of leases are explored:
//!
//! - by clock: requests, answers and pushes travel on the network, and the ttl ends what nobody renews;
//! - by presence: a process performs its own operations, as on `file:`, only answers and pushes travel, and hand-offs
//!   to other processes are provisional.
//!
//! The promises are exact but for two exceptions. A holder whose lease was evicted, or forgotten by a backend that
//! lost its memory, believes on until it hears of it or its deadline comes: it is not counted among the believers, and
//! a promise of its own bounds that time. An ask that arrives after its own release brings the entry back until its
//! ttl ends.
//!
//! What is not modelled: several resources at once, read locks, downgrades, raised fences, and absent waiters, which
//! the property tests of the model cover; the incarnation of a backend, which only makes a client ask sooner; and
//! losses of memory where presence is the life of a lease, since a machine's restart ends its processes too.

pub mod check;
pub mod client;
pub mod lease;
pub mod mutation;
pub mod redlock;
pub mod scenarios;
pub mod server;
pub mod world;
