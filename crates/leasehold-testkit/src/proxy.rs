//! A network that can be cut, held up, or made to swallow what is sent, in each direction.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;

/// What becomes of what is sent in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It arrives.
    Pass,
    /// It is kept and arrives when it may pass again.
    Hold,
    /// It is lost, and nobody is told.
    Swallow,
}

/// A port that leads to another one.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<ProxyShared>,
}

#[derive(Debug, Default)]
struct ProxyShared {
    server: AtomicU16,
    to_server: AtomicU8,
    to_client: AtomicU8,
    refuses: AtomicBool,
    ended: AtomicBool,
    half: AtomicBool,
    /// Connections made before this one lead nowhere.
    first: AtomicU64,
    made: AtomicU64,
    delay_millis: AtomicU64,
    renumbered: Mutex<Vec<(u16, u16)>>,
    clients: Mutex<Vec<TcpStream>>,
    servers: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Leads to this port of the loopback interface.
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port can be bound");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(ProxyShared::default());
        shared.server.store(server, Ordering::SeqCst);
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = client else { continue };
                if !accepting.refuses.load(Ordering::SeqCst) {
                    accepting.lead(&client);
                }
            }
        });
        Self { port, shared }
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What becomes of requests.
    pub fn to_server(&self, flow: Flow) {
        self.shared.to_server.store(flow as u8, Ordering::SeqCst);
    }

    /// What becomes of answers.
    pub fn to_client(&self, flow: Flow) {
        self.shared.to_client.store(flow as u8, Ordering::SeqCst);
    }

    /// Whatever is sent from now on takes this many milliseconds longer, each way.
    pub fn slow_down(&self, millis: u64) {
        self.shared.delay_millis.store(millis, Ordering::SeqCst);
    }

    /// New connections lead to this port; those there are stay.
    pub fn lead_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::SeqCst);
    }

    /// Answers that name one of these ports name the other one instead, for clients that servers send elsewhere.
    ///
    /// A port is recognised as RESP writes it, behind a host or as an integer or a text of its own; both have as many
    /// digits, so that lengths stay right.
    pub fn renumber(&self, ports: Vec<(u16, u16)>) {
        assert!(ports.iter().all(|(one, other)| one.to_string().len() == other.to_string().len()), "{ports:?}");
        *self.shared.renumbered.lock() = ports;
    }

    /// Closes every connection; new ones are closed at once until [`mend`](Self::mend).
    pub fn cut(&self) {
        self.shared.refuses.store(true, Ordering::SeqCst);
        self.shared.close();
    }

    /// Closes every connection towards the clients; to the server they stay open.
    pub fn cut_clients(&self) {
        self.shared.half.store(true, Ordering::SeqCst);
        close(&self.shared.clients);
    }

    /// Drops every byte on the open connections without closing them, as a firewall does that lost its state; new
    /// connections work.
    pub fn forget(&self) {
        self.shared.first.store(self.shared.made.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Closes new connections at once until [`mend`](Self::mend); those there are stay.
    pub fn refuse(&self) {
        self.shared.refuses.store(true, Ordering::SeqCst);
    }

    /// Lets everything pass again.
    pub fn mend(&self) {
        self.shared.refuses.store(false, Ordering::SeqCst);
        self.to_server(Flow::Pass);
        self.to_client(Flow::Pass);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.close();
        // Wakes the thread that accepts.
        let _ended = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl ProxyShared {
    fn close(&self) {
        close(&self.clients);
        close(&self.servers);
    }

    fn lead(self: &Arc<Self>, client: &TcpStream) {
        let server = self.server.load(Ordering::SeqCst);
        let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
        let _small_matter = (client.set_nodelay(true), server.set_nodelay(true));
        let copies = (client.try_clone(), client.try_clone(), server.try_clone(), server.try_clone());
        let (Ok(client), Ok(client_too), Ok(server), Ok(server_too)) = copies else { return };
        if let (Ok(one), Ok(other)) = (client.try_clone(), server.try_clone()) {
            self.clients.lock().push(one);
            self.servers.lock().push(other);
        }
        let (up, down) = (Arc::clone(self), Arc::clone(self));
        let number = self.made.fetch_add(1, Ordering::SeqCst);
        thread::spawn(move || up.pump(number, client, server, |shared| &shared.to_server, |_| {}));
        let ports = self.renumbered.lock().clone();
        thread::spawn(move || {
            let renumber = |answers: &mut [u8]| ports.iter().for_each(|ports| renumber(answers, *ports));
            down.pump(number, server_too, client_too, |shared| &shared.to_client, renumber);
        });
    }

    fn pump(
        &self,
        number: u64,
        mut from: TcpStream,
        mut to: TcpStream,
        flow: impl Fn(&Self) -> &AtomicU8,
        change: impl Fn(&mut [u8]),
    ) {
        let mut buffer = vec![0; 65_536];
        let mut has_gap = false;
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if number < self.first.load(Ordering::SeqCst) {
                continue;
            }
            change(&mut buffer[..count]);
            while flow(self).load(Ordering::SeqCst) == Flow::Hold as u8 && !self.ended.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(2));
            }
            if flow(self).load(Ordering::SeqCst) == Flow::Swallow as u8 {
                has_gap = true;
                continue;
            }
            if has_gap {
                // TCP delivers nothing after a gap: whoever reads would take one answer for another.
                let _closed_already = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                return;
            }
            thread::sleep(Duration::from_millis(self.delay_millis.load(Ordering::SeqCst)));
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        if !self.half.load(Ordering::SeqCst) {
            let _closed_already = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        }
    }
}

/// Puts one port in the place of another. An answer that was read in two parts may go unchanged.
fn renumber(answers: &mut [u8], (port, other): (u16, u16)) {
    let (port, other) = (format!("{port}\r\n"), format!("{other}\r\n"));
    let as_text = format!("${}\r\n", port.len() - 2);
    for at in 1..answers.len() {
        let (before, rest) = answers.split_at_mut(at);
        if rest.starts_with(port.as_bytes()) && (before.ends_with(b":") || before.ends_with(as_text.as_bytes())) {
            rest[..other.len()].copy_from_slice(other.as_bytes());
        }
    }
}

fn close(streams: &Mutex<Vec<TcpStream>>) {
    for stream in streams.lock().drain(..) {
        let _closed_already = stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_renumbered_where_an_answer_names_them() {
        let renumbered = |answer: &str| {
            let mut bytes = answer.as_bytes().to_vec();
            renumber(&mut bytes, (12345, 54321));
            String::from_utf8(bytes).expect("it was text")
        };
        assert_eq!(renumbered("*2\r\n$9\r\n127.0.0.1\r\n$5\r\n12345\r\n"), "*2\r\n$9\r\n127.0.0.1\r\n$5\r\n54321\r\n");
        assert_eq!(renumbered("-MOVED 7 127.0.0.1:12345\r\n:12345\r\n"), "-MOVED 7 127.0.0.1:54321\r\n:54321\r\n");
        for other in ["$16\r\n1763283612345678\r\n", ":123456\r\n", "$6\r\n112345\r\n"] {
            assert_eq!(renumbered(other), other);
        }
    }
}
