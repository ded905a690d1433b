//! What the other thread may read of the limiter at any time.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Whether Redis can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Being connected to: requests wait, within their deadline.
    Connecting,
    /// Connected.
    Up,
    /// Known to be away: requests are not worth queueing.
    Down,
}

/// Counters and state, written by the limiter, readable without waiting. They
/// carry numbers only, no other memory, so relaxed ordering is enough.
#[derive(Debug, Default)]
pub struct Health {
    link: AtomicU8,
    /// Script calls sent.
    pub batches: AtomicU64,
    /// Requests sent in them.
    pub batched: AtomicU64,
    /// Connections made.
    pub connects: AtomicU64,
    /// Attempts to make one that failed.
    pub failed_attempts: AtomicU64,
    /// How often a breaker opened.
    pub opened: AtomicU64,
    /// Calls that a cluster sent elsewhere.
    pub redirected: AtomicU64,
    /// Servers that cannot be asked now; of a cluster without a map, the cluster.
    pub away: AtomicU64,
    /// Requests that wait for a server, beside those in the queue.
    pub waiting: AtomicU64,
    /// Requests that were left to `on_error`, those not even queued included.
    pub failed: AtomicU64,
    /// Those of them that were not even queued.
    pub not_queued: AtomicU64,
}

impl Health {
    /// Whether Redis can be asked.
    pub fn link(&self) -> LinkState {
        match self.link.load(Relaxed) {
            1 => LinkState::Up,
            2 => LinkState::Down,
            _ => LinkState::Connecting,
        }
    }

    pub(super) fn set_link(&self, state: LinkState) {
        let state = match state {
            LinkState::Connecting => 0,
            LinkState::Up => 1,
            LinkState::Down => 2,
        };
        self.link.store(state, Relaxed);
    }
}

impl LinkState {
    /// One word for it.
    pub const fn word(self) -> &'static str {
        match self {
            LinkState::Connecting => "connecting",
            LinkState::Up => "up",
            LinkState::Down => "down",
        }
    }
}
