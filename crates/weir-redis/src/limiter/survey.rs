//! Asking a cluster for its map.
//!
//! Not all of its nodes know the same: a primary that was cut off goes on telling
//! the map of before. The one to believe is who has seen the latest epoch, which
//! every promotion and every slot that has moved begins.

use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::directory::Found;
use crate::address::Place;
use crate::error::{of_value, words};
use crate::server::Server;
use crate::slots::{self, Range};

/// The most that asking for the map may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How long the others are waited for once one has told its map.
const GRACE: Duration = Duration::from_millis(100);

/// Who can be asked for the map.
pub(super) enum Source {
    Connection(MultiplexedConnection, String),
    Server(Place, Box<Server>),
}

/// The map of one node, and the epoch in which it is.
struct Told {
    map: Vec<Range>,
    epoch: u64,
}

impl Source {
    async fn ask(self) -> Result<Told, String> {
        let (mut connection, host, name) = match self {
            Self::Connection(connection, host) => (connection, host.clone(), host),
            Self::Server(place, server) => {
                let name = server.name().to_owned();
                let connection = server.connect(|| {}).await;
                let connection =
                    connection.map_err(|error| format!("{name}: {}", words(&error)))?;
                (connection, place.host().to_owned(), name)
            }
        };
        let mut questions = redis::pipe();
        questions.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
        let replies = connection.send_packed_commands(&questions, 0, 2).await;
        let mut replies =
            replies.map_err(|error| format!("{name}: {}", words(&error)))?.into_iter();
        let slots = of_value(replies.next().unwrap_or(Value::Nil));
        let slots = slots.map_err(|error| format!("{name}: {}", words(&error)))?;
        let map = slots::read(&slots, &host).ok_or_else(|| format!("{name}: serves no slots"))?;
        // Without the right to ask, one is as good as another.
        let epoch = replies.next().and_then(|info| epoch(&info)).unwrap_or(0);
        Ok(Told { map, epoch })
    }
}

/// The latest epoch that a node has seen, as CLUSTER INFO tells it.
fn epoch(info: &Value) -> Option<u64> {
    let text: String = redis::from_redis_value_ref(info).ok()?;
    text.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:")?.trim().parse().ok())
}

/// The map of whoever knows best; all are asked at once.
pub(super) async fn survey(sources: Vec<Source>) -> Found {
    let mut asked = JoinSet::new();
    for source in sources {
        asked.spawn(timeout(TIMEOUT, source.ask()));
    }
    let mut best: Option<Told> = None;
    let mut problem = format!("no answer within {TIMEOUT:?}");
    let mut until = Instant::now() + TIMEOUT;
    while let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await {
        match answer {
            Ok(Ok(Ok(told))) => {
                if best.is_none() {
                    until = Instant::now() + GRACE;
                }
                if best.as_ref().is_none_or(|best| told.epoch > best.epoch) {
                    best = Some(told);
                }
            }
            Ok(Ok(Err(error))) => problem = error,
            Ok(Err(_)) | Err(_) => {}
        }
    }
    best.map(|told| told.map).ok_or(problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::testing::{run, silent};

    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        run(async {
            let (_listener, place) = silent();
            let server = Access::new(None, None, None, None).server(&place).expect("a server");
            let asked = survey(vec![Source::Server(place, server.into())]);
            let answer = timeout(TIMEOUT * 5, asked).await.expect("an end");
            assert_eq!(answer, Err("no answer within 1s".to_owned()));
        });
    }

    #[test]
    fn an_epoch_is_read_where_it_stands() {
        let info = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let text = "cluster_state:ok\r\ncluster_current_epoch:17\r\ncluster_my_epoch:3\r\n";
        assert_eq!(epoch(&info(text)), Some(17));
        assert_eq!(epoch(&info("cluster_state:ok\r\n")), None);
        assert_eq!(epoch(&Value::Nil), None);
    }
}
