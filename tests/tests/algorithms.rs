//! What each algorithm leaves in Redis, and what changes of configuration do to
//! it; decisions themselves are compared with the reference elsewhere.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis::Value;
use weir_core::decision::Wait;
use weir_core::period::Period;
use weir_core::time::micros;
use weir_core::{Limit, Timestamp, Verdict};
use weir_redis::{Batch, Rule};
use weir_tests::script::{Script, limit, policy};
use weir_tests::subject::{Reference, Subject as _};
use weir_tests::{Redis, wait_until};

/// 2027-01-15 08:00:00 UTC, where windows of a second, a minute, an hour and
/// a day's third begin.
const START_US: u64 = 1_800_000_000_000_000;

const MAX_LIMIT: u64 = (1 << 53) - 1;

fn at(millis: u64) -> u64 {
    START_US + millis * 1_000
}

/// One of each, of a limit of 10 per minute or hour.
const ALL: [&str; 5] =
    ["log 10/1m", "ring 10/1m", "counter 10/1m", "bucket 10/1m", "quota 10/hour"];

fn each(limits: &[&str]) -> (Redis, Script) {
    let redis = Redis::start();
    let rules: Vec<[&str; 1]> = limits.iter().map(|&limit| [limit]).collect();
    let rules: Vec<&[&str]> = rules.iter().map(|rule| &rule[..]).collect();
    let script = Script::new(redis.connect(), &rules);
    (redis, script)
}

fn admitted(script: &mut Script, now_us: u64, rule: usize, attempts: usize) -> usize {
    (0..attempts).filter(|_| script.decide(now_us, rule, "client", 1).allowed).count()
}

/// C12: a full key that lost its time to live gets one, whether its own limit
/// refuses, another does, or it is only looked at.
#[test]
fn a_key_without_a_time_to_live_gets_one() {
    let (redis, mut script) = each(&ALL);
    let expected_s = [60, 60, 120, 60, 3_600];
    for (rule, limit) in ALL.iter().enumerate() {
        let key = script.keys(rule, "client").remove(0);
        for cost in [1, 0, 11] {
            redis.command::<()>(&format!("DEL {key}"));
            assert_eq!(admitted(&mut script, at(0), rule, 11), 10, "{limit}");
            assert_eq!(redis.command::<u8>(&format!("PERSIST {key}")), 1);
            assert_eq!(script.decide(at(0), rule, "client", cost).allowed, cost == 0, "{limit}");
            let ttl: i64 = redis.command(&format!("PTTL {key}"));
            let expected = expected_s[rule] * 1_000;
            assert!((expected - 1_000..=expected + 2).contains(&ttl), "{limit}: {ttl}");
        }
    }

    let mut several = Script::new(redis.connect(), &[&["quota 1/day", "bucket 9/1h"]]);
    assert!(several.decide(at(0), 0, "several", 1).allowed);
    let keys = several.keys(0, "several");
    assert_eq!(redis.command::<u8>(&format!("PERSIST {}", keys[1])), 1);
    assert!(!several.decide(at(0), 0, "several", 1).allowed);
    let ttl: i64 = redis.command(&format!("PTTL {}", keys[1]));
    assert!((399_000..=400_002).contains(&ttl), "a ninth of an hour: {ttl}");
}

/// C26, C32: what cannot be had touches nothing, and makes no key.
#[test]
fn a_cost_above_what_the_limit_can_hold_touches_nothing() {
    let (redis, mut script) = each(&ALL);
    for (rule, limit) in ALL.iter().enumerate() {
        for cost in [11, 20_000, MAX_LIMIT] {
            let refused = script.decide(at(0), rule, "client", cost);
            assert_eq!(refused.limits[0].wait, Wait::Forever, "{limit}");
            assert_eq!(refused.limits[0].remaining, 10, "{limit}");
        }
    }
    assert_eq!(redis.command::<usize>("DBSIZE"), 0);
}

