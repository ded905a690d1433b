//! The connection's life: lost, tried again with patience, found again.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::error::describe;
use crate::server::Server;

/// The most that an attempt to connect may take, name resolution included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// With an attempt every second at the latest, limits are back within two
/// seconds of Redis.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the link reports.
pub(crate) enum Event {
    /// A connection, ready for calls.
    Connected(MultiplexedConnection),
    /// An attempt failed; the next one follows by itself.
    AttemptFailed(String),
    /// The connection of this link ended.
    Lost,
}

/// A link to a server that is up, or being brought up.
pub(crate) struct Link {
    server: Server,
    pub(crate) connection: Option<MultiplexedConnection>,
    /// Counts the connections: news of an earlier one is no news.
    generation: u64,
    events: UnboundedReceiver<(u64, Event)>,
    report: UnboundedSender<(u64, Event)>,
    pause: Duration,
    /// Since when the connection has been there; `None` once it has proven
    /// itself, and before the first.
    unproven_since: Option<Instant>,
    connector: Option<AbortHandle>,
}

impl Link {
    pub(crate) fn new(server: Server) -> Self {
        let (report, events) = unbounded_channel();
        Self {
            server,
            connection: None,
            generation: 0,
            events,
            report,
            pause: FIRST_PAUSE,
            unproven_since: None,
            connector: None,
        }
    }

    pub(crate) fn server(&self) -> &str {
        self.server.name()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Lets go of the connection, if any, and connects anew. At once, which it
    /// returns, if the connection was good for something; otherwise, or if
    /// `pause_first`, after a pause that grows: a server that accepts and hangs
    /// up must not be called in a loop.
    pub(crate) fn reconnect(&mut self, pause_first: bool) -> bool {
        let was_good = self.unproven_since.is_none_or(|since| since.elapsed() >= LONGEST_PAUSE);
        let at_once = was_good && !pause_first;
        let first_pause = if at_once { Duration::ZERO } else { self.next_pause() };
        self.connection = None;
        self.generation += 1;
        if let Some(previous) = self.connector.take() {
            previous.abort();
        }
        let connector = Connector {
            server: self.server.clone(),
            generation: self.generation,
            report: self.report.clone(),
        };
        self.connector = Some(tokio::spawn(connector.run(first_pause)).abort_handle());
        at_once
    }

    /// Forgets earlier failures: a decision succeeded.
    pub(crate) fn proven(&mut self) {
        self.pause = FIRST_PAUSE;
        self.unproven_since = None;
    }

    /// The next event of the present generation.
    pub(crate) async fn event(&mut self) -> Event {
        loop {
            // The link holds a sender itself, so the channel never closes.
            if let Some((generation, event)) = self.events.recv().await
                && generation == self.generation
            {
                if let Event::Connected(connection) = &event {
                    self.connection = Some(connection.clone());
                    self.unproven_since = Some(Instant::now());
                }
                return event;
            }
        }
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

/// One task that tries until it has a connection.
struct Connector {
    server: Server,
    generation: u64,
    report: UnboundedSender<(u64, Event)>,
}

impl Connector {
    async fn run(self, first_pause: Duration) {
        sleep(first_pause).await;
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = Instant::now();
            let live = Arc::new(AtomicBool::new(false));
            let problem = match timeout(CONNECT_TIMEOUT, self.attempt(&live)).await {
                Ok(Ok(connection)) => {
                    live.store(true, Relaxed);
                    self.tell(Event::Connected(connection));
                    return;
                }
                Ok(Err(error)) => describe(&error),
                Err(_) => format!("no answer within {CONNECT_TIMEOUT:?}"),
            };
            if !self.tell(Event::AttemptFailed(problem)) {
                return;
            }
            sleep(jittered(pause).saturating_sub(begun.elapsed())).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// `live`: whether the connection's end is news. During the attempt it is
    /// the attempt's failure.
    async fn attempt(&self, live: &Arc<AtomicBool>) -> Result<MultiplexedConnection, RedisError> {
        let (report, generation) = (self.report.clone(), self.generation);
        let live = Arc::clone(live);
        self.server
            .connect(move || {
                if live.load(Relaxed) {
                    // Fails only when the limiter itself has ended.
                    let _ = report.send((generation, Event::Lost));
                }
            })
            .await
    }

    /// Whether there is still somebody to tell.
    fn tell(&self, event: Event) -> bool {
        self.report.send((self.generation, event)).is_ok()
    }
}

/// A pause of 75 to 100 %, so that many workers do not knock at once.
fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    // RandomState is seeded anew for each instance: random enough to spread
    // attempts, without a dependency.
    let random = RandomState::new().hash_one(0u8) % 256;
    pause.mul_f64(1.0 - random as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_spread_over_its_last_quarter() {
        let pause = Duration::from_millis(1_000);
        let pauses: Vec<_> = (0..100).map(|_| jittered(pause)).collect();
        assert!(pauses.iter().all(|&p| p > pause.mul_f64(0.75) && p <= pause));
        assert!(pauses.iter().any(|&p| p != pauses[0]));
    }
}
