//! What the workers of one host share: the limits that are decided without
//! Redis, remembered denials, and counters.
//!
//! All of it lies in anonymous shared mappings, made in nginx's master before it
//! forks and found again by name after a reload. Nothing here knows Redis, nginx
//! or Lua.

mod counters;
mod denials;
mod layout;
mod lock;
mod mapping;
mod moment;
mod registry;
mod shard;
mod store;

pub use counters::Counters;
pub use denials::Epoch;
pub use moment::{Moment, Uptime};
pub use store::{Failure, MemoryUsage, Opened, Store, Tag, Terms};