/// A log records each unit by itself: what is above ten thousand at once never
/// fits, whatever its limit, and takes nothing.
#[test]
fn a_log_records_no_more_than_ten_thousand_units_at_once() {
    let (redis, mut script) =
        each(&["log 20000/1m", "ring 20000/1m", "bucket 20000/1m", "counter 20000/1m"]);
    for rule in 0..4 {
        let asks = [9_999, 10_001, 1].map(|cost| script.ask(rule, "client", cost));
        let verdicts: Vec<Verdict> =
            script.batch(Some(at(0)), &asks).into_iter().map(Result::unwrap).collect();
        let is_log = rule < 2;
        assert!(verdicts[0].allowed);
        assert_eq!(verdicts[1].limits[0].wait == Wait::Forever, is_log);
        let left = verdicts[2].limits[0].remaining;
        assert_eq!(left, if is_log { 10_000 } else { 0 });
    }
    let mut several = Script::new(redis.connect(), &[&["log 20000/1m", "quota 15000/day"]]);
    let refused = several.decide(at(0), 0, "several", 16_000);
    assert_eq!((refused.limits[0].wait, refused.limits[1].wait), (Wait::Forever, Wait::Forever));
}

#[test]
fn a_foreign_value_is_an_error_and_is_left_alone() {
    let (redis, mut script) = each(&ALL);
    let values =
        ["7", "12345678", &"7".repeat(16), &"x".repeat(24), &"x".repeat(257), &"weir".repeat(600)];
    for (rule, limit) in ALL.iter().enumerate() {
        let key = script.keys(rule, "client").remove(0);
        for foreign in values {
            redis.command::<()>(&format!("SET {key} {foreign}"));
            for cost in [0, 1, 99] {
                let ask = script.ask(rule, "client", cost);
                let error = script.batch(Some(at(0)), &[ask]).remove(0).expect_err(limit);
                let is_told = error.starts_with("WRONGTYPE") || error.contains(" is not a ");
                assert!(is_told, "{limit}: {error}");
            }
            assert_eq!(redis.command::<String>(&format!("GET {key}")), foreign, "{limit}");
        }
        // Numbers where there should be some, but none that Weir writes.
        let count = |count: f64| [START_US as f64, count, count].map(f64::to_le_bytes).concat();
        for foreign in [count(-3.0), count(f64::NAN), count(f64::INFINITY)] {
            let len = if limit.starts_with("quota") { 16 } else { 24 };
            if limit.starts_with("log") || limit.starts_with("ring") {
                continue;
            }
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(&foreign[..len]).exec(&mut redis.connect()).unwrap();
            let ask = script.ask(rule, "client", 1);
            let error = script.batch(Some(at(0)), &[ask]).remove(0).expect_err(limit);
            assert!(error.contains(" is not a "), "{limit}: {error}");
            assert_eq!(redis.command::<Vec<u8>>(&format!("GET {key}")), foreign[..len], "{limit}");
        }
        redis.command::<()>(&format!("DEL {key}"));
        if limit.starts_with("log") {
            redis.command::<()>(&format!("ZADD {key} +inf x"));
            let ask = script.ask(rule, "client", 0);
            let error = script.batch(Some(at(0)), &[ask]).remove(0).expect_err(limit);
            assert!(error.contains(" is not a sliding log"), "{error}");
            assert_eq!(redis.command::<u8>(&format!("DEL {key}")), 1);
        }
        redis.command::<()>(&format!("SADD {key} 1"));
        let ask = script.ask(rule, "client", 1);
        let error = script.batch(Some(at(0)), &[ask]).remove(0).expect_err(limit);
        assert!(error.starts_with("WRONGTYPE"), "{limit}: {error}");
    }
}

