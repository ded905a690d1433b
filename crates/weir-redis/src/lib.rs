//! How Redis decides: requests become batches ([`batch`]), a batch is one call
//! of one script ([`script`]) over a few kept-alive, pipelined connections to a
//! server ([`node`]), and every request gets exactly one answer ([`limiter`]),
//! whatever becomes of Redis meanwhile. Which servers those are is the
//! [`deployment`]'s: one, the primary that Sentinel names, or a cluster's.
//!
//! Nothing here knows Lua or nginx.

#![forbid(unsafe_code)]

mod access;
mod address;
mod attempt;
mod batch;
mod breaker;
mod call;
mod deployment;
mod error;
mod limiter;
mod lookup;
mod news;
mod node;
mod places;
mod queue;
mod report;
pub mod rule;
pub mod script;
mod sentinel;
mod server;
mod slots;
#[cfg(test)]
mod testing;

pub use batch::{Batch, MalformedReply, Reply, decode};
pub use deployment::Deployment;
pub use error::Failure;
pub use limiter::{Answer, BATCH_SIZES, Decided, Health, Limiter, LinkState, Outlet};
pub use queue::{Gauge, Inbox, Queue, queue};
pub use rule::{Ask, Operation, Rule, Source};
