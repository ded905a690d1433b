//! HTTP/1.1 byte by byte: what a client library hides.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A connection to a server at this port. A read that gets nothing fails after
/// a while.
pub fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("a server");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream
}

/// The bytes of a request without a body; `fields` are lines without their end.
pub fn request(method: &str, path: &str, fields: &[&str]) -> String {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n")
}

/// Sends these bytes, and reads until the server closes the connection.
pub fn exchange(port: u16, bytes: &str) -> String {
    let mut stream = connect(port);
    stream.write_all(bytes.as_bytes()).expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers and closes");
    answer
}

/// The values of a header in the order of the answers on a connection.
pub fn values<'a>(answers: &'a str, name: &str) -> Vec<&'a str> {
    let value = |line: &'a str| {
        let (field, value) = line.split_once(": ")?;
        field.eq_ignore_ascii_case(name).then_some(value)
    };
    answers.lines().filter_map(value).collect()
}

/// The statuses of the answers on a connection.
pub fn statuses(answers: &str) -> Vec<u16> {
    let status = |line: &str| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok();
    answers.lines().filter_map(status).collect()
}

/// Reads up to the end of a head.
pub fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// A server that takes every request for an upgrade, and then sends back what
/// it gets. Serves until the process ends.
pub struct Echo {
    port: u16,
    upgrades: Arc<AtomicUsize>,
}

impl Echo {
    /// Starts it on a free port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let upgrades = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&upgrades);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || echo(stream));
            }
        });
        Self { port, upgrades }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections it has had.
    pub fn upgrades(&self) -> usize {
        self.upgrades.load(Ordering::Relaxed)
    }
}

/// Ends with the connection.
fn echo(mut stream: TcpStream) -> std::io::Result<u64> {
    read_head(&mut stream)?;
    stream.write_all(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    )?;
    std::io::copy(&mut stream.try_clone()?, &mut stream)
}