/// A raised limit counts what was used, a lowered one refuses until enough has
/// left, one with another window starts clean.
#[test]
fn a_changed_limit_keeps_what_was_used() {
    for [low, high, other] in [
        ["log 3/1m", "log 10/1m", "log 10/2m"],
        ["ring 3/1m", "ring 10/1m", "ring 10/2m"],
        ["counter 3/1m", "counter 10/1m", "counter 10/2m"],
        ["bucket 3/1m", "bucket 10/1m", "bucket 10/2m"],
        ["quota 3/hour", "quota 10/hour", "quota 10/day"],
    ] {
        let (_redis, mut script) = each(&[low, high, other]);
        assert_eq!(admitted(&mut script, at(0), 0, 5), 3, "{low}");
        assert_eq!(script.decide(at(0), 1, "client", 0).limits[0].remaining, 7, "{high}");
        assert_eq!(script.decide(at(0), 2, "client", 0).limits[0].remaining, 10, "{other}");
        assert_eq!(admitted(&mut script, at(0), 1, 5), 5, "{high}");

        let lowered = script.decide(at(0), 0, "client", 1);
        assert_eq!((lowered.allowed, lowered.limits[0].remaining), (false, 0), "{low}");
        assert!(script.decide(at(0), 0, "client", 0).allowed, "{low}: a look is never refused");
        let Wait::For(wait) = lowered.limits[0].wait else { panic!("{low}: {lowered:?}") };
        let told_us = at(0) + wait.as_micros() as u64;
        assert!(!script.decide(told_us - 1, 0, "client", 1).allowed, "{low}");
        assert!(script.decide(told_us, 0, "client", 1).allowed, "{low}");
    }
}

/// C27: the current time and the largest numbers go through unchanged.
#[test]
fn the_largest_numbers_are_exact() {
    let (_redis, mut script) = each(&[
        "counter 9007199254740991/366d",
        "bucket 9007199254740991/366d",
        "bucket 9007199254740991/1ms",
        "quota 9007199254740991/month",
        "bucket 100000000000000/1d",
    ]);
    let now_us = 1_824_192_940_134_586;
    for rule in 0..4 {
        let first = script.decide(now_us, rule, "client", MAX_LIMIT - 1).limits[0];
        assert_eq!((first.limit, first.remaining), (MAX_LIMIT, 1), "{rule}");
        assert_eq!(script.decide(now_us, rule, "client", 2).limits[0].remaining, 1, "{rule}");
        assert_eq!(script.decide(now_us, rule, "client", 1).limits[0].remaining, 0, "{rule}");
    }
    // 1e14 a day: a microsecond refills 1157 and a part of one more.
    assert!(script.decide(now_us, 4, "client", 100_000_000_000_000).allowed);
    assert_eq!(script.decide(now_us + 1, 4, "client", 0).limits[0].remaining, 1_157);
    assert_eq!(script.decide(now_us, 4, "client", 1).limits[0].reset, Duration::from_secs(86_400));
}

/// C27: products beyond 2^53 are divided exactly, where they come out even too.
#[test]
fn the_largest_numbers_are_divided_as_the_reference_divides_them() {
    let limits = [
        "counter 9007199254740991/1h",
        "counter 9007199254740990/366d",
        "bucket 9007199254740991/1h",
        "bucket 9007199254740990/366d",
        "bucket 9007199254740991/1ms 4503599627370496",
        "bucket 4503599627370496/1h 9007199254740991",
    ];
    let (_redis, mut script) = each(&limits);
    let rules: Vec<_> = limits.iter().map(|text| vec![limit(text)]).collect();
    let mut reference = Reference::new(&rules);
    for (rule, limits) in rules.iter().enumerate() {
        let (capacity, window_us) = match limits[0] {
            Limit::SlidingCounter(rate) => (rate.limit(), micros(rate.window())),
            Limit::TokenBucket(terms) => (terms.burst(), micros(terms.rate().window())),
            _ => unreachable!(),
        };
        for part in [2, 3, 4, 5, 7, 8, 1_000, window_us] {
            let name = format!("client-{part}");
            let start_us = START_US - START_US % window_us;
            for (time_us, cost) in [
                (start_us, capacity - 1),
                (start_us + window_us / part, 1),
                (start_us + window_us + window_us / part, 0),
                (start_us + window_us + window_us / part, capacity),
                (start_us + window_us + window_us / part, capacity / part),
                (start_us + 2 * window_us - 1, capacity / 2),
            ] {
                assert_eq!(
                    script.decide_and_persist(time_us, rule, &name, cost).0,
                    reference.decide(time_us, rule, &name, cost),
                    "{:?} {part} {time_us}",
                    limits[0]
                );
            }
        }
    }
}

