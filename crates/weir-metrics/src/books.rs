//! The counters of a host, by what they count.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use weir_redis::BATCH_SIZES;
use weir_shm::{Counters, Slots};

use crate::histogram::Histogram;

/// What becomes of a request under a policy.
pub const OUTCOMES: [&str; 9] = [
    "allowed",
    "denied",
    // Refused without asking: what refused it before is still in force.
    "remembered",
    "exempt",
    "dry_run_denied",
    "error_open",
    "error_closed",
    // Admitted and refused by the host's own store, because Redis could not say.
    "error_local",
    "error_local_denied",
];

/// Who decided.
pub const SOURCES: [&str; 5] = {
    let mut sources = ["on_error"; 5];
    sources[source::REDIS] = "redis";
    sources[source::MEMORY] = "memory";
    sources[source::REMEMBERED] = "remembered";
    sources[source::LOCAL] = "local";
    sources
};

/// Indices of [`SOURCES`].
pub mod source {
    /// Redis.
    pub const REDIS: usize = 0;
    /// The host's memory, where there is no Redis.
    pub const MEMORY: usize = 1;
    /// What Redis has decided before, and the host remembers.
    pub const REMEMBERED: usize = 2;
    /// The host's memory, because Redis could not say.
    pub const LOCAL: usize = 3;
}

/// Why there was no decision. What is none of these counts as the last.
pub const REASONS: [&str; 17] = [
    "timeout",
    "unreachable",
    "redis_error",
    "malformed_reply",
    "queue_full",
    "no_pump",
    "memory_busy",
    "memory_full",
    "memory_failed",
    "stopped",
    "bad_key",
    "bad_cost",
    "bad_exempt",
    "bad_options",
    "bad_phase",
    "fault",
    "other",
];

const WAITS_S: [u64; 11] = [1, 2, 5, 10, 30, 60, 300, 900, 3_600, 21_600, 86_400];

const TIMES_NS: [u64; 19] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
];

const SIZES: [u64; BATCH_SIZES.len()] = {
    let mut sizes = [0; BATCH_SIZES.len()];
    let mut index = 0;
    while index < sizes.len() {
        sizes[index] = BATCH_SIZES[index] as u64;
        index += 1;
    }
    sizes
};

/// Of a policy: its outcomes, then these.
const UPSTREAM_429: usize = OUTCOMES.len();
const WAITS: Histogram = Histogram::new(UPSTREAM_429 + 1, &WAITS_S, 1.0);
const OF_A_POLICY: usize = UPSTREAM_429 + 1 + Histogram::size(WAITS_S.len());

/// Of the host: the reasons, then these, then the times of each source.
const CONNECTS: usize = REASONS.len();
const FAILED_ATTEMPTS: usize = CONNECTS + 1;
const REDIRECTED: usize = CONNECTS + 2;
const BREAKER_OPENED: usize = CONNECTS + 3;
const BATCHES: Histogram = Histogram::new(CONNECTS + 4, &SIZES, 1.0);
const TIMES: usize = CONNECTS + 4 + Histogram::size(SIZES.len());
const OF_THE_HOST: usize = TIMES + SOURCES.len() * Histogram::size(TIMES_NS.len());

/// Of a worker, as it is now: whether it can ask Redis, the servers that it cannot
/// ask, the requests that it has queued.
pub(crate) const GAUGES: usize = 3;

/// More workers than any host has; those beyond are not in the gauges.
const MAX_WORKERS: usize = 256;

/// The counters that all workers of a host share.
#[derive(Debug)]
pub struct Books {
    policies: Vec<(String, Arc<Counters>)>,
    host: Arc<Counters>,
    pub(crate) workers: Arc<Slots>,
    pub(crate) has_redis: bool,
}

/// A decision about a request, as it is counted.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    /// The policy's index.
    pub policy: usize,
    /// An index of [`OUTCOMES`].
    pub outcome: usize,
    /// An index of [`SOURCES`], and how long it took; `None` where nobody was
    /// asked.
    pub took: Option<(usize, Duration)>,
    /// The wait that was told, in seconds.
    pub wait_s: Option<u64>,
    /// An index of [`REASONS`], where nobody could say.
    pub reason: Option<usize>,
}

