//! How Redis decides: requests become batches ([`batch`]), a batch is one call
//! of one script ([`script`]) over one kept-alive, pipelined connection
//! ([`server`], [`link`]), and every request gets exactly one answer
//! ([`limiter`]), whatever becomes of Redis meanwhile.
//!
//! Nothing here knows Lua or nginx.

#![forbid(unsafe_code)]

mod batch;
mod error;
mod limiter;
mod link;
mod lookup;
mod places;
pub mod rule;
pub mod script;
mod server;

pub use batch::{Batch, MalformedReply, Reply, decode};
pub use error::Failure;
pub use limiter::{Answer, Decided, Health, Limiter, LinkState, Outlet};
pub use rule::{Ask, Operation, Rule, Source};
pub use server::{Server, UrlError};
