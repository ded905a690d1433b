//! The batches that are under way.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tokio::task::{AbortHandle, JoinSet};

use crate::call::Call;
use crate::node::{ConnectionId, NodeId};
use crate::rule::{Ask, Rule};

/// Batches under way, each in a task that waits for its replies.
///
/// Their deadlines are watched from outside, together: a timer of each batch's
/// own would cost the thread two system calls a batch, to set a timer that is
/// almost never needed.
#[derive(Default)]
pub(super) struct Flights {
    under_way: HashMap<u64, Flight>,
    tasks: JoinSet<(u64, RedisResult<Vec<Value>>)>,
    last: u64,
}

pub(super) struct Flight {
    pub(super) node: NodeId,
    pub(super) connection: ConnectionId,
    /// In the order in which they were sent and are answered.
    pub(super) calls: Vec<Call>,
    begun: Instant,
    /// The latest of the requests' deadlines.
    deadline: Instant,
    task: AbortHandle,
}

impl Flight {
    pub(super) fn round_trip(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(super) fn into_asks(self) -> impl Iterator<Item = Ask> {
        self.calls.into_iter().flat_map(|call| call.asks)
    }
}

impl Flights {
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether none is under way with this node.
    pub(super) fn none_with(&self, node: NodeId) -> bool {
        self.under_way.values().all(|flight| flight.node != node)
    }

    /// Sends a batch of calls over a connection of this node.
    pub(super) fn send(
        &mut self,
        node: NodeId,
        (connection_id, mut connection): (ConnectionId, MultiplexedConnection),
        (prefix, rules): (&str, &[Rule]),
        calls: Vec<Call>,
    ) {
        let begun = Instant::now();
        let deadlines = calls.iter().flat_map(|call| &call.asks).map(|ask| ask.deadline);
        let deadline = deadlines.max().unwrap_or(begun);
        self.last += 1;
        let number = self.last;
        let task = match &calls[..] {
            [call] if !call.asking => {
                let call = call.command(prefix, rules);
                self.tasks.spawn(async move {
                    (number, connection.send_packed_command(&call).await.map(|reply| vec![reply]))
                })
            }
            _ => {
                let mut pipeline = redis::pipe();
                for call in &calls {
                    if call.asking {
                        pipeline.add_command(redis::cmd("ASKING"));
                    }
                    pipeline.add_command(call.command(prefix, rules));
                }
                let asking: Vec<bool> = calls.iter().map(|call| call.asking).collect();
                let commands = asking.iter().map(|&asking| 1 + usize::from(asking)).sum();
                self.tasks.spawn(async move {
                    let replies = connection.send_packed_commands(&pipeline, 0, commands).await;
                    (number, replies.map(|replies| without_asking(replies, &asking)))
                })
            }
        };
        let flight = Flight { node, connection: connection_id, calls, begun, deadline, task };
        self.under_way.insert(number, flight);
    }

    /// The next batch that has landed, with a reply for each call. Never returns
    /// while none is under way.
    pub(super) async fn landed(&mut self) -> (Flight, RedisResult<Vec<Value>>) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((number, replies))) => {
                    if let Some(flight) = self.under_way.remove(&number) {
                        return (flight, replies);
                    }
                }
                // One of those that `take_overdue` gave up on.
                Some(Err(error)) if error.is_cancelled() => {}
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
                None => std::future::pending().await,
            }
        }
    }

    /// Takes out the batches whose last request has been given up by `now`.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<Flight> {
        let overdue: Vec<Flight> = self
            .under_way
            .extract_if(|_, flight| flight.deadline <= now)
            .map(|(_, flight)| flight)
            .collect();
        overdue.iter().for_each(|flight| flight.task.abort());
        overdue
    }

    /// When the next batch will be overdue.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.under_way.values().map(|flight| flight.deadline).min()
    }
}

/// Leaves out the replies to ASKING, which stand before those of their calls.
fn without_asking(replies: Vec<Value>, asking: &[bool]) -> Vec<Value> {
    let mut replies = replies.into_iter();
    asking
        .iter()
        .filter_map(|&asking| {
            if asking {
                replies.next();
            }
            replies.next()
        })
        .collect()
}