/// What the I/O threads count of Redis, in whatever time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RedisCounts {
    /// Script calls by their size.
    pub(crate) batches: [u64; SIZES.len() + 1],
    /// Requests in them.
    pub(crate) in_batches: u64,
    pub(crate) connects: u64,
    pub(crate) failed_attempts: u64,
    pub(crate) redirected: u64,
    pub(crate) breaker_opened: u64,
}

impl Books {
    /// The books of these policies. What the configuration before has counted of
    /// one of the same name is kept. To be opened before the workers are forked.
    ///
    /// # Errors
    ///
    /// If the system has no memory for them.
    pub fn open<'a>(
        policies: impl IntoIterator<Item = &'a str>,
        has_redis: bool,
    ) -> io::Result<Self> {
        let open = |name: &str| {
            let counters = Counters::open(&format!("metrics of policy {name}"), OF_A_POLICY)?;
            Ok((name.to_owned(), counters))
        };
        Ok(Self {
            policies: policies.into_iter().map(open).collect::<io::Result<_>>()?,
            host: Counters::open("metrics of the host", OF_THE_HOST)?,
            workers: Slots::open("metrics of the workers", MAX_WORKERS, GAUGES)?,
            has_redis,
        })
    }

    /// Counts a decision. `stripe` is a number that differs from worker to worker.
    /// What has no such index is not counted.
    pub fn record(&self, stripe: usize, decision: &Decision) {
        if let Some((_, counters)) = self.policies.get(decision.policy) {
            if decision.outcome < OUTCOMES.len() {
                counters.add(stripe, decision.outcome, 1);
            }
            if let Some(wait_s) = decision.wait_s {
                WAITS.observe(counters, stripe, wait_s);
            }
        }
        if let Some((source, time)) = decision.took
            && source < SOURCES.len()
        {
            let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            times(source).observe(&self.host, stripe, nanos);
        }
        if let Some(reason) = decision.reason {
            self.host.add(stripe, reason.min(REASONS.len() - 1), 1);
        }
    }

    /// Counts an answer of the upstream that says 429 to what this policy let
    /// through.
    pub fn record_upstream_429(&self, stripe: usize, policy: usize) {
        if let Some((_, counters)) = self.policies.get(policy) {
            counters.add(stripe, UPSTREAM_429, 1);
        }
    }

    pub(crate) fn add_redis(&self, stripe: usize, counts: &RedisCounts) {
        for (index, count) in [
            (CONNECTS, counts.connects),
            (FAILED_ATTEMPTS, counts.failed_attempts),
            (REDIRECTED, counts.redirected),
            (BREAKER_OPENED, counts.breaker_opened),
        ] {
            self.host.add(stripe, index, count);
        }
        BATCHES.add(&self.host, stripe, &counts.batches, counts.in_batches);
    }
}

/// Reading them.
impl Books {
    /// The policies' names and what is counted of each.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (&str, PolicyBook<'_>)> {
        self.policies.iter().map(|(name, counters)| (name.as_str(), PolicyBook(counters)))
    }

    pub(crate) fn times(&self) -> impl Iterator<Item = (&'static str, crate::histogram::Reading)> {
        SOURCES.into_iter().enumerate().map(|(index, name)| (name, times(index).read(&self.host)))
    }

    pub(crate) fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.into_iter().enumerate().map(|(index, name)| (name, self.host.read(index)))
    }

    pub(crate) fn batches(&self) -> crate::histogram::Reading {
        BATCHES.read(&self.host)
    }

    pub(crate) fn connects(&self) -> u64 {
        self.host.read(CONNECTS)
    }

    pub(crate) fn failed_attempts(&self) -> u64 {
        self.host.read(FAILED_ATTEMPTS)
    }

    pub(crate) fn redirected(&self) -> u64 {
        self.host.read(REDIRECTED)
    }

    pub(crate) fn breaker_opened(&self) -> u64 {
        self.host.read(BREAKER_OPENED)
    }
}

/// The counters of one policy.
pub(crate) struct PolicyBook<'a>(&'a Counters);

impl PolicyBook<'_> {
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        OUTCOMES.into_iter().enumerate().map(|(index, name)| (name, self.0.read(index)))
    }

    pub(crate) fn waits(&self) -> crate::histogram::Reading {
        WAITS.read(self.0)
    }

    pub(crate) fn upstream_429s(&self) -> u64 {
        self.0.read(UPSTREAM_429)
    }
}

fn times(source: usize) -> Histogram {
    Histogram::new(TIMES + source * Histogram::size(TIMES_NS.len()), &TIMES_NS, 1e9)
}
