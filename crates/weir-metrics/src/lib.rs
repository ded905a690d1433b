//! What is counted of all workers of a host, and the text in which Prometheus
//! reads it.
//!
//! The workers count into shared memory ([`Books`]), so any of them can tell of
//! all ([`tell`]), and neither a reload nor the death of a worker takes back what
//! was counted. What the I/O threads count for themselves is carried there by a
//! [`Publisher`] in each. Policies, outcomes, sources and reasons become labels;
//! who a client is never does.

#![forbid(unsafe_code)]

mod books;
mod exposition;
mod families;
mod histogram;
mod publisher;

pub use books::{Books, Decision, OUTCOMES, REASONS, SOURCES, source};
pub use exposition::{Exposition, tell};
pub use publisher::Publisher;