/// Each month up to the year 2255, in which 2^53 microseconds end.
#[test]
fn a_month_begins_and_ends_as_in_the_calendar() {
    let (_redis, mut script) = each(&["quota 2/month"]);
    let mut start = Timestamp::from_micros(0);
    for month in 0..12 * 285 {
        let end = Period::Month.end(start);
        let last_us = end.as_micros() - 1;
        let left = |from: Timestamp| end.since(from);
        let ask = |script: &mut Script, now_us| script.decide(now_us, 0, "client", 1).limits[0];
        assert_eq!(ask(&mut script, start.as_micros()).reset, left(start), "{month}");
        let last = ask(&mut script, last_us);
        assert_eq!((last.remaining, last.reset), (0, Duration::from_micros(1)), "{month}");
        start = end;
    }
    assert_eq!(start.as_micros(), 8_993_721_600_000_000, "2255-01-01");
}

/// The server's clock goes on while the script runs; what it has written must
/// not be gone before it ends.
#[test]
fn a_call_that_takes_longer_than_the_window_admits_the_limit() {
    let (_redis, mut script) =
        each(&["log 1000000/1h", "log 5/10ms", "ring 5/10ms", "ring 40/10ms"]);
    for (rule, limit) in [(1, 5), (2, 5), (3, 40)] {
        let heavy = (0..4).map(|client| script.ask(0, &format!("heavy-{rule}-{client}"), 10_000));
        let asks: Vec<_> = heavy.chain((0..100).map(|_| script.ask(rule, "client", 1))).collect();
        let begun = Instant::now();
        let verdicts = script.batch(None, &asks);
        assert!(begun.elapsed() > Duration::from_millis(10), "it took {:?}", begun.elapsed());
        let admitted = verdicts[4..].iter().filter(|it| it.as_ref().unwrap().allowed).count();
        assert_eq!(admitted, limit);
    }
}

/// What the reference forgets, the script forgets: a clock that then steps back
/// counts neither again.
#[test]
fn what_has_expired_is_forgotten_by_the_next_charge() {
    for rule in ["log 5000/10m", "ring 5000/10m"] {
        for live in [0, 7] {
            let (_redis, mut script) = each(&[rule]);
            assert!(script.decide(at(0), 0, "client", 5_000 - live).allowed);
            if live > 0 {
                assert!(script.decide(at(1), 0, "client", live).allowed);
            }
            assert!(script.decide(at(600_000), 0, "client", 1).allowed);
            let left = script.decide(at(599_999), 0, "client", 0).limits[0].remaining;
            assert_eq!(left, 4_999 - live, "{rule}");
        }
    }
}

/// Of many that are too far ahead to count, none that counts is removed.
#[test]
fn what_was_written_by_another_clock_takes_nothing_along() {
    for rule in ["log 1000000/1h", "ring 1000000/1h"] {
        let (_redis, mut script) = each(&[rule]);
        assert!(script.decide(at(0), 0, "client", 3).allowed);
        assert!(script.decide(at(70_000), 0, "client", 2_000).allowed);
        assert_eq!(script.decide(at(1), 0, "client", 0).limits[0].remaining, 999_997, "{rule}");
        assert_eq!(script.decide(at(2), 0, "client", 1).limits[0].remaining, 999_996, "{rule}");
        assert_eq!(script.decide(at(3), 0, "client", 0).limits[0].remaining, 999_996, "{rule}");
        assert_eq!(script.decide(at(70_000), 0, "client", 0).limits[0].remaining, 999_996);
    }
}

