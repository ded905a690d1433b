//! What a decision costs without nginx: the reference, and the script in Redis
//! by algorithm, limit and batch size, with Redis's CPU and memory.
//!
//! Clients are just below their limit all the time: each decision admits one unit
//! as another leaves. The clock is the bench's own, so that this is so whatever
//! the machine's speed. Compare rows of one run; machines are noisy.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use weir_core::algorithm::{State, decide};
use weir_core::{Limit, Timestamp};
use weir_redis::Ask;
use weir_tests::Redis;
use weir_tests::script::{Script, limit};

const ALGORITHMS: [&str; 5] = ["log", "ring", "counter", "bucket", "quota"];
const LIMITS: [u64; 3] = [100, 1_000, 10_000];
const BATCHES: [usize; 3] = [1, 16, 64];
const CLIENTS: usize = 64;

/// A microsecond before an hour and a day begin.
const START_US: u64 = 1_800_057_599_999_999;
const WINDOW_US: u64 = 3_600_000_000;

fn text(algorithm: &str, units: u64) -> String {
    match algorithm {
        // A quota has no steady state: it is never reached here.
        "quota" => format!("quota {}/month", units * 1_000_000),
        _ => format!("{algorithm} {units}/1h"),
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .configure_from_args()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    reference(&mut criterion);
    let rows = script(&mut criterion);
    criterion.final_summary();
    print(&rows);
}

fn reference(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reference");
    group.throughput(Throughput::Elements(1));
    for algorithm in ALGORITHMS {
        for units in [100, 1_000] {
            let limits = [limit(&text(algorithm, units))];
            let mut states = limits.each_ref().map(State::new);
            let step_us = WINDOW_US / units;
            let mut now_us = START_US;
            let mut next = || {
                now_us += step_us;
                decide(&limits, &mut states, Timestamp::from_micros(now_us), 1)
            };
            (0..units).for_each(|_| assert!(next().allowed));
            group.bench_function(BenchmarkId::new(algorithm, units), |bencher| {
                bencher.iter(&mut next);
            });
        }
    }
    group.finish();
}

/// What one algorithm, limit and batch size cost.
#[derive(Default)]
struct Row {
    decisions: u64,
    took: Duration,
    script: Duration,
    cpu: Duration,
    bytes: u64,
}

type Rows = BTreeMap<(usize, u64, usize), Row>;

fn script(criterion: &mut Criterion) -> Rows {
    let redis = Redis::start();
    let rows: RefCell<Rows> = RefCell::default();
    let mut group = criterion.benchmark_group("script");
    for (index, algorithm) in ALGORITHMS.into_iter().enumerate() {
        for units in LIMITS {
            let mut clients = Clients::fill(&redis, &limit(&text(algorithm, units)), units);
            for batch in BATCHES {
                group.throughput(Throughput::Elements(batch as u64));
                let id = format!("{algorithm}/{units}/batch of {batch}");
                group.bench_function(id, |bencher| {
                    bencher.iter_custom(|calls| {
                        let mut rows = rows.borrow_mut();
                        let row = rows.entry((index, units, batch)).or_default();
                        clients.measure(&redis, calls, batch, row)
                    });
                });
                if let Some(row) = rows.borrow_mut().get_mut(&(index, units, batch)) {
                    row.bytes = clients.bytes(&redis);
                }
            }
        }
    }
    group.finish();
    rows.into_inner()
}

/// Clients at their limit.
struct Clients {
    script: Script,
    asks: Vec<Ask>,
    next: usize,
    now_us: u64,
    step_us: u64,
}

impl Clients {
    fn fill(redis: &Redis, limit: &Limit, units: u64) -> Self {
        redis.command::<()>("FLUSHALL");
        let mut script = Script::with(redis.connect(), &[vec![*limit]]);
        let asks: Vec<Ask> =
            (0..CLIENTS).map(|client| script.ask(0, &format!("client-{client}"), 1)).collect();
        // A sliding counter's estimate is rounded up: 98% of the limit always pass.
        let step_us = WINDOW_US / units * 102 / 100;
        // A hundred heaps stand for the units of the window, one for each.
        let heap = units / 100;
        let mut now_us = START_US;
        for _ in 0..100 {
            now_us += heap * step_us;
            for client in 0..CLIENTS {
                let ask = script.ask(0, &format!("client-{client}"), heap);
                let verdicts = script.batch(Some(now_us), &[ask]);
                assert!(verdicts[0].as_ref().is_ok_and(|verdict| verdict.allowed));
            }
        }
        // Then one by one, until each of the heaps has left.
        let mut clients = Self { script, asks, next: 0, now_us, step_us };
        for _ in 0..units {
            clients.call(CLIENTS);
        }
        clients
    }

    fn call(&mut self, batch: usize) -> usize {
        if self.next + batch > CLIENTS {
            self.next = 0;
        }
        if self.next == 0 {
            self.now_us += self.step_us;
        }
        let asks = &self.asks[self.next..self.next + batch];
        self.next += batch;
        let verdicts = self.script.batch(Some(self.now_us), asks);
        verdicts.iter().filter(|verdict| verdict.as_ref().is_ok_and(|it| it.allowed)).count()
    }

    fn measure(&mut self, redis: &Redis, calls: u64, batch: usize, row: &mut Row) -> Duration {
        let before = (script_time(redis), cpu(redis));
        let begun = Instant::now();
        let admitted: usize = (0..calls).map(|_| self.call(batch)).sum();
        let took = begun.elapsed();
        let after = (script_time(redis), cpu(redis));

        let decisions = calls * batch as u64;
        assert_eq!(admitted as u64, decisions, "some were refused");
        row.decisions += decisions;
        row.took += took;
        row.script += after.0 - before.0;
        row.cpu += after.1 - before.1;
        took
    }

    fn bytes(&self, redis: &Redis) -> u64 {
        let usage = |client: usize| {
            let key = self.script.keys(0, &format!("client-{client}")).remove(0);
            redis.command::<u64>(&format!("MEMORY USAGE {key}"))
        };
        (0..CLIENTS).map(usage).sum::<u64>() / CLIENTS as u64
    }
}

/// Time spent in the script since the start, as Redis counts it.
fn script_time(redis: &Redis) -> Duration {
    let stats: String = redis.command("INFO commandstats");
    let micros = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:"))
        .and_then(|fields| fields.split(',').find_map(|field| field.strip_prefix("usec=")))
        .map_or(0, |micros| micros.parse().expect("microseconds"));
    Duration::from_micros(micros)
}

/// CPU that Redis has used since its start.
fn cpu(redis: &Redis) -> Duration {
    let info: String = redis.command("INFO cpu");
    let seconds = |field: &str| -> f64 {
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse().ok()).expect("seconds")
    };
    Duration::from_secs_f64(seconds("used_cpu_user") + seconds("used_cpu_sys"))
}

fn print(rows: &Rows) {
    if rows.values().all(|row| row.decisions == 0) {
        return;
    }
    println!(
        "\n{:<10} {:>7} {:>6} {:>12} {:>12} {:>12} {:>13}",
        "algorithm", "limit", "batch", "decisions/s", "script", "Redis CPU", "bytes/client"
    );
    for ((algorithm, units, batch), row) in rows {
        let each = |total: Duration| total.as_secs_f64() * 1e6 / row.decisions as f64;
        println!(
            "{:<10} {units:>7} {batch:>6} {:>12.0} {:>9.2} µs {:>9.2} µs {:>13}",
            ALGORITHMS[*algorithm],
            row.decisions as f64 / row.took.as_secs_f64(),
            each(row.script),
            each(row.cpu),
            row.bytes,
        );
    }
}
