//! What each algorithm leaves in Redis, and what changes of configuration do to
//! it; decisions themselves are compared with the reference elsewhere.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use redis::Value;
use weir_core::decision::Wait;
use weir_redis::{Batch, Rule};
use weir_tests::script::{START_US, Script, at, each, limit, policy};
use weir_tests::wait_until;

const MAX_LIMIT: u64 = (1 << 53) - 1;

/// One of each, of a limit of 10 per minute or hour.
const ALL: [&str; 5] =
    ["log 10/1m", "ring 10/1m", "counter 10/1m", "bucket 10/1m", "quota 10/hour"];

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
