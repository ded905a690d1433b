//! The algorithms, as pure functions of state, time and cost: the reference
//! that the Redis script is tested against.

pub mod sliding_log;
