//! What is charged whether there is room or not, in a real Redis under the test's
//! clock.

use std::time::Duration;

use weir_core::decision::Wait;
use weir_core::rate::MAX_LIMIT;
use weir_redis::Operation;
use weir_tests::Redis;
use weir_tests::script::{ALL, Script, at, each, remaining, wait_ms};

/// Exactly when the cost fits, and not a microsecond earlier.
#[test]
fn what_is_charged_beyond_the_limit_is_waited_for() {
    let (_redis, mut script) = each(&ALL);
    // Eight, and at 10 s seven more. The waits of one unit and of five.
    let waits_ms = [
        // The eight leave at 60 s, and of the seven none before 70 s.
        [50_000, 60_000],
        [50_000, 60_000],
        // In the next window ten count of the fifteen, down to nine and to five.
        [56_000, 80_000],
        // 13.33 tokens are missing; at a token in 6 s until nine are, and five.
        [26_000, 50_000],
        [3_590_000, 3_590_000],
    ];
    for (rule, limit) in ALL.iter().enumerate() {
        assert!(script.decide(at(0), rule, "client", 8).allowed, "{limit}");
        let verdict = script.charge(at(10_000), rule, "client", 7).expect("a verdict");
        let standing = verdict.limits[0];
        assert!(verdict.allowed, "{limit}");
        assert_eq!((standing.remaining, standing.wait), (0, Wait::None), "{limit}");
        for (cost, wait) in [1, 5].into_iter().zip(waits_ms[rule]) {
            assert_eq!(wait_ms(&mut script, at(10_000), rule, cost), wait, "{limit}: {cost}");
            let told_us = at(10_000 + wait);
            assert!(!script.decide(told_us - 1, rule, "client", cost).allowed, "{limit}: {cost}");
            assert!(remaining(&mut script, told_us, rule) >= cost, "{limit}: {cost}");
        }
    }
}

/// A bucket's debt is a fourth number, until it is repaid.
#[test]
fn a_bucket_in_debt_keeps_it() {
    let (redis, mut script) = each(&["bucket 10/10s 10", "bucket 10/10s 3"]);
    let key = script.keys(0, "client").remove(0);
    let numbers = || -> Vec<f64> {
        let bytes: Vec<u8> = redis.command(&format!("GET {key}"));
        bytes.chunks(8).map(|chunk| f64::from_le_bytes(chunk.try_into().unwrap())).collect()
    };
    assert!(script.decide(at(0), 0, "client", 4).allowed);
    assert_eq!(numbers(), [at(0) as f64, 4.0, 0.0]);
    let owing = script.charge(at(500), 0, "client", 12).expect("a verdict").limits[0];
    assert_eq!((owing.remaining, owing.reset), (0, Duration::from_millis(15_500)));
    assert_eq!(numbers(), [at(500) as f64, 15.0, 5_000_000.0, 6.0]);
    let ttl: i64 = redis.command(&format!("PTTL {key}"));
    assert!((14_500..=15_501).contains(&ttl), "{ttl}");
    assert_eq!(wait_ms(&mut script, at(500), 0, 1), 6_500);
    assert_eq!(wait_ms(&mut script, at(500), 0, 10), 15_500);
    // Under a burst of three, that and the debt are held against it.
    assert_eq!(wait_ms(&mut script, at(500), 1, 1), 7_000);
    // More of it is more debt, and given back it is less.
    script.charge(at(1_500), 0, "client", 5).expect("a verdict");
    assert_eq!(numbers(), [at(1_500) as f64, 19.0, 5_000_000.0, 10.0]);
    script.refund(at(1_500), 0, "client", 5, at(1_500));
    assert_eq!(numbers(), [at(1_500) as f64, 14.0, 5_000_000.0, 5.0]);
    assert_eq!(script.refund(at(2_000), 0, "client", 12, at(500)).limits[0].remaining, 6);
    assert_eq!(numbers(), [at(1_500) as f64, 4.0, 0.0]);
    // Repaid, and charged as always.
    script.charge(at(2_000), 0, "client", 10).expect("a verdict");
    assert_eq!(numbers().len(), 4);
    assert!(script.decide(at(12_000), 0, "client", 1).allowed);
    assert_eq!(numbers(), [at(12_000) as f64, 4.0, 5_000_000.0]);
}

