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
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    server: AtomicU16,
    to_server: AtomicU8,
    to_client: AtomicU8,
    refuses: AtomicBool,
    ended: AtomicBool,
    half: AtomicBool,
    delay_millis: AtomicU64,
    clients: Mutex<Vec<TcpStream>>,
    servers: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Leads to this port of the loopback interface.
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port can be bound");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared::default());
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

    /// Whatever is sent from now on takes so many milliseconds longer, each way.
    pub fn slow_down(&self, millis: u64) {
        self.shared.delay_millis.store(millis, Ordering::SeqCst);
    }

    /// New connections lead to this port; those there are stay.
    pub fn lead_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::SeqCst);
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

impl Shared {
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
        thread::spawn(move || up.pump(client, server, |shared| &shared.to_server));
        thread::spawn(move || down.pump(server_too, client_too, |shared| &shared.to_client));
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, flow: impl Fn(&Self) -> &AtomicU8) {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            while flow(self).load(Ordering::SeqCst) == Flow::Hold as u8 && !self.ended.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(2));
            }
            if flow(self).load(Ordering::SeqCst) == Flow::Swallow as u8 {
                continue;
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

fn close(streams: &Mutex<Vec<TcpStream>>) {
    for stream in streams.lock().drain(..) {
        let _closed_already = stream.shutdown(Shutdown::Both);
    }
}
