//! What the other thread may read of the limiter at any time.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

use crate::batch::MAX_BATCH;

/// What the sizes of script calls are counted by: up to so many requests.
pub const BATCH_SIZES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, MAX_BATCH];

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
    /// Those of them of each size: up to that of [`BATCH_SIZES`], and larger.
    pub batches_by_size: [AtomicU64; BATCH_SIZES.len() + 1],
    /// The requests in them.
    pub in_batches: AtomicU64,
    /// The same, a request that was sent again counted once.
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

    /// Counts a script call of so many requests.
    pub(super) fn count_batch(&self, requests: usize) {
        let size = BATCH_SIZES.partition_point(|&size| size < requests);
        self.batches.fetch_add(1, Relaxed);
        self.batches_by_size[size].fetch_add(1, Relaxed);
        self.in_batches.fetch_add(requests as u64, Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_counts_in_the_smallest_size_that_holds_it() {
        let health = Health::default();
        for requests in [1, 2, 3, 4, 5, 128, 129] {
            health.count_batch(requests);
        }
        let by_size: Vec<u64> = health.batches_by_size.iter().map(|it| it.load(Relaxed)).collect();
        assert_eq!(by_size, [1, 1, 2, 1, 0, 0, 0, 1, 1]);
        assert_eq!(health.batches.load(Relaxed), 7);
        assert_eq!(health.in_batches.load(Relaxed), 272);
    }
}