/// While the clock is behind, no wait is longer than the whole bucket takes: of
/// one without debt that is the burst, whatever debt there was under another.
#[test]
fn a_charge_that_fits_ends_the_debt_of_a_smaller_burst() {
    let (_redis, mut script) = each(&["bucket 10/10s 3", "bucket 10/10s 1"]);
    assert!(script.decide(at(1_000), 0, "client", 1).allowed);
    let in_debt = script.charge(at(1_000), 1, "client", 1).expect("a verdict").limits[0];
    assert_eq!(in_debt.reset, Duration::from_secs(2));
    let charged = script.decide(at(500), 0, "client", 1);
    assert!(charged.allowed);
    assert_eq!(charged.limits[0].reset, Duration::from_secs(3));
}

/// What would take longer than 366 days ends there.
#[test]
fn counts_and_debts_end_somewhere() {
    let limits =
        ["counter 10/1m", "bucket 1/1h 5", "quota 10/month", "bucket 9007199254740991/1ms 1"];
    let (_redis, mut script) = each(&limits);
    let days = |days: u64| Duration::from_secs(days * 86_400);
    let resets = [
        Duration::from_secs(120),
        days(366),
        days(17) - Duration::from_secs(8 * 3_600),
        Duration::from_millis(1),
    ];
    for (rule, limit) in limits.iter().enumerate() {
        for _ in 0..3 {
            let charged = script.charge(at(0), rule, "client", MAX_LIMIT).expect("a verdict");
            let standing = charged.limits[0];
            assert_eq!((standing.remaining, standing.reset), (0, resets[rule]), "{limit}");
        }
    }
    let longest = 366 * 86_400_000;
    assert_eq!(wait_ms(&mut script, at(0), 1, 1), longest - 4 * 3_600_000);
    let beyond = script.refund(at(0), 1, "client", 8_784, at(0)).limits[0];
    assert_eq!(beyond.remaining, 5);
}

/// Each unit of a log is an entry of its own.
#[test]
fn a_log_is_charged_no_more_than_ten_thousand_units_at_once() {
    let redis = Redis::start();
    let rules: [&[&str]; 3] =
        [&["quota 10/day", "log 10/1m"], &["quota 10/day", "ring 10/1m"], &["log 10/1m"]];
    let mut script = Script::new(redis.connect(), &rules);
    for rule in [0, 1] {
        let error = script.charge(at(0), rule, "client", 10_001).expect_err("too much");
        assert!(error.starts_with("a log takes at most 10000 units at once"), "{error}");
        assert_eq!(redis.command::<usize>("DBSIZE"), 0, "nor the other limit");
        // It fails alone.
        let charge = Operation::Charge { cost: 10_001 };
        let asks = [
            script.ask(rule, "before", 1),
            script.perform(rule, "client", charge),
            script.ask(rule, "after", 1),
        ];
        let verdicts = script.batch(Some(at(0)), &asks);
        assert_eq!(verdicts.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
        redis.command::<()>("FLUSHALL");
    }
    for (rule, entries) in [(0, "ZCARD"), (1, "STRLEN")] {
        script.charge(at(0), rule, "client", 10_000).expect("just so many");
        let key = script.keys(rule, "client").remove(1);
        let size: u64 = redis.command(&format!("{entries} {key}"));
        assert!(if rule == 0 { size == 10_000 } else { size <= 9 * 10_000 + 64 });
        // And all of it goes again, in as many steps as it takes.
        let given = script.refund(at(1), rule, "client", 9_990, at(0));
        assert_eq!(given.limits[1].remaining, 0);
        let given = script.refund(at(1), rule, "client", 9_990, at(0));
        assert_eq!([0, 1].map(|limit: usize| given.limits[limit].remaining), [10, 10]);
        assert_eq!(redis.command::<usize>("DBSIZE"), 0);
    }
}

/// A slower rate takes on no such debt, and forgives none.
#[test]
fn a_debt_beyond_what_a_slower_rate_takes_on_is_kept() {
    let (_redis, mut script) = each(&["bucket 100/1h 5", "bucket 1/1h 5"]);
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let fast = script.charge(at(0), 0, "client", 100_000).expect("a verdict").limits[0];
    assert_eq!(fast.reset, hours(1_000));
    let slow = script.charge(at(0), 1, "client", 1).expect("a verdict").limits[0];
    assert_eq!(slow.reset, hours(366 * 24));
    assert_eq!(script.decide(at(0), 0, "client", 0).limits[0].reset, hours(1_000));
}
