//! Attempts to connect, and where they lead.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError};
use tokio::time::{sleep, timeout};

use crate::breaker::jittered;
use crate::error::words;
use crate::news::{Event, Listener, News};
use crate::node::{ConnectionId, NodeId};
use crate::sentinel::Sentinels;
use crate::server::Server;

/// The most that an attempt to connect may take, name resolution included: five
/// times as long as a request may wait, within these bounds. A server to which
/// that is too far could not decide in time either. A packet that is lost is
/// sent again by TCP after a second; a new attempt is sooner.
fn connect_timeout(patience: Duration) -> Duration {
    (patience * 5).clamp(Duration::from_millis(250), Duration::from_secs(1))
}

/// The same where Sentinel is asked first: one that does not answer takes a
/// second of its own.
const LOCATE_TIMEOUT: Duration = Duration::from_secs(3);

/// How often Sentinel is asked while all is well.
const WATCH_PERIOD: Duration = Duration::from_secs(10);

/// Where a node's server is found.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Server(Server),
    Primary(Sentinels),
}

/// One attempt to connect.
pub(crate) struct Attempt {
    pub(crate) node: NodeId,
    pub(crate) id: ConnectionId,
    pub(crate) target: Target,
    pub(crate) probe_key: String,
    pub(crate) patience: Duration,
    pub(crate) listener: Listener,
}

impl Attempt {
    pub(crate) async fn run(self, pause: Duration) {
        sleep(pause).await;
        let begun = Instant::now();
        let live = Arc::new(AtomicBool::new(false));
        let limit = match self.target {
            Target::Server(_) => connect_timeout(self.patience),
            Target::Primary(_) => LOCATE_TIMEOUT,
        };
        let event = match timeout(limit, self.connect(&live)).await {
            Ok(Ok((connection, name))) => {
                live.store(true, Relaxed);
                Event::Connected(connection, name)
            }
            Ok(Err(problem)) => Event::AttemptFailed(problem, begun.elapsed()),
            Err(_) => Event::AttemptFailed(format!("no answer within {limit:?}"), begun.elapsed()),
        };
        self.tell(event);
    }

    /// `live`: whether the connection's end is news. During the attempt it is
    /// the attempt's failure.
    async fn connect(
        &self,
        live: &Arc<AtomicBool>,
    ) -> Result<(MultiplexedConnection, String), String> {
        let server = match &self.target {
            Target::Server(server) => server.clone(),
            Target::Primary(sentinels) => {
                let asked = sentinels.primary().await;
                asked.map_err(|error| problem(sentinels.master(), &error))?
            }
        };
        let (listener, node, id) = (self.listener.clone(), self.node, self.id);
        let lost = Arc::clone(live);
        let connection = server.connect_to_write(&self.probe_key, move || {
            if lost.load(Relaxed) {
                // Fails only when the limiter itself has ended.
                let _ = listener.send(News::Node(node, id, Event::Lost));
            }
        });
        match connection.await {
            Ok(connection) => Ok((connection, server.name().to_owned())),
            // Which of several servers it was is half of the news.
            Err(error) if matches!(self.target, Target::Primary(_)) => {
                Err(format!("{}: {}", server.name(), words(&error)))
            }
            Err(error) => Err(words(&error)),
        }
    }

    /// Asks Sentinel now and then, and tells what it says. A primary that is cut
    /// off from its sentinels goes on as one, and nothing else would tell that
    /// there is another.
    pub(crate) async fn watch_primary(self, sentinels: Sentinels) {
        loop {
            sleep(jittered(WATCH_PERIOD)).await;
            if let Ok(Ok(primary)) = timeout(LOCATE_TIMEOUT, sentinels.primary()).await {
                self.tell(Event::Primary(primary.name().to_owned()));
            }
        }
    }

    fn tell(&self, event: Event) {
        // Fails only when the limiter itself has ended.
        let _ = self.listener.send(News::Node(self.node, self.id, event));
    }
}

/// Why there is no primary of this name.
fn problem(master: &str, error: &RedisError) -> String {
    match error.kind() {
        // In the middle of a failover too, when the server that is named is not
        // yet or no longer a primary.
        ErrorKind::MasterNameNotFoundBySentinel => {
            format!("the sentinels name no server {master} that is a primary now")
        }
        _ => format!("through the sentinels: {}", words(error)),
    }
}
