//! What the workers of one host share: the limits that are decided without
//! Redis, remembered denials, counters and gauges.
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
mod slots;
mod store;
mod usage;

pub use counters::Counters;
pub use denials::Epoch;
pub use moment::{Moment, Uptime};
pub use slots::{SILENCE, Slot, Slots};
pub use store::{Failure, Opened, Store, Tag, Terms};
pub use usage::MemoryUsage;
