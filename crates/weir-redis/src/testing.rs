//! What this crate's tests have in common.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use crate::access::Access;
use crate::address::Place;
use crate::error;
use crate::rule::{Ask, Operation, Source};
use crate::server::Server;

/// Runs a test that needs a runtime.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

/// An error reply as it comes from a server.
pub(crate) fn error_reply(text: &str) -> RedisError {
    let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
    error::of_value(reply.expect("a reply")).expect_err("an error")
}

/// Requests of one client, with tickets from 1.
pub(crate) fn asks(count: u64) -> Vec<Ask> {
    let ask = |ticket| Ask {
        ticket,
        rule: 0,
        source: Source::Given,
        value: b"x"[..].into(),
        operation: Operation::Decide { cost: 1 },
        deadline: Instant::now() + Duration::from_secs(60),
    };
    (1..=count).map(ask).collect()
}

/// A port of this machine where nothing is answered.
pub(crate) fn silent() -> (TcpListener, Place) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    (listener, Place::Tcp { host: "127.0.0.1".to_owned(), port })
}

/// A server that answers what a connection begins with, and nothing else: to
/// SCRIPT LOAD and to UNLINK these replies. It ends with its one connection.
pub(crate) fn server(load: &'static str, unlink: &'static str) -> (Server, JoinHandle<()>) {
    let (listener, place) = silent();
    let serve = move || {
        if let Ok((stream, _)) = listener.accept() {
            greet(stream, load, unlink);
        }
    };
    let server = Access::new(None, None, None, None).server(&place).expect("a server");
    (server, std::thread::spawn(serve))
}

/// A server of this name, which nobody connects to.
pub(crate) fn named(name: &str) -> Server {
    let (host, port) = name.split_once(':').expect("a host and a port");
    let place = Place::Tcp { host: host.to_owned(), port: port.parse().expect("a port") };
    Access::new(None, None, None, None).server(&place).expect("a server")
}

/// A connection to a server that answers what a connection begins with.
pub(crate) async fn connection() -> MultiplexedConnection {
    server("+OK", ":0").0.connect(|| {}).await.expect("a connection")
}

/// Ends with the connection.
fn greet(mut stream: TcpStream, load: &str, unlink: &str) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    loop {
        let answer = match lines.next()?.ok()?.as_str() {
            "HELLO" => "%1\r\n+proto\r\n:3",
            "SETINFO" => "+OK",
            "LOAD" => load,
            "UNLINK" => unlink,
            _ => continue,
        };
        stream.write_all(format!("{answer}\r\n").as_bytes()).ok()?;
    }
}