/// A ring has an end; below it, it refuses as any log.
#[test]
fn a_compact_log_ends_at_sixteen_million_units() {
    const MOST: u64 = 1 << 24;
    let limits = ["ring 16777216/1m", "ring 16777217/1m", "ring 16777216/1m"];
    let (redis, mut script) = each(&limits);
    let key = script.keys(0, "client").remove(0);
    // All of them at the time 0, which is within the window at second 1.
    redis.command::<u64>(&format!("SETRANGE {key} {} x", 24 + 8 * MOST - 1));
    let mut head = redis::cmd("SETRANGE");
    let numbers = [0, MOST as u32, MOST as u32, 1_380_533_591].map(u32::to_le_bytes).concat();
    head.arg(&key).arg(0).arg([numbers, vec![0; 8]].concat());
    head.exec(&mut redis.connect()).unwrap();
    redis.command::<u64>(&format!("SETRANGE {key} {} \0", 24 + 8 * MOST - 1));

    let second = 1_000_000;
    let full = script.decide(second, 0, "client", 1).limits[0];
    assert_eq!((full.remaining, full.wait), (0, Wait::For(Duration::from_secs(59))));
    let ask = script.ask(1, "client", 1);
    let error = script.batch(Some(second), &[ask]).remove(0).expect_err("beyond its end");
    assert!(error.contains("a compact log holds at most 16777216 units"), "{error}");
    assert_eq!(script.decide(second, 1, "client", 2).limits[0].remaining, 1);
}

/// C27: a time is stored to the microsecond.
#[test]
fn a_time_is_stored_as_it_was() {
    let (redis, mut script) = each(&["log 10/1m", "ring 10/1m", "bucket 10/1m"]);
    let now_us = 1_824_192_940_134_586;
    let keys = [0, 1, 2].map(|rule| {
        assert!(script.decide(now_us, rule, "client", 1).allowed);
        script.keys(rule, "client").remove(0)
    });
    let entries: Vec<(String, u64)> = redis.command(&format!("ZRANGE {} 0 -1 WITHSCORES", keys[0]));
    assert_eq!(entries[0].1, now_us);
    for key in &keys[1..] {
        let bytes: Vec<u8> = redis.command(&format!("GETRANGE {key} 0 7"));
        let time = f64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        assert_eq!(time, now_us as f64);
        assert_eq!(time as u64, now_us);
    }
}

/// C12: whatever becomes of the caller, no key is left without a time to live.
#[test]
fn a_connection_cut_in_the_middle_of_a_call_leaves_no_key_for_ever() {
    let (redis, script) = each(&ALL);
    let rule = |text: &&str| {
        let limits = [limit(text)];
        Rule::new(&policy(&limits), &limits)
    };
    let rules: Vec<Rule> = ALL.iter().map(rule).collect();
    for cut in 0..1_000 {
        let asks: Vec<_> =
            (0..5).map(|rule| script.ask(rule, &format!("client-{}", cut % 50), 1)).collect();
        let call = Batch::new("weir", &rules, &asks).evalsha().get_packed_command();
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).expect("Redis listens");
        // A part of the call, or all of it; in either case nobody hears the end.
        let sent = call.len() * (cut % 20 + 1) / 20;
        stream.write_all(&call[..sent]).expect("Redis reads");
    }
    wait_until("Redis has read all", Duration::from_secs(10), || {
        redis.info("connected_clients") == 2
    });
    let keys: Vec<String> = redis.command("KEYS *");
    assert!(keys.len() > 5, "some calls were whole");
    for key in keys {
        assert!(redis.command::<i64>(&format!("PTTL {key}")) > 0, "{key}");
    }
}

