//! Ports for servers, each claimed for as long as its server may be started on it.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the range from which the kernel takes ports for outgoing connections. A server on port `p` has its claim on
/// `p + CLAIM` and, if it is part of a cluster, its cluster's bus on `p + BUS`.
const FIRST: u16 = 10_000;
const COUNT: u16 = 5_000;
const CLAIM: u16 = 5_000;
const BUS: u16 = 10_000;

/// A port that no other server of any test takes until this is dropped, also while its own server is down.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    _claim: TcpListener,
}

impl Port {
    /// Claims a port that nobody uses.
    pub(crate) fn claim() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let listen = |port: u16| TcpListener::bind(("127.0.0.1", port));
        // Processes begin at different numbers, so that they seldom try the same one.
        let start = u16::try_from(process::id() * 97 % u32::from(COUNT)).unwrap_or(0);
        for _ in 0..COUNT {
            let number = FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
            let Ok(claim) = listen(number + CLAIM) else { continue };
            if listen(number).is_ok() && listen(number + BUS).is_ok() {
                return Self { number, _claim: claim };
            }
        }
        panic!("no free port was found");
    }
}
