//! The compact log: the decisions of the sliding log, bit for bit, from a ring
//! of 8-byte times.
//!
//! **Guarantee.** That of the [sliding log](super::sliding_log): no span of one
//! window's length ever holds more admitted units than the limit. The two share
//! one reference, [`SlidingLog`](super::sliding_log::SlidingLog).
//!
//! **Memory.** In Redis one string, at most 9 bytes for each recorded unit and
//! 64 of frame: a tenth to a twentieth of what the sliding log's sorted set
//! takes. It grows and shrinks with what is recorded, so a limit that is never
//! reached costs nothing.
//!
//! **Not when** people or other tools want to read the log: it is binary.
//!
//! ```
//! use weir_core::algorithm::{State, decide};
//! use weir_core::{Limit, Timestamp};
//!
//! let rate = "2/10s".parse().unwrap();
//! let limits = [Limit::SlidingLog(rate), Limit::CompactLog(rate)];
//! let mut states = limits.each_ref().map(State::new);
//! for second in [0, 4, 7, 10, 13, 14] {
//!     let now = Timestamp::from_micros(second * 1_000_000);
//!     let verdict = decide(&limits, &mut states, now, 1);
//!     assert_eq!(verdict.limits[0], verdict.limits[1]);
//! }
//! ```
