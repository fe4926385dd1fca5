//! Ports that nobody uses just now.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the range from which the kernel takes ports for outgoing connections, with room for a second one above.
const FIRST: u16 = 10_000;
const COUNT: u16 = 12_000;

/// A free port whose number plus 10,000 is free, too.
pub(crate) fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(process::id() * 97 % u32::from(COUNT)).unwrap_or(0);
    for _ in 0..COUNT {
        let port = FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
    panic!("no free port was found");
}
