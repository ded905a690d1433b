//! A gate in front of a server: whom it lets in is decided by their address.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::spawn;

/// Lets everybody in, until it is told otherwise. Ends its connections on drop.
///
/// Who is shut out hears nothing more, as behind a link that drops packets: his
/// connections stay, and what he sends is held until he is let in again.
pub struct Gate {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    shut_out: HashSet<IpAddr>,
    open: Vec<TcpStream>,
    ended: bool,
}

impl Gate {
    /// In front of the server at this address and port.
    pub fn before(host: &str, port: u16) -> Self {
        let target = (host.to_owned(), port);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        spawn(move || {
            while let Ok((client, peer)) = listener.accept() {
                let (shared, target) = (Arc::clone(&theirs), target.clone());
                if shared.state.lock().expect("no panic").ended {
                    return;
                }
                spawn(move || shared.forward(client, peer.ip(), (target.0.as_str(), target.1)));
            }
        });
        Self { port, shared }
    }

    /// The port that it listens at, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Shuts these out, and lets in everybody else.
    pub fn shut_out<'a>(&self, hosts: impl IntoIterator<Item = &'a str>) {
        let hosts = hosts.into_iter().map(|host| host.parse().expect("an address"));
        self.shared.state.lock().expect("no panic").shut_out = hosts.collect();
        self.shared.changed.notify_all();
    }

    /// Lets everybody in.
    pub fn open(&self) {
        self.shut_out([]);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().expect("no panic");
        state.ended = true;
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the one who listens.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    /// Hangs up on the client if the server is not there.
    fn forward(self: Arc<Self>, client: TcpStream, peer: IpAddr, target: (&str, u16)) {
        self.wait_for(peer);
        let Ok(server) = TcpStream::connect(target) else { return };
        let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
        let mut state = self.state.lock().expect("no panic");
        if state.ended {
            return;
        }
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
            state.open.push(copy(stream));
        }
        drop(state);
        let (from, to, theirs) = (copy(&client), copy(&server), Arc::clone(&self));
        spawn(move || theirs.carry(from, to, peer));
        self.carry(server, client, peer);
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, peer: IpAddr) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            self.wait_for(peer);
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        // The end of a connection gets through no more than its bytes.
        self.wait_for(peer);
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    fn wait_for(&self, peer: IpAddr) {
        let state = self.state.lock().expect("no panic");
        let is_out = |state: &mut State| !state.ended && state.shut_out.contains(&peer);
        drop(self.changed.wait_while(state, is_out).expect("no panic"));
    }
}