/// The ring is at most 9 bytes for each recorded unit and 64 of frame, however
/// it grows and shrinks.
#[test]
fn a_compact_log_is_as_large_as_what_it_has_recorded() {
    let (redis, mut script) = each(&["ring 10000/1m", "log 10000/1m"]);
    let key = script.keys(0, "client").remove(0);
    let check = |script: &mut Script, now_us, cost| {
        let standing = script.decide(now_us, 0, "client", cost).limits[0];
        assert_eq!(script.decide(now_us, 1, "client", cost).limits[0], standing);
        // What is in the middle shows in the waits.
        for cost in
            [10_000, 9_000, 5_000, 1_000, 100].into_iter().filter(|&cost| cost > standing.remaining)
        {
            let [ring, log] = [0, 1].map(|rule| script.decide(now_us, rule, "client", cost));
            assert_eq!(ring, log);
        }
        let recorded = 10_000 - standing.remaining;
        let len: u64 = redis.command(&format!("STRLEN {key}"));
        assert!(len >= 8 * recorded && len <= 9 * recorded + 64, "{len} for {recorded}");
        recorded
    };
    // One by one, then in heaps, across the end of the ring, to the full.
    for second in 0..40 {
        check(&mut script, at(second * 1_000), 1);
    }
    for second in 40..59 {
        for cost in [1, 7, 400, 100, 17] {
            check(&mut script, at(second * 1_000), cost);
        }
    }
    let left = 10_000 - check(&mut script, at(59_000), 0);
    assert!(left < 400, "{left}");
    assert_eq!(check(&mut script, at(59_000), left), 10_000);
    // And down again, as it leaves.
    for second in 60..120 {
        check(&mut script, at(second * 1_000), 1);
    }
    assert_eq!(check(&mut script, at(180_000), 1), 1);
}

/// A tenth of the sorted set, or less.
#[test]
fn a_compact_log_takes_a_tenth_of_the_memory_of_a_sliding_log() {
    let (redis, mut script) = each(&["log 1000/1m", "ring 1000/1m"]);
    let [log, ring] = [0, 1].map(|rule| {
        for unit in 0..1_000 {
            assert!(script.decide(at(unit * 7), rule, "client", 1).allowed);
        }
        let key = script.keys(rule, "client").remove(0);
        redis.command::<u64>(&format!("MEMORY USAGE {key}"))
    });
    assert!(ring * 9 < log, "{ring} bytes against {log}");
    assert!(ring < 9_300, "{ring} bytes for 1,000 units");
}

/// Out of memory: the request that finds no room fails and is charged under
/// none of its limits.
#[test]
fn a_server_out_of_memory_charges_nobody_in_part() {
    let (redis, mut script) = each(&ALL);
    let mut several = Script::new(redis.connect(), &[&ALL]);
    assert!(several.decide(at(0), 0, "client", 1).allowed);
    let keys = several.keys(0, "client");
    let dump =
        || -> Vec<Value> { keys.iter().map(|key| redis.command(&format!("DUMP {key}"))).collect() };
    let before = dump();
    redis.command::<()>("CONFIG SET maxmemory 1");
    let ask = several.ask(0, "client", 1);
    let error = several.batch(Some(at(1)), &[ask]).remove(0).expect_err("out of memory");
    assert!(error.starts_with("OOM"), "{error}");
    for rule in 0..ALL.len() {
        let ask = script.ask(rule, "client", 1);
        let error = script.batch(Some(at(1)), &[ask]).remove(0).expect_err("out of memory");
        assert!(error.starts_with("OOM"), "{error}");
    }
    redis.command::<()>("CONFIG SET maxmemory 0");
    assert_eq!(dump(), before);
    assert!(several.decide(at(1), 0, "client", 9).allowed);
}

/// An error of the server is told by its code, on every version.
#[test]
fn a_replica_says_that_it_may_not_write() {
    let (redis, mut script) = each(&ALL);
    redis.command::<()>("REPLICAOF 127.0.0.1 1");
    for (rule, limit) in ALL.iter().enumerate() {
        let ask = script.ask(rule, "client", 1);
        let error = script.batch(Some(at(0)), &[ask]).remove(0).expect_err(limit);
        assert!(error.starts_with("READONLY"), "{limit}: {error}");
    }
}
