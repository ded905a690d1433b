//! The batches that are under way.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::task::{AbortHandle, JoinSet};

use crate::rule::Ask;

/// Batches under way, each in a task that waits for its reply.
///
/// Their deadlines are watched from outside, together: a timer of each batch's
/// own would cost the thread two system calls a batch, to set a timer that is
/// almost never needed.
#[derive(Default)]
pub(super) struct Flights {
    under_way: HashMap<u64, Flight>,
    tasks: JoinSet<(u64, RedisResult<Value>)>,
    last: u64,
}

pub(super) struct Flight {
    /// Which of the link's connections it is on.
    pub(super) generation: u64,
    pub(super) asks: Vec<Ask>,
    /// Whether the call has the script in it, so that it cannot be unknown.
    pub(super) brings_script: bool,
    begun: Instant,
    /// The latest of the requests' deadlines.
    deadline: Instant,
    task: AbortHandle,
}

impl Flight {
    pub(super) fn round_trip(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl Flights {
    /// How many are on this connection. Those on an earlier one take nobody's
    /// place.
    pub(super) fn on(&self, generation: u64) -> usize {
        self.under_way.values().filter(|flight| flight.generation == generation).count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Sends a batch; `call` is what it says.
    pub(super) fn send(
        &mut self,
        mut connection: MultiplexedConnection,
        generation: u64,
        call: Cmd,
        asks: Vec<Ask>,
        brings_script: bool,
    ) {
        let begun = Instant::now();
        let deadline = asks.iter().map(|ask| ask.deadline).max().unwrap_or(begun);
        self.last += 1;
        let number = self.last;
        let task =
            self.tasks.spawn(async move { (number, call.query_async(&mut connection).await) });
        let flight = Flight { generation, asks, brings_script, begun, deadline, task };
        self.under_way.insert(number, flight);
    }

    /// The next batch that has landed, with its reply. Never returns while
    /// none is under way.
    pub(super) async fn landed(&mut self) -> (Flight, RedisResult<Value>) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((number, reply))) => {
                    if let Some(flight) = self.under_way.remove(&number) {
                        return (flight, reply);
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
