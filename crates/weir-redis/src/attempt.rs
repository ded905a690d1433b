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

/// How long a sentinel may take to say why there is no primary.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a connection is of no more use that the server has ended.
pub(crate) const CLOSED: &str = "the connection was closed";

/// How often Sentinel is asked while all is well.
const WATCH_PERIOD: Duration = Duration::from_secs(10);

/// Where a node's server is found.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Server(Server),
    Primary(Sentinels),
}

/// What is known of a connection where its end is heard of.
#[derive(Default)]
struct Link {
    /// Whether its end is news. During the attempt it is the attempt's failure.
    live: AtomicBool,
    ended: AtomicBool,
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
        let link = Arc::new(Link::default());
        let limit = match self.target {
            Target::Server(_) => connect_timeout(self.patience),
            Target::Primary(_) => LOCATE_TIMEOUT,
        };
        let event = match timeout(limit, self.connect(&link)).await {
            Ok(Ok((connection, server))) => {
                link.live.store(true, Relaxed);
                Event::Connected(connection, Box::new(server))
            }
            Ok(Err(problem)) => Event::AttemptFailed(problem, begun.elapsed()),
            Err(_) => Event::AttemptFailed(format!("no answer within {limit:?}"), begun.elapsed()),
        };
        self.tell(event);
    }

    async fn connect(&self, link: &Arc<Link>) -> Result<(MultiplexedConnection, Server), String> {
        let server = match &self.target {
            Target::Server(server) => server.clone(),
            Target::Primary(sentinels) => match sentinels.primary().await {
                Ok(server) => server,
                Err(error) => return Err(problem(sentinels, &error).await),
            },
        };
        let (listener, node, id) = (self.listener.clone(), self.node, self.id);
        let ending = Arc::clone(link);
        let connection = server.connect_to_write(&self.probe_key, move || {
            if ending.live.load(Relaxed) {
                // Fails only when the limiter itself has ended.
                let _ = listener.send(News::Node(node, id, Event::Lost));
            }
            ending.ended.store(true, Relaxed);
        });
        match connection.await {
            Ok(_) if link.ended.load(Relaxed) => Err(CLOSED.to_owned()),
            Ok(connection) => Ok((connection, server)),
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
        let mut kept = None;
        loop {
            sleep(jittered(WATCH_PERIOD)).await;
            let named = match timeout(LOCATE_TIMEOUT, sentinels.named(&mut kept)).await {
                Ok(Ok(Some(primary))) => Ok(primary),
                Ok(Ok(None)) => Err(format!("no sentinel knows {:?}", sentinels.master())),
                Ok(Err(error)) => Err(format!("no sentinel answers: {}", words(&error))),
                Err(_) => Err(format!("no sentinel answers within {LOCATE_TIMEOUT:?}")),
            };
            self.tell(Event::Primary(named));
        }
    }

    fn tell(&self, event: Event) {
        // Fails only when the limiter itself has ended.
        let _ = self.listener.send(News::Node(self.node, self.id, event));
    }
}

/// Why there is no primary. Two questions in one, asked again apart: whether a
/// sentinel answers, and what its answer is good for.
async fn problem(sentinels: &Sentinels, error: &RedisError) -> String {
    match timeout(ASK_TIMEOUT, sentinels.named(&mut None)).await {
        Ok(Ok(Some(primary))) => match error.kind() {
            // In the middle of a failover.
            ErrorKind::MasterNameNotFoundBySentinel => {
                format!("{primary}, which Sentinel names, is no primary now")
            }
            _ => format!("{primary}, which Sentinel names: {}", words(error)),
        },
        Ok(Ok(None)) => format!("no sentinel knows {:?}", sentinels.master()),
        Ok(Err(error)) => format!("no sentinel answers: {}", words(&error)),
        Err(_) => format!("no sentinel answers within {ASK_TIMEOUT:?}: {}", words(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::access::Access;
    use crate::address::Place;

    /// Answers what a connection begins with, and hangs up behind the last of it.
    fn serve(mut stream: TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        loop {
            let answer = match lines.next()?.ok()?.as_str() {
                "HELLO" => "%1\r\n+proto\r\n:3\r\n",
                "SETINFO" | "LOAD" => "+OK\r\n",
                "UNLINK" => ":0\r\n",
                _ => continue,
            };
            stream.write_all(answer.as_bytes()).ok()?;
            if answer.starts_with(':') {
                return None;
            }
        }
    }

    /// Longer than a request may wait, and no longer than that helps.
    #[test]
    fn an_attempt_has_an_end() {
        let (_listener, place) = crate::testing::silent();
        let server = Access::new(None, None, None, None).server(&place).expect("a server");
        let (listener, mut news) = tokio::sync::mpsc::unbounded_channel();
        let attempt = Attempt {
            node: NodeId(1),
            id: 1,
            target: Target::Server(server),
            probe_key: "weir:{probe}:probe".to_owned(),
            patience: Duration::from_millis(10),
            listener,
        };
        let event = crate::testing::run(async {
            let ended = timeout(Duration::from_secs(10), attempt.run(Duration::ZERO)).await;
            ended.expect("an end");
            news.recv().await
        });
        let Some(News::Node(_, 1, Event::AttemptFailed(why, took))) = event else {
            panic!("no failure")
        };
        assert_eq!(why, "no answer within 250ms");
        assert!(took >= Duration::from_millis(250), "{took:?}");
    }

    /// Whether the end is seen before the attempt's is a matter of luck; that
    /// nobody hears of it would leave a connection that is none.
    #[test]
    fn a_connection_that_ends_as_it_begins_is_not_taken_for_one() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let place = Place::Tcp {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().expect("an address").port(),
        };
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|stream| _ = serve(stream));
        });
        let server = Access::new(None, None, None, None).server(&place).expect("a server");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            for _ in 0..50 {
                let (listener, mut news) = tokio::sync::mpsc::unbounded_channel();
                let attempt = Attempt {
                    node: NodeId(1),
                    id: 1,
                    target: Target::Server(server.clone()),
                    probe_key: "weir:{probe}:probe".to_owned(),
                    patience: Duration::from_secs(1),
                    listener,
                };
                attempt.run(Duration::ZERO).await;
                let Some(News::Node(.., event)) = news.recv().await else { panic!("no news") };
                match event {
                    Event::AttemptFailed(..) => {}
                    Event::Connected(_kept, _) => {
                        let more = timeout(Duration::from_secs(5), news.recv()).await;
                        assert!(matches!(more, Ok(Some(News::Node(.., Event::Lost)))), "no end");
                    }
                    Event::Lost | Event::Primary(_) => panic!("not of an attempt"),
                }
            }
        });
    }
}
