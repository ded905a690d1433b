//! The script in a real Redis decides as the reference in weir-core does.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::HashMap;
use weir_core::algorithm::sliding_log::SlidingLog;
use weir_core::{Rate, Timestamp};
use weir_tests::Redis;
use weir_tests::script::Script;

const START_US: u64 = 1_800_000_000_000_000;

/// One request: plan, client, cost, and how far the clock moves before it, in
/// microseconds. Windows are a few seconds, of which a run takes a fraction:
/// Redis expires keys by its own clock. Steps of whole seconds meet every
/// boundary; some go back, a few so far that the clock counts as reset.
type Step = (usize, usize, u64, i64);

fn step() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![
        6 => 0i64..4_000_000,
        2 => Just(0i64),
        1 => -3_000_000i64..0,
        3 => (-2i64..6).prop_map(|seconds| seconds * 1_000_000),
    ];
    let jump = prop_oneof![
        200 => clock,
        1 => Just(70_000_000i64),
        1 => Just(-60_000_000i64),
        1 => Just(-70_000_000i64),
    ];
    (0..RATES.len(), 0usize..2, 0u64..4, jump)
}

const RATES: [&str; 4] = ["1/5s", "3/4s", "3/10s", "9007199254740991/7s"];

#[test]
fn the_script_decides_as_the_reference_does() {
    let redis = Redis::start();
    let policies: Vec<[&str; 1]> = RATES.iter().map(|&rate| [rate]).collect();
    let policies: Vec<&[&str]> = policies.iter().map(|policy| &policy[..]).collect();
    let mut runner = TestRunner::new(Config { cases: 60, ..Config::default() });
    let steps = proptest::collection::vec(step(), 1..400);
    runner
        .run(&steps, |steps| {
            redis.command::<()>("FLUSHALL");
            let mut script = Script::new(redis.connect(), &policies);
            let mut logs: HashMap<(usize, usize), SlidingLog> = HashMap::new();
            let mut now_us = START_US;
            for (plan, client, cost, clock) in steps {
                now_us = now_us.saturating_add_signed(clock);
                let rate: Rate = RATES[plan].parse().expect("a rate");
                let log = logs.entry((plan, client)).or_default();
                let expected = log.decide(rate, Timestamp::from_micros(now_us), cost);

                let name = format!("client-{client}");
                let before = script.server_us();
                let verdict = script.decide(now_us, plan, &name, cost);
                let after = script.server_us();
                prop_assert_eq!(verdict.allowed, expected.wait.is_none());
                prop_assert_eq!(&verdict.limits, &[expected]);

                let key = script.keys(plan, &name).remove(0);
                let expiry = script.expiry_ms(&key);
                if verdict.allowed && cost > 0 {
                    // One window on, to the millisecond.
                    let window = weir_core::time::micros(rate.window());
                    let least = ((before + window) / 1_000) as i64;
                    let most = (after + window).div_ceil(1_000) as i64;
                    prop_assert!(*expiry.end() >= least && *expiry.start() <= most);
                } else if log.is_empty() {
                    prop_assert_eq!(expiry, -2..=-2, "nothing is recorded");
                } else {
                    prop_assert_ne!(expiry, -1..=-1, "no time to live");
                }
            }
            Ok(())
        })
        .unwrap();
}
