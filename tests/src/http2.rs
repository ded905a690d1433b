//! HTTP/2 in cleartext, by the clients of nghttp2: what they print of each
//! stream, frame by frame.

use std::collections::BTreeMap;
use std::process::{Command, Output};

/// A client of a server at this port.
pub struct Http2 {
    port: u16,
}

/// What came on one stream.
#[derive(Debug, Default)]
pub struct Stream {
    /// The status, 0 if none came.
    pub status: u16,
    /// Header fields in the order in which they came, trailers included.
    pub fields: Vec<(String, String)>,
    /// The frames that carry the answer, each by its type and whether it ended
    /// the stream: `("HEADERS", true)`.
    pub frames: Vec<(String, bool)>,
}

impl Http2 {
    /// A client of a server at this port.
    pub fn new(port: u16) -> Self {
        Self { port }
    }

    /// Asks for all of these paths at once, on one connection; `options` are
    /// nghttp's. Returns the streams in the order in which they were opened.
    pub fn ask(&self, options: &[&str], paths: &[&str]) -> Vec<Stream> {
        let output = run(Command::new("nghttp")
            .args(["--verbose", "--null-out", "--timeout=20"])
            .args(options)
            .args(paths.iter().map(|path| self.url(path))));
        streams(&output).into_values().collect()
    }

    /// One request.
    pub fn get(&self, path: &str) -> Stream {
        self.ask(&[], &[path]).pop().expect("one stream")
    }

    /// Makes `count` requests, up to 50 at once, on one connection. Returns how
    /// many were answered with 2xx, 4xx and 5xx.
    pub fn load(&self, count: usize, path: &str) -> [usize; 3] {
        let output = run(&mut self.loading(count, path));
        let codes = output
            .lines()
            .find_map(|line| line.strip_prefix("status codes: "))
            .unwrap_or_else(|| panic!("no status codes in {output}"));
        let count = |class: &str| {
            let words: Vec<&str> = codes.split([' ', ',']).collect();
            let at = words.iter().position(|&word| word == class).expect(class);
            words[at - 1].parse().expect("a number")
        };
        ["2xx", "4xx", "5xx"].map(count)
    }

    /// The command that does so.
    pub fn loading(&self, count: usize, path: &str) -> Command {
        let mut command = Command::new("h2load");
        command.args(["-c1", "-m50", "-n", &count.to_string(), &self.url(path)]);
        command
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

impl Stream {
    /// A header's value, if it is there. Panics if it is there twice.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is there twice: {self:?}");
        value
    }

    /// A header's value as a number.
    pub fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
    }

    /// Whether the answer is one HEADERS frame that ends the stream.
    pub fn is_headers_only(&self) -> bool {
        self.frames == [("HEADERS".to_owned(), true)]
    }
}

fn run(command: &mut Command) -> String {
    let Output { stdout, .. } = command.output().expect("nghttp2-client is installed");
    String::from_utf8_lossy(&stdout).into_owned()
}

/// Reads what nghttp prints:
///
/// ```text
/// [  0.001] recv (stream_id=13) :status: 200
/// [  0.001] recv HEADERS frame <length=89, flags=0x04, stream_id=13>
///           ; END_HEADERS
/// ```
fn streams(output: &str) -> BTreeMap<u32, Stream> {
    let mut streams = BTreeMap::<u32, Stream>::new();
    for line in output.lines() {
        let Some((_, received)) = line.split_once("] recv ") else { continue };
        if let Some((id, field)) =
            received.strip_prefix("(stream_id=").and_then(|rest| rest.split_once(") "))
        {
            let stream = streams.entry(id.parse().expect("a stream")).or_default();
            // A pseudo-header begins with a colon of its own.
            let (name, value) = field[1..].split_once(": ").expect("a field");
            let name = format!("{}{name}", &field[..1]);
            if name == ":status" {
                stream.status = value.parse().expect("a status");
            } else {
                stream.fields.push((name, value.to_owned()));
            }
        } else if received.starts_with("HEADERS ") || received.starts_with("DATA ") {
            let (kind, rest) = received.split_once(' ').expect("a frame");
            let value = |name| {
                let (_, rest) = rest.split_once(name).expect(name);
                rest.split([',', '>']).next().expect(name)
            };
            let flags = u8::from_str_radix(value("flags=0x"), 16).expect("flags");
            let id = value("stream_id=").parse().expect("a stream");
            streams.entry(id).or_default().frames.push((kind.to_owned(), flags & 1 != 0));
        }
    }
    streams
}
