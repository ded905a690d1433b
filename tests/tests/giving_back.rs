//! What is charged afterwards and what is given back, in a real Redis under the
//! test's clock.

use std::time::Duration;

use redis::Value;
use weir_core::Timestamp;
use weir_core::decision::Wait;
use weir_redis::Operation;
use weir_tests::Redis;
use weir_tests::script::{Script, at, each};

const MAX_LIMIT: u64 = (1 << 53) - 1;

/// One of each, of a limit of 10 per minute or hour; 12 units of a ring make it
/// one only where `RINGS` says so.
const ALL: [&str; 5] =
    ["log 10/1m", "ring 10/1m", "counter 10/1m", "bucket 10/1m", "quota 10/hour"];

/// When the last of what was charged at 0 has left each of `ALL`.
const GONE_MS: [u64; 5] = [60_000, 60_000, 120_000, 60_000, 3_600_000];

fn remaining(script: &mut Script, now_us: u64, rule: usize) -> u64 {
    script.decide(now_us, rule, "client", 0).limits[0].remaining
}

fn wait_ms(script: &mut Script, now_us: u64, rule: usize, cost: u64) -> u64 {
    match script.decide(now_us, rule, "client", cost).limits[0].wait {
        Wait::For(wait) => wait.as_millis() as u64,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_gone_is_not_given_back_and_makes_no_key() {
    let (redis, mut script) = each(&ALL);
    for (rule, limit) in ALL.iter().enumerate() {
        let verdict = script.refund(at(0), rule, "client", 3, at(0));
        assert!(verdict.allowed, "{limit}");
        let standing = verdict.limits[0];
        assert_eq!((standing.remaining, standing.wait), (10, Wait::None), "{limit}");
        assert_eq!(standing.reset, Duration::ZERO, "{limit}");

        assert!(script.decide(at(0), rule, "client", 10).allowed);
        let key = script.keys(rule, "client").remove(0);
        redis.command::<()>(&format!("DEL {key}"));
        assert_eq!(script.refund(at(1), rule, "client", 10, at(0)).limits[0].remaining, 10);
        assert_eq!(redis.command::<usize>("DBSIZE"), 0, "{limit}");
    }
}

/// Also of more than was charged: what is there is given back, and nothing more.
#[test]
fn nothing_goes_below_zero() {
    let (redis, mut script) = each(&ALL);
    for (rule, limit) in ALL.iter().enumerate() {
        assert!(script.decide(at(0), rule, "client", 4).allowed);
        let standing = script.refund(at(0), rule, "client", 3, at(0)).limits[0];
        assert_eq!(standing.remaining, 9, "{limit}");
        let standing = script.refund(at(0), rule, "client", 3, at(0)).limits[0];
        assert_eq!((standing.remaining, standing.reset), (10, Duration::ZERO), "{limit}");
        assert_eq!(redis.command::<usize>("DBSIZE"), 0, "{limit}: nothing is left in it");
        assert_eq!(script.refund(at(0), rule, "client", 3, at(0)).limits[0].remaining, 10);
        assert!(script.decide(at(0), rule, "client", 10).allowed, "{limit}");
        assert!(!script.decide(at(0), rule, "client", 1).allowed, "{limit}: ten and no more");

        assert_eq!(script.refund(at(0), rule, "client", MAX_LIMIT, at(0)).limits[0].remaining, 10);
        assert_eq!(redis.command::<usize>("DBSIZE"), 0, "{limit}");
    }
}

#[test]
fn what_has_left_is_not_given_back() {
    let (_redis, mut script) = each(&ALL);
    for (rule, limit) in ALL.iter().enumerate() {
        let gone = at(GONE_MS[rule]);
        assert!(script.decide(at(0), rule, "client", 10).allowed);
        assert!(script.decide(gone, rule, "client", 7).allowed, "{limit}");
        let standing = script.refund(gone, rule, "client", 10, at(0)).limits[0];
        assert_eq!(standing.remaining, 3, "{limit}");
    }
}

/// What was charged at another time than is told is left alone; a counter and a
/// quota know of no time within their window.
#[test]
fn another_time_is_given_nothing_back() {
    let (_redis, mut script) = each(&ALL);
    for (rule, limit) in ALL.iter().enumerate() {
        assert!(script.decide(at(60_000), rule, "client", 5).allowed);
        for elsewhere in [0, at(60_000) - 3_600_000_000, at(3_600_000), MAX_LIMIT] {
            // A bucket cannot know what has not been: it trusts the caller.
            if limit.starts_with("bucket") && elsewhere > at(60_000) {
                continue;
            }
            let standing = script.refund(at(60_000), rule, "client", 5, elsewhere).limits[0];
            assert_eq!(standing.remaining, 5, "{limit}: {elsewhere}");
        }
        if limit.starts_with("log") || limit.starts_with("ring") {
            for micros in [at(60_000) - 1, at(60_000) + 1] {
                assert_eq!(
                    script.refund(at(60_000), rule, "client", 5, micros).limits[0].remaining,
                    5
                );
            }
        }
    }
}

/// Those of one microsecond are alike: one of them is given back, whosever.
#[test]
fn one_of_two_in_the_same_microsecond_is_given_back() {
    for limit in ["log 2/1m", "ring 2/1m", "counter 2/1m", "bucket 2/1m", "quota 2/hour"] {
        let (_redis, mut script) = each(&[limit]);
        let asks = [0, 1].map(|_| script.ask(0, "client", 1));
        for verdict in script.batch(Some(at(0)), &asks) {
            assert!(verdict.unwrap().allowed);
        }
        assert_eq!(script.refund(at(100), 0, "client", 1, at(0)).limits[0].remaining, 1);
        let asks = [0, 1].map(|_| script.ask(0, "client", 1));
        let verdicts = script.batch(Some(at(100)), &asks);
        let passed = verdicts.iter().filter(|verdict| verdict.as_ref().unwrap().allowed).count();
        assert_eq!(passed, 1, "{limit}: exactly one place was free again");
    }
}

/// Were the newest entries removed for those of second 0, five more would pass
/// when second 0 leaves, and second 50 and 60 would hold ten within ten seconds.
#[test]
fn a_log_lets_no_more_through_for_what_was_given_back() {
    // The last is a ring, of more than what is written anew each time.
    for (limit, units) in [("log 10/1m", 5), ("ring 10/1m", 5), ("ring 200/1m", 100)] {
        let (_redis, mut script) = each(&[limit]);
        assert!(script.decide(at(0), 0, "client", units).allowed);
        assert!(script.decide(at(50_000), 0, "client", units).allowed);
        let given = script.refund(at(55_000), 0, "client", units, at(0)).limits[0];
        assert_eq!(given.remaining, units);
        assert!(script.decide(at(55_000), 0, "client", units).allowed);
        assert!(!script.decide(at(60_000), 0, "client", 1).allowed, "{limit}");
        assert_eq!(wait_ms(&mut script, at(60_000), 0, 1), 50_000, "{limit}");
        assert_eq!(remaining(&mut script, at(110_000), 0), units, "{limit}");
        assert_eq!(remaining(&mut script, at(114_999), 0), units, "{limit}");
        assert_eq!(remaining(&mut script, at(115_000), 0), 2 * units, "{limit}");
    }
}

/// What the rate has refilled since, it would refill a second time.
#[test]
fn a_bucket_gives_back_only_what_was_not_refilled() {
    let (redis, mut script) = each(&["bucket 10/10s 10"]);
    assert!(script.decide(at(0), 0, "client", 10).allowed);
    // Full again: all ten, and no ten more.
    assert!(script.decide(at(10_000), 0, "client", 10).allowed);
    assert_eq!(script.refund(at(10_000), 0, "client", 10, at(0)).limits[0].remaining, 0);
    // 2.5 of the ten are back at 12.5 s: 7.5 are given back.
    assert_eq!(remaining(&mut script, at(12_500), 0), 2);
    let given = script.refund(at(12_500), 0, "client", 8, at(10_000)).limits[0];
    assert_eq!((given.remaining, given.reset), (8, Duration::from_secs(2)));
    assert_eq!(wait_ms(&mut script, at(12_500), 0, 9), 1_000);
    let key = script.keys(0, "client").remove(0);
    let ttl: i64 = redis.command(&format!("PTTL {key}"));
    assert!((1_000..=2_001).contains(&ttl), "no longer than it needs: {ttl}");
}

/// Exactly when the cost fits, and not a microsecond earlier.
#[test]
fn what_is_charged_beyond_the_limit_is_waited_for() {
    let (_redis, mut script) = each(&ALL);
    // Eight, and seven more than there was room for.
    let waits_ms = [
        // The eight leave, and that is not enough: the seven go at 70 s.
        (10_000, [60_000, 60_000]),
        (10_000, [60_000, 60_000]),
        // Capped at ten in the next window, of which nine and five count.
        (10_000, [56_000, 80_000]),
        // At 10 s a third of ten is refilled: 13.33 are missing, 9 and 5 fit.
        (10_000, [26_000, 50_000]),
        (10_000, [3_590_000, 3_590_000]),
    ];
    for (rule, limit) in ALL.iter().enumerate() {
        assert!(script.decide(at(0), rule, "client", 8).allowed, "{limit}");
        let verdict = script.charge(at(10_000), rule, "client", 7).expect("a verdict");
        let standing = verdict.limits[0];
        assert!(verdict.allowed, "{limit}");
        assert_eq!((standing.remaining, standing.wait), (0, Wait::None), "{limit}");
        let (now, waits) = waits_ms[rule];
        for (cost, wait) in [1, 5].into_iter().zip(waits) {
            let told = match (limit.split(' ').next(), cost) {
                (Some("log" | "ring"), 1) => 50_000,
                (Some("log" | "ring"), _) => wait,
                _ => wait,
            };
            assert_eq!(wait_ms(&mut script, at(now), rule, cost), told, "{limit}: {cost}");
            let us = at(now + told);
            assert!(!script.decide(us - 1, rule, "client", cost).allowed, "{limit}: {cost}");
            assert_eq!(
                script.decide(us, rule, "client", 0).limits[0].remaining >= cost,
                true,
                "{limit}: {cost}"
            );
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

/// What would take longer than 366 days ends there.
#[test]
fn counts_and_debts_end_somewhere() {
    let limits =
        ["counter 10/1m", "bucket 1/1h 5", "quota 10/month", "bucket 9007199254740991/1ms 1"];
    let (_redis, mut script) = each(&limits);
    let reset_s = [120, 366 * 86_400, 17 * 86_400 - 8 * 3_600, 0];
    for (rule, limit) in limits.iter().enumerate() {
        for _ in 0..2 {
            let charged = script.charge(at(0), rule, "client", MAX_LIMIT).expect("a verdict");
            let reset = charged.limits[0].reset;
            let expected = match rule {
                3 => Duration::from_millis(1),
                _ => Duration::from_secs(reset_s[rule]),
            };
            assert_eq!((charged.limits[0].remaining, reset), (0, expected), "{limit}");
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

/// A ring is written in place, or anew where it has become too large, and is as
/// large as what it has recorded.
#[test]
fn a_compact_log_shrinks_as_it_is_given_back() {
    let (redis, mut script) = each(&["ring 10000/1m", "log 10000/1m"]);
    let key = script.keys(0, "client").remove(0);
    let mut recorded = 0;
    let mut charged = Vec::new();
    for millis in 0..400 {
        let cost = millis % 7 + 1;
        for rule in [0, 1] {
            assert!(script.decide(at(millis), rule, "client", cost).allowed);
        }
        recorded += cost;
        charged.push((millis, cost));
    }
    // From the middle outwards, a part of each and then the rest.
    for turn in 0..800 {
        let place = (200 + turn * 173) % 400;
        let (millis, cost) = &mut charged[place as usize];
        let part = if turn < 400 { *cost / 2 } else { *cost };
        if part == 0 {
            continue;
        }
        *cost -= part;
        recorded -= part;
        let [ring, log] =
            [0, 1].map(|rule| script.refund(at(500), rule, "client", part, at(*millis)));
        assert_eq!(ring, log);
        assert_eq!(ring.limits[0].remaining, 10_000 - recorded);
        // What is in the middle shows in the waits.
        for cost in
            [10_000, 9_900, 9_000, 8_500].into_iter().filter(|&cost| cost > 10_000 - recorded)
        {
            let [ring, log] = [0, 1].map(|rule| script.decide(at(500), rule, "client", cost));
            assert_eq!(ring, log);
        }
        let len: u64 = redis.command(&format!("STRLEN {key}"));
        assert!(len >= 8 * recorded && len <= 9 * recorded + 64, "{len} for {recorded}");
        // And it goes on from there.
        if turn % 100 == 50 {
            for rule in [0, 1] {
                assert!(script.decide(at(500), rule, "client", 3).allowed);
                assert_eq!(
                    script.refund(at(500), rule, "client", 3, at(500)).limits[0].remaining,
                    10_000 - recorded
                );
            }
        }
    }
    assert_eq!(recorded, 0);
    assert_eq!(redis.command::<usize>("DBSIZE"), 0);
}

/// C12: a key is never without a time to live, nor given a longer one.
#[test]
fn giving_back_keeps_the_time_to_live() {
    let (redis, mut script) = each(&ALL);
    for (rule, limit) in ALL.iter().enumerate() {
        let key = script.keys(rule, "client").remove(0);
        let ttl = |what: &str| -> i64 { redis.command(&format!("PTTL {what}")) };
        assert!(script.decide(at(0), rule, "client", 6).allowed);
        let before = ttl(&key);
        assert!(script.refund(at(0), rule, "client", 2, at(0)).allowed);
        let after = ttl(&key);
        // A millisecond for that in which it is counted.
        assert!(after > 0 && after <= before + 2, "{limit}: {after} of {before}");
        // Lost, and given back by either: by what changes something or nothing.
        for charged_us in [at(0), 0] {
            assert_eq!(redis.command::<u8>(&format!("PERSIST {key}")), 1);
            assert!(script.refund(at(0), rule, "client", 1, charged_us).allowed);
            let mended = ttl(&key);
            // A millisecond for that in which it is counted.
            let longest = GONE_MS[rule] as i64 + 2;
            assert!(mended > 0 && mended <= longest, "{limit}: {mended}");
        }
    }
}

/// All kinds in one call, one after the other.
#[test]
fn a_batch_mixes_all_kinds() {
    let (_redis, script) = each(&ALL);
    let mut script = script;
    for (rule, limit) in ALL.iter().enumerate() {
        let charged_at = Timestamp::from_micros(at(0));
        let asks = [
            script.ask(rule, "client", 10),
            script.perform(rule, "client", Operation::Refund { cost: 3, charged_at }),
            script.ask(rule, "client", 2),
            script.perform(rule, "client", Operation::Charge { cost: 4 }),
            script.ask(rule, "client", 1),
            script.perform(rule, "client", Operation::Refund { cost: 4, charged_at }),
            script.ask(rule, "client", 1),
        ];
        let verdicts = script.batch(Some(at(0)), &asks);
        let told: Vec<_> = verdicts
            .into_iter()
            .map(Result::unwrap)
            .map(|verdict| (verdict.allowed, verdict.limits[0].remaining))
            .collect();
        let expected =
            [(true, 0), (true, 3), (true, 1), (true, 0), (false, 0), (true, 1), (true, 0)];
        assert_eq!(told, expected, "{limit}");
    }
}

/// A foreign value is an error, and then nothing else is given back either.
#[test]
fn a_foreign_value_is_neither_charged_nor_given_back() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["quota 10/hour", "log 10/1m"]]);
    let [quota, log] = &script.keys(0, "client")[..] else { panic!("two keys") };
    let (quota, log) = (quota.clone(), log.clone());
    assert!(script.decide(at(0), 0, "client", 5).allowed);
    redis.command::<()>(&format!("SET {log} 7"));
    let before: Value = redis.command(&format!("DUMP {quota}"));
    let charged_at = Timestamp::from_micros(at(0));
    for operation in [Operation::Charge { cost: 1 }, Operation::Refund { cost: 1, charged_at }] {
        let ask = script.perform(0, "client", operation);
        let error = script.batch(Some(at(0)), &[ask]).remove(0).expect_err("foreign");
        assert!(error.starts_with("WRONGTYPE"), "{error}");
        assert_eq!(redis.command::<Value>(&format!("DUMP {quota}")), before);
    }
    // Nor is a bucket whose debt is none.
    let mut script = Script::new(redis.connect(), &[&["bucket 10/1m"]]);
    let key = script.keys(0, "client").remove(0);
    for debt in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
        let value = [at(0) as f64, 1.0, 0.0, debt].map(f64::to_le_bytes).concat();
        redis::cmd("SET").arg(&key).arg(&value).exec(&mut redis.connect()).unwrap();
        let ask = script.ask(0, "client", 1);
        let error = script.batch(Some(at(0)), &[ask]).remove(0).expect_err("foreign");
        assert!(error.contains("is not a token bucket"), "{error}");
        assert_eq!(redis.command::<Vec<u8>>(&format!("GET {key}")), value);
    }
}
