//! The clocks of the host.

use std::time::{Duration, SystemTime};

use weir_core::{Timestamp, time};

/// A point in time by both clocks of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// By the wall clock, which limits are decided by.
    pub wall: Timestamp,
    /// By the monotonic clock, which waits are kept by and records expire by.
    pub uptime: Uptime,
}

/// Microseconds of the system's monotonic clock, which is one for all processes of
/// a host and never steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uptime(u64);

impl Moment {
    /// Now.
    pub fn now() -> Self {
        // A clock before 1970 is taken to be there.
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { wall: Timestamp::from_micros(time::micros(wall)), uptime: Uptime::now() }
    }

    /// The same wait after both clocks.
    pub fn after(self, span: Duration) -> Self {
        Self { wall: self.wall + span, uptime: self.uptime.after(span) }
    }
}

impl Uptime {
    /// Now.
    pub fn now() -> Self {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a valid pointer to a timespec; the clock exists on every Linux,
        // so that the call cannot fail.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        Self(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000)
    }

    /// So many microseconds of the clock.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds of the clock.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// So much later.
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(time::micros(span)))
    }

    /// The time from `earlier` to `self`; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}
