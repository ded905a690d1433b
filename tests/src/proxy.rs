//! A TCP proxy between nginx and Redis: distance, and what goes wrong on the way.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak, mpsc};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Forwards until it is dropped.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    /// None while it refuses.
    accepting: Mutex<Option<Accepting>>,
}

/// The socket that is listened on, and the thread that accepts there.
type Accepting = (TcpListener, JoinHandle<()>);

struct Shared {
    target: u16,
    /// What each direction takes.
    delay_us: AtomicU64,
    accepted: AtomicUsize,
    silent: Mutex<bool>,
    heard: Condvar,
    open: Mutex<Vec<Weak<TcpStream>>>,
}

impl Proxy {
    /// One to a server at this port of 127.0.0.1, without delay.
    pub fn to(target: u16) -> Self {
        let shared = Shared {
            target,
            delay_us: AtomicU64::new(0),
            accepted: AtomicUsize::new(0),
            silent: Mutex::new(false),
            heard: Condvar::new(),
            open: Mutex::new(Vec::new()),
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let proxy = Self { port, shared: Arc::new(shared), accepting: Mutex::new(None) };
        proxy.listen(listener);
        proxy
    }

    /// Its address, as that of a Redis.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections it has accepted, those to a dead server included.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// From now on a round trip takes this much longer. Order is kept, and how
    /// much is on its way is not limited.
    pub fn set_round_trip(&self, round_trip: Duration) {
        let delay_us = round_trip.as_micros() as u64 / 2;
        self.shared.delay_us.store(delay_us, Ordering::Relaxed);
    }

    /// Accepts, but forwards nothing. What comes meanwhile is held.
    pub fn go_silent(&self) {
        *self.shared.silent.lock().expect("no panic") = true;
    }

    /// Forwards again, beginning with what was held.
    pub fn speak(&self) {
        *self.shared.silent.lock().expect("no panic") = false;
        self.shared.heard.notify_all();
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for stream in self.shared.open.lock().expect("no panic").drain(..) {
            if let Some(stream) = stream.upgrade() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Refuses new connections.
    pub fn refuse(&self) {
        if let Some((listener, thread)) = self.accepting.lock().expect("no panic").take() {
            // SAFETY: shutdown takes numbers and touches no memory of ours; the
            // socket is open, we own it.
            unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
            let _ = thread.join();
        }
    }

    /// Accepts again.
    pub fn accept(&self) {
        self.refuse();
        let listener = TcpListener::bind(("127.0.0.1", self.port)).expect("the port is ours");
        self.listen(listener);
    }

    fn listen(&self, listener: TcpListener) {
        let accepting = listener.try_clone().expect("a descriptor");
        let shared = Arc::clone(&self.shared);
        let thread = spawn(move || {
            // Ends when the socket is shut down.
            while let Ok((stream, _)) = accepting.accept() {
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                let shared = Arc::clone(&shared);
                spawn(move || forward(stream, &shared));
            }
        });
        *self.accepting.lock().expect("no panic") = Some((listener, thread));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse();
        self.speak();
        self.cut();
    }
}

/// Connects the two. If the server is not there, hangs up.
fn forward(client: TcpStream, shared: &Arc<Shared>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", shared.target)) else { return };
    let (client, server) = (Arc::new(client), Arc::new(server));
    for stream in [&client, &server] {
        // Delay is what it is set to, and nothing on top.
        let _ = stream.set_nodelay(true);
        shared.open.lock().expect("no panic").push(Arc::downgrade(stream));
    }
    let (to, from) = (Arc::clone(&server), Arc::clone(&client));
    let theirs = Arc::clone(shared);
    spawn(move || carry(&from, &to, &theirs));
    carry(&server, &client, shared);
}

/// One direction, until its end, which takes its time too.
fn carry(from: &Arc<TcpStream>, to: &Arc<TcpStream>, shared: &Arc<Shared>) {
    let (chunks, coming) = mpsc::channel::<(Instant, Vec<u8>)>();
    let (to, theirs) = (Arc::clone(to), Arc::clone(shared));
    let writing = spawn(move || {
        for (due, bytes) in coming {
            sleep(due.saturating_duration_since(Instant::now()));
            theirs.wait_while_silent();
            if (&*to).write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = (&**from).read(&mut buffer).unwrap_or(0);
        let delay = Duration::from_micros(shared.delay_us.load(Ordering::Relaxed));
        let due = Instant::now() + delay;
        if read == 0 || chunks.send((due, buffer[..read].to_vec())).is_err() {
            break;
        }
    }
    drop(chunks);
    let _ = writing.join();
}

impl Shared {
    fn wait_while_silent(&self) {
        let silent = self.silent.lock().expect("no panic");
        drop(self.heard.wait_while(silent, |silent| *silent).expect("no panic"));
    }
}
