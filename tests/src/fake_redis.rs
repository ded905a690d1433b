//! A server that speaks Redis's protocol and answers the script as a test
//! wants.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Answers until it is dropped.
pub struct FakeRedis {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl FakeRedis {
    /// Answers every script call with these bytes, and lets everything that a
    /// connection begins with pass.
    pub fn answering(reply: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || serve(stream, reply));
            }
        });
        Self { port, connections }
    }

    /// How many connections it has had.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }
}

/// Ends with the connection.
fn serve(stream: TcpStream, reply: &str) -> Option<()> {
    let mut output = stream.try_clone().ok()?;
    let mut input = BufReader::new(stream);
    loop {
        let words = command(&mut input)?;
        let answer = match words[0].as_str() {
            // Hangs up instead: at the command that the test names.
            name if reply.strip_prefix("hang up at ") == Some(name) => return None,
            "EVALSHA" | "EVAL" => reply,
            "HELLO" => "%1\r\n+proto\r\n:3\r\n",
            _ => "+OK\r\n",
        };
        output.write_all(answer.as_bytes()).ok()?;
    }
}

/// Reads one command, an array of bulk strings.
fn command(input: &mut impl BufRead) -> Option<Vec<String>> {
    let count = header(input)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let mut bytes = vec![0; header(input)? + 2];
        input.read_exact(&mut bytes).ok()?;
        bytes.truncate(bytes.len() - 2);
        words.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    (!words.is_empty()).then_some(words)
}

fn header(input: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    input.read_line(&mut line).ok()?;
    line.trim().get(1..)?.parse().ok()
}
