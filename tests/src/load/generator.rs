//! The thread that makes the load: one tokio runtime, a task for each connection.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Asked, PATIENCE, Shared, Stream};
use crate::wire;

/// How often what is due is looked for; tokio's clock knows no shorter time.
const TICK: Duration = Duration::from_millis(1);

/// Requests that are due, for whichever connection is free first.
struct Queue {
    due: RefCell<VecDeque<(Stream, Instant)>>,
    waiting: Semaphore,
    under_way: Cell<usize>,
    answered: Notify,
}

/// Runs until it is told to stop and everything is answered. Says when it
/// begins.
pub(super) fn run(
    port: u16,
    connections: usize,
    streams: &[Stream],
    shared: &Arc<Shared>,
    begun: &mpsc::Sender<()>,
) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let queue = Rc::new(Queue {
            due: RefCell::default(),
            waiting: Semaphore::new(0),
            under_way: Cell::new(0),
            answered: Notify::new(),
        });
        for _ in 0..connections {
            let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("nginx accepts");
            let connection = Connection { port, stream: Some(stream), received: Vec::new() };
            tokio::task::spawn_local(connection.serve(Rc::clone(&queue), Arc::clone(shared)));
        }
        let _ = begun.send(());
        queue.fill(streams, shared).await;
        while queue.under_way.get() > 0 {
            queue.answered.notified().await;
        }
    });
}

impl Queue {
    /// Puts in what is due, until the load is stopped.
    async fn fill(&self, streams: &[Stream], shared: &Shared) {
        let begun = Instant::now();
        let mut made = vec![0; streams.len()];
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for first in 0.. {
            ticks.tick().await;
            if shared.is_stopped() {
                return;
            }
            let now = Instant::now();
            // Another stream first each time: who is behind another waits for it.
            for index in 0..streams.len() {
                let index = (first + index) % streams.len();
                let stream = streams[index];
                loop {
                    let due =
                        begun + Duration::from_secs(made[index]).div_f64(f64::from(stream.rate));
                    if due > now {
                        break;
                    }
                    made[index] += 1;
                    self.push(stream, due);
                }
            }
        }
    }

    fn push(&self, stream: Stream, due: Instant) {
        self.due.borrow_mut().push_back((stream, due));
        self.under_way.update(|count| count + 1);
        self.waiting.add_permits(1);
    }

    async fn next(&self) -> (Stream, Instant) {
        self.waiting.acquire().await.expect("never closed").forget();
        self.due.borrow_mut().pop_front().expect("one for each permit")
    }
}

struct Connection {
    port: u16,
    /// None after it broke.
    stream: Option<TcpStream>,
    received: Vec<u8>,
}

impl Connection {
    async fn serve(mut self, queue: Rc<Queue>, shared: Arc<Shared>) {
        loop {
            let (Stream { path, .. }, due) = queue.next().await;
            let sent = Instant::now();
            let answer = timeout(PATIENCE, self.ask(path)).await;
            let done = Instant::now();
            // No answer is told as such; the connection is of no more use.
            let (status, limited) =
                answer.unwrap_or(Err(ErrorKind::TimedOut.into())).unwrap_or_else(|_| {
                    self.stream = None;
                    (0, false)
                });
            shared.record(Asked { path, due, sent, done, status, limited });
            queue.under_way.update(|count| count - 1);
            queue.answered.notify_one();
        }
    }

    /// Asks, and reads the answer: its status, and whether it has limit headers.
    async fn ask(&mut self, path: &str) -> Result<(u16, bool)> {
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => TcpStream::connect(("127.0.0.1", self.port)).await?,
        };
        let stream = self.stream.insert(stream);
        let request = wire::request("GET", path, &[]);
        // The socket's buffer is empty: a request fits.
        if stream.try_write(request.as_bytes())? != request.len() {
            return Err(ErrorKind::WriteZero.into());
        }
        self.received.clear();
        let mut buffer = [0; 4096];
        loop {
            stream.readable().await?;
            match stream.try_read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.received.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            if let Some(answer) = answer(&self.received)? {
                return Ok(answer);
            }
        }
    }
}

/// Status and limits of an answer, once all of it is there.
fn answer(received: &[u8]) -> Result<Option<(u16, bool)>> {
    let text = std::str::from_utf8(received).map_err(|error| Error::other(error.to_string()))?;
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return Ok(None) };
    let field = |name| wire::values(head, name).first().copied();
    let complete = match field("Content-Length") {
        Some(length) => length.parse() == Ok(body.len()),
        None => body.ends_with("0\r\n\r\n"),
    };
    let status = wire::statuses(head).first().copied().ok_or(ErrorKind::InvalidData)?;
    Ok(complete.then(|| (status, field("RateLimit-Limit").is_some())))
}

#[cfg(test)]
mod tests {
    use super::answer;

    #[test]
    fn an_answer_is_read_to_its_end() {
        let whole = "HTTP/1.1 503 Gone\r\nContent-Length: 4\r\nratelimit-limit: 5\r\n\r\nbody";
        for end in 0..whole.len() {
            assert!(!matches!(answer(&whole.as_bytes()[..end]), Ok(Some(_))), "{end}");
        }
        assert_eq!(answer(whole.as_bytes()).expect("an answer"), Some((503, true)));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        for end in 0..chunked.len() {
            assert!(!matches!(answer(&chunked.as_bytes()[..end]), Ok(Some(_))), "{end}");
        }
        assert_eq!(answer(chunked.as_bytes()).expect("an answer"), Some((200, false)));
    }
}
