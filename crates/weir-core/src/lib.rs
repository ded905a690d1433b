//! What a rate limit is, as plain values and pure functions.
//!
//! Nothing here does I/O, reads a clock or knows Redis, Lua or threads: time
//! is passed in, decisions come out. Data flows one way through the crate's
//! modules: [`config`] checks what the operator wrote and makes a [`Policy`];
//! [`identity`] names whom a request counts for; [`algorithm`] decides;
//! [`fields`] puts the [`Verdict`] into words for the client, and [`refusal`] an
//! answer that the client gets instead.

#![forbid(unsafe_code)]

pub mod accept;
pub mod address;
pub mod algorithm;
pub mod config;
pub mod decision;
pub mod duration;
pub mod error;
pub mod fields;
pub mod identity;
pub mod limit;
pub mod period;
pub mod policy;
pub mod rate;
pub mod refusal;
pub mod size;
pub mod structured;
pub mod template;
pub mod texts;
pub mod time;

pub use config::{Config, Value};
pub use decision::{Standing, Verdict};
pub use error::ConfigError;
pub use limit::Limit;
pub use policy::{KeyRule, OnError, Plan, Policy};
pub use rate::Rate;
pub use template::Template;
pub use time::Timestamp;
