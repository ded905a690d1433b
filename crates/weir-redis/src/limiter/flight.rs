//! One batch under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::time::timeout_at;

use crate::batch::Batch;
use crate::error::{Remedy, remedy_for};
use crate::plan::{Ask, Plan};

pub(super) struct Flight {
    pub(super) connection: MultiplexedConnection,
    /// Which of the link's connections that is.
    pub(super) generation: u64,
    pub(super) prefix: Arc<str>,
    pub(super) plans: Arc<[Plan]>,
    pub(super) asks: Vec<Ask>,
    /// The latest of the requests' deadlines.
    pub(super) deadline: Instant,
}

pub(super) struct Landed {
    pub(super) generation: u64,
    pub(super) asks: Vec<Ask>,
    pub(super) round_trip: Duration,
    /// The reply, or what Redis or the connection said, or nothing in time.
    pub(super) reply: Result<Value, Option<RedisError>>,
}

impl Flight {
    pub(super) async fn fly(mut self) -> Landed {
        let begun = Instant::now();
        let reply = match timeout_at(self.deadline.into(), self.call()).await {
            Ok(reply) => reply.map_err(Some),
            Err(_) => Err(None),
        };
        Landed { generation: self.generation, asks: self.asks, round_trip: begun.elapsed(), reply }
    }

    async fn call(&mut self) -> Result<Value, RedisError> {
        let batch = Batch::new(&self.prefix, &self.plans, &self.asks);
        match batch.evalsha().query_async(&mut self.connection).await {
            // Nothing was run, so nothing can be charged twice.
            Err(error) if remedy_for(&error) == Remedy::BringScript => {
                batch.eval().query_async(&mut self.connection).await
            }
            reply => reply,
        }
    }
}
