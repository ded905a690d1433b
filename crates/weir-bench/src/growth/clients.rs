//! Clients that are just below their limit: each decision admits one unit as another
//! leaves.

use anyhow::{Result, ensure};
use weir_core::Limit;
use weir_redis::Ask;
use weir_tests::Redis;
use weir_tests::script::{Script, limit};

use super::work::Work;

/// The algorithms, by the words of the tests and by those of the docs.
pub const ALGORITHMS: [(&str, &str); 5] = [
    ("log", "sliding-log"),
    ("ring", "compact-log"),
    ("counter", "sliding-counter"),
    ("bucket", "token-bucket"),
    ("quota", "quota"),
];

/// A microsecond before an hour and a day begin.
pub const START_US: u64 = 1_800_057_599_999_999;
pub const HOUR_US: u64 = 3_600_000_000;

/// A limit of so many units in so many hours. A quota has no steady state: it is
/// never reached here, and has `hours` only to be another.
pub fn hours(algorithm: &str, units: u64, hours: u64) -> Limit {
    limit(&match algorithm {
        "quota" => {
            let period = ["hour", "day", "month"][hours as usize % 3];
            format!("quota {}/{period}", units * 1_000_000)
        }
        _ => format!("{algorithm} {}/{hours}h", units * hours),
    })
}

/// See the module's documentation.
pub struct Clients {
    script: Script,
    asks: Vec<Ask>,
    batch: usize,
    next: usize,
    now_us: u64,
    step_us: u64,
}

impl Clients {
    /// So many, filled up under these limits, of which the largest takes `most` units
    /// and each admits `units` in an hour.
    pub fn fill(
        redis: &Redis,
        limits: &[Limit],
        (units, most): (u64, u64),
        count: usize,
        batch: usize,
    ) -> Result<Self> {
        let script = Script::with(redis.connect(), &[limits.to_vec()]);
        let asks: Vec<Ask> = (0..count).map(|client| script.ask(0, &name(client), 1)).collect();
        // A sliding counter's estimate is rounded up: 98% of a limit always pass, and
        // two units less than a small one.
        let step_us = HOUR_US / units * (102 * units).max(100 * units + 200) / (100 * units);
        let mut clients = Self { script, asks, batch, next: 0, now_us: START_US, step_us };
        let is_log = |limit: &Limit| matches!(limit, Limit::SlidingLog(_) | Limit::CompactLog(_));
        if limits.iter().any(is_log) {
            // Each unit has to be recorded at a time of its own.
            for _ in 0..most {
                clients.round(count)?;
            }
        } else {
            clients.heaps(units.div_ceil(100), most)?;
            clients.round(count)?;
        }
        Ok(clients)
    }

    /// What counts does not care in how many pieces it was counted, as long as each
    /// is small.
    fn heaps(&mut self, heap: u64, most: u64) -> Result<()> {
        for _ in 0..most / heap {
            self.now_us += heap * self.step_us;
            let of = |client| self.script.ask(0, &name(client), heap);
            let asks: Vec<Ask> = (0..self.asks.len()).map(of).collect();
            for asks in asks.chunks(128) {
                decide(&mut self.script, self.now_us, asks)?;
            }
        }
        Ok(())
    }

    /// One unit of each client, at one time.
    fn round(&mut self, count: usize) -> Result<()> {
        self.now_us += self.step_us;
        for asks in self.asks[..count].chunks(128) {
            decide(&mut self.script, self.now_us, asks)?;
        }
        Ok(())
    }

    /// What Redis needs for all keys of a client.
    pub fn bytes(&self, redis: &Redis) -> f64 {
        let usage = |client: usize| -> u64 {
            let keys = self.script.keys(0, &name(client));
            let of = |key| redis.command::<u64>(&format!("MEMORY USAGE {key} SAMPLES 0"));
            keys.iter().map(of).sum()
        };
        let sample = self.asks.len().min(16);
        (0..sample).map(usage).sum::<u64>() as f64 / sample as f64
    }
}

impl Work for Clients {
    fn call(&mut self) -> Result<usize> {
        if self.next + self.batch > self.asks.len() {
            self.next = 0;
        }
        if self.next == 0 {
            self.now_us += self.step_us;
        }
        let asks = &self.asks[self.next..self.next + self.batch];
        self.next += self.batch;
        decide(&mut self.script, self.now_us, asks)
    }
}

/// A batch of which all must be admitted.
pub fn decide(script: &mut Script, now_us: u64, asks: &[Ask]) -> Result<usize> {
    for verdict in script.batch(Some(now_us), asks) {
        match verdict {
            Ok(verdict) => ensure!(verdict.allowed, "a decision refuses: {verdict:?}"),
            Err(error) => anyhow::bail!("a decision failed: {error}"),
        }
    }
    Ok(asks.len())
}

pub fn name(client: usize) -> String {
    format!("client-{client}")
}
