//! What the workers of one host share: the limits that are decided without
//! Redis, remembered denials, counters and gauges.
//!
//! All of it lies in anonymous shared mappings, made in nginx's master before it
//! forks and found again by name after a reload. Nothing here knows Redis, nginx
//! or Lua.

mod counters;
mod mapping;
mod registry;
mod slots;
mod usage;

pub use counters::Counters;
pub use slots::{SILENCE, Slot, Slots};
pub use usage::MemoryUsage;
