//! What is given back, in a real Redis under the test's clock.

use std::time::Duration;

use redis::Value;
use weir_core::Timestamp;
use weir_core::decision::Wait;
use weir_core::rate::MAX_LIMIT;
use weir_redis::Operation;
use weir_tests::Redis;
use weir_tests::script::{ALL, Script, at, each, remaining, wait_ms};

/// When the last of what was charged at 0 has left each of `ALL`.
const GONE_MS: [u64; 5] = [60_000, 60_000, 120_000, 60_000, 3_600_000];

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

/// Nor is it missed, should the clock step back to when it still counted.
#[test]
fn what_has_left_is_still_there_for_a_clock_that_steps_back() {
    let (_redis, mut script) = each(&ALL);
    for (rule, limit) in ALL.iter().enumerate() {
        assert!(script.decide(at(0), rule, "client", 10).allowed);
        let gone = script.refund(at(GONE_MS[rule]), rule, "client", 10, at(0)).limits[0];
        assert_eq!(gone.remaining, 10, "{limit}");
        let left = remaining(&mut script, at(GONE_MS[rule] - 1), rule);
        // A part of one unit still counts, or is missing.
        assert_eq!(left, [0, 0, 9, 9, 0][rule], "{limit}");
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

/// Were the newest entries removed for those of second 0, as many more would pass
/// when that second leaves as have passed since.
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
    // In place, as long as it is not too large.
    let len = || -> u64 { redis.command(&format!("STRLEN {key}")) };
    let before = len();
    for rule in [0, 1] {
        assert!(script.decide(at(450), rule, "client", 5).allowed);
        assert!(script.refund(at(450), rule, "client", 5, at(450)).allowed);
    }
    assert_eq!(len(), before);
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
        let len = len();
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

/// C12: a key is never without a time to live, nor has one longer than it needs.
#[test]
fn giving_back_keeps_the_time_to_live() {
    let (redis, mut script) = each(&ALL);
    for (rule, limit) in ALL.iter().enumerate() {
        let key = script.keys(rule, "client").remove(0);
        let lives = |after: &str| {
            let ttl: i64 = redis.command(&format!("PTTL {key}"));
            // Rounded up, and one more for the millisecond that the server was in.
            let longest = GONE_MS[rule] as i64 + 1;
            assert!(ttl > 0 && ttl <= longest, "{limit}: {ttl} after {after}");
        };
        assert!(script.decide(at(0), rule, "client", 6).allowed);
        assert!(script.refund(at(0), rule, "client", 2, at(0)).allowed);
        lives("giving back");
        // Lost, it is there again, whether something changes or not.
        for charged_us in [at(0), 0] {
            assert_eq!(redis.command::<u8>(&format!("PERSIST {key}")), 1);
            assert!(script.refund(at(0), rule, "client", 1, charged_us).allowed);
            lives("it was lost");
        }
    }
}

/// All kinds in one call, one after the other.
#[test]
fn a_batch_mixes_all_kinds() {
    let (_redis, mut script) = each(&ALL);
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

/// What was recorded by a clock that was ahead is not given back out of what has
/// been recorded since it was set back.
#[test]
fn a_clock_that_was_set_back_gives_nothing_back_that_was_not_charged() {
    let (_redis, mut script) = each(&["bucket 10/1s"]);
    let ahead: Vec<u64> = (0..20).map(|second| at(1_000_000 + second * 1_000)).collect();
    for &time in &ahead {
        assert!(script.decide(time, 0, "client", 10).allowed);
    }
    assert!(script.decide(at(0), 0, "client", 10).allowed);
    for &time in &ahead {
        script.refund(at(0), 0, "client", 10, time);
        assert_eq!(remaining(&mut script, at(0), 0), 0);
    }
}

/// Out of the middle of a ring, whichever side of it is moved: what is left
/// leaves when it would have.
#[test]
fn a_ring_and_a_log_give_the_same_back() {
    let (redis, mut script) = each(&["log 1000/1h", "ring 1000/1h"]);
    for second in 0..500 {
        for rule in [0, 1] {
            assert!(script.decide(at(second * 1_000), rule, "client", 2).allowed);
        }
    }
    let now = at(600_000);
    for second in [1, 0, 498, 499, 250, 100, 400, 1, 3] {
        for units in [1, 5] {
            let given = [0, 1].map(|rule| {
                script.refund(now, rule, "client", units, at(second * 1_000)).limits[0]
            });
            assert_eq!(given[0], given[1], "{second}");
            for cost in [17, 500, 900, 1_000] {
                let decided = [0, 1].map(|rule| script.decide(now, rule, "other", cost).limits[0]);
                assert_eq!(decided[0], decided[1]);
                let left = [0, 1].map(|rule| {
                    let standing = script.decide(now, rule, "client", 0).limits[0];
                    let wait = wait_ms(&mut script, now, rule, standing.remaining + cost.min(500));
                    (standing, wait)
                });
                assert_eq!(left[0], left[1], "{second} {cost}");
            }
        }
    }
    // What has expired and is still there counts again if the clock steps back.
    let late = at(500_000 + 3_600_000);
    for rule in [0, 1] {
        script.decide(at(510_000), rule, "late", 5);
        script.decide(late, rule, "late", 1);
        script.refund(late, rule, "late", 1, late);
    }
    let back = at(520_000);
    let left = [0, 1].map(|rule| script.decide(back, rule, "late", 0).limits[0]);
    assert_eq!(left[0], left[1]);
    assert!(redis.command::<i64>(&format!("PTTL {}", script.keys(1, "client")[0])) > 0);
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
    // Nor where the value is a sorted set and no log.
    redis.command::<()>(&format!("DEL {log}"));
    redis.command::<()>(&format!("ZADD {log} {} a inf b", at(0)));
    let ask = script.perform(0, "client", Operation::Refund { cost: 1, charged_at });
    let error = script.batch(Some(at(0)), &[ask]).remove(0).expect_err("foreign");
    assert!(error.contains("is not a sliding log"), "{error}");
    assert_eq!(redis.command::<Value>(&format!("DUMP {quota}")), before);

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
