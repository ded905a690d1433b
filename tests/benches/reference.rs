//! What a decision of the reference costs, which the tests compare the script with.
//! (The script itself is measured by `make bench BENCH="growth"`.)
//!
//! Clients are just below their limit all the time: each decision admits one unit
//! as another leaves. The clock is the bench's own, so that this is so whatever
//! the machine's speed. Compare rows of one run; machines are noisy.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use weir_core::Timestamp;
use weir_core::algorithm::{State, decide};
use weir_tests::script::limit;

const ALGORITHMS: [&str; 5] = ["log", "ring", "counter", "bucket", "quota"];

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
    criterion.final_summary();
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
