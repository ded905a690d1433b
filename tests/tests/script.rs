//! The decision script's promises, in a real Redis under the test's clock.

use std::collections::HashSet;
use std::time::Duration;

use redis::Value;
use weir_core::decision::Wait;
use weir_tests::Redis;
use weir_tests::script::{START_US, Script, at};

fn admitted(script: &mut Script, now_us: u64, attempts: usize) -> usize {
    (0..attempts).filter(|_| script.decide(now_us, 0, "client", 1).allowed).count()
}

#[test]
fn a_burst_at_the_start_of_the_next_clock_window_is_refused() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 10/60s"]]);
    assert_eq!(admitted(&mut script, at(59_900), 10), 10);
    assert_eq!(admitted(&mut script, at(60_100), 10), 0);
    assert_eq!(admitted(&mut script, at(119_899), 10), 0);
    assert_eq!(admitted(&mut script, at(119_900), 20), 10);
}

#[test]
fn no_60_second_window_of_2000_attempts_holds_more_than_600() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 600/1m"]]);
    let passed: Vec<u64> = (0..2_000)
        .map(|attempt| attempt * 50)
        .filter(|&millis| script.decide(at(millis), 0, "client", 1).allowed)
        .collect();
    for (index, &first) in passed.iter().enumerate() {
        let in_window = passed[index..].iter().take_while(|&&time| time < first + 60_000).count();
        assert!(in_window <= 600, "{in_window} in the window from {first} ms");
    }
    // 100 seconds: the first 600 at once, and then each as an entry leaves.
    assert_eq!(passed.len(), 600 + 600, "and not a unit is wasted");
}

/// C03: same-microsecond bursts are not one entry.
#[test]
fn fifty_requests_in_the_same_microsecond_are_fifty_members() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 1000/60s"]]);
    let asks: Vec<_> = (0..25).map(|_| script.ask(0, "client", 1)).collect();
    let mut others = Script::new(redis.connect(), &[&["log 1000/60s"]]);
    for verdict in script.batch(Some(at(0)), &asks) {
        assert!(verdict.unwrap().allowed);
    }
    for verdict in others.batch(Some(at(0)), &asks) {
        assert!(verdict.unwrap().allowed);
    }
    let key = script.keys(0, "client").remove(0);
    assert_eq!(redis.command::<usize>(&format!("ZCARD {key}")), 50);

    let mut five = Script::new(redis.connect(), &[&["log 5/60s"]]);
    let asks: Vec<_> = (0..50).map(|_| five.ask(0, "c03", 1)).collect();
    let verdicts = five.batch(Some(at(0)), &asks);
    assert_eq!(verdicts.iter().filter(|verdict| verdict.as_ref().unwrap().allowed).count(), 5);
    let key = five.keys(0, "c03").remove(0);
    assert_eq!(redis.command::<usize>(&format!("ZCARD {key}")), 5);
}

/// C10: what is refused is not written, and the client is admitted again on
/// time while it hammers all along.
#[test]
fn a_denied_request_leaves_the_key_untouched() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 10/60s"]]);
    assert_eq!(admitted(&mut script, at(0), 1), 1);
    assert_eq!(admitted(&mut script, at(500), 9), 9);
    let key = script.keys(0, "client").remove(0);
    let dump = || redis.command::<Value>(&format!("DUMP {key}"));
    let (before, expiry) = (dump(), script.expiry_ms(&key));
    for millis in 501..2_000 {
        assert_eq!(admitted(&mut script, at(millis), 1), 0);
    }
    assert_eq!(dump(), before);
    let same = script.expiry_ms(&key);
    assert!(same.start() <= expiry.end() && expiry.start() <= same.end(), "{same:?} {expiry:?}");
    assert_eq!(admitted(&mut script, at(59_999), 1), 0);
    assert_eq!(admitted(&mut script, at(60_000), 2), 1, "the first entry has left");
}

#[test]
fn a_client_that_waits_as_told_passes_and_one_millisecond_earlier_not() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 5/60s"]]);
    for millis in [0, 1_000, 1_000, 30_000, 41_234] {
        assert_eq!(admitted(&mut script, at(millis), 1), 1);
    }
    let mut now_us = at(50_000);
    for leaves_at in [60_000, 61_000, 61_000, 90_000] {
        let refused = script.decide(now_us, 0, "client", 1);
        let Wait::For(wait) = refused.limits[0].wait else { panic!("{refused:?}") };
        let told_us = now_us + wait.as_micros() as u64;
        assert_eq!(told_us, at(leaves_at).max(now_us));
        assert!(!script.decide(told_us - 1_000, 0, "client", 1).allowed);
        assert!(!script.decide(told_us - 1, 0, "client", 1).allowed);
        assert!(script.decide(told_us, 0, "client", 1).allowed);
        now_us = told_us;
        if leaves_at == 61_000 && admitted(&mut script, now_us, 1) == 1 {
            // Two entries left together.
            break;
        }
    }
    assert_eq!(admitted(&mut script, at(89_999), 1), 0);
    assert_eq!(admitted(&mut script, at(90_000), 1), 1);
}

#[test]
fn a_refused_request_is_charged_under_none_of_its_limits() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 5/10s", "log 2/1s"]]);
    for _ in 0..2 {
        assert!(script.decide(at(0), 0, "client", 1).allowed);
    }
    let refused = script.decide(at(100), 0, "client", 1);
    assert!(!refused.allowed);
    assert_eq!(refused.limits[0].remaining, 3, "the wide limit was not charged");
    assert_eq!(refused.limits[0].wait, Wait::None);
    assert_eq!(refused.limits[1].wait, Wait::For(Duration::from_millis(900)));
    let [wide, narrow] = &script.keys(0, "client")[..] else { panic!("two keys") };
    assert_eq!(redis.command::<usize>(&format!("ZCARD {wide}")), 2);
    assert_eq!(redis.command::<usize>(&format!("ZCARD {narrow}")), 2);
}

#[test]
fn a_cost_is_charged_whole_or_not_at_all() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 3000/60s"]]);
    assert!(script.decide(at(0), 0, "client", 2_998).allowed);
    let key = script.keys(0, "client").remove(0);
    assert_eq!(redis.command::<usize>(&format!("ZCARD {key}")), 2_998);
    assert!(!script.decide(at(1), 0, "client", 5).allowed);
    assert_eq!(script.decide(at(1), 0, "client", 3_001).limits[0].wait, Wait::Forever);
    assert_eq!(script.decide(at(1), 0, "client", 0).limits[0].remaining, 2);
    assert!(script.decide(at(1), 0, "client", 2).allowed);
}

/// A limit of 128 still is a listpack, at the size at which Redis gives it up.
#[test]
fn members_are_short_enough_for_a_listpack() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 128/60s"]]);
    assert_eq!(admitted(&mut script, at(0), 200), 128);
    let key = script.keys(0, "client").remove(0);
    // Called a ziplist before Redis 7.
    let encoding: String = redis.command(&format!("OBJECT ENCODING {key}"));
    assert!(["listpack", "ziplist"].contains(&encoding.as_str()), "{encoding}");
    let members: Vec<String> = redis.command(&format!("ZRANGE {key} 0 -1"));
    assert_eq!(members.iter().collect::<HashSet<_>>().len(), 128);
    assert!(members.iter().all(|member| member.len() <= 13));
}

/// A number that another unit has, from a clock that was set back, is passed
/// over: neither that unit nor this one is lost.
#[test]
fn members_that_are_in_use_are_passed_over() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 3000/60s"]]);
    let key = script.keys(0, "client").remove(0);
    for _ in 0..5 {
        // Each call begins to number at its own microsecond, which is the same.
        assert_eq!(admitted(&mut script, at(0), 1), 1);
    }
    assert!(script.decide(at(0), 0, "client", 2_000).allowed);
    assert!(script.decide(at(0), 0, "client", 500).allowed);
    assert_eq!(redis.command::<usize>(&format!("ZCARD {key}")), 2_505);

    // A microsecond later the first numbers are those of older entries.
    for (cost, later) in [(3, 1), (1, 2)] {
        let entries =
            || -> Vec<(u64, u64)> { redis.command(&format!("ZRANGE {key} 0 -1 WITHSCORES")) };
        let older = entries();
        assert!(script.decide(at(0) + later, 0, "client", cost).allowed);
        let all = entries();
        assert_eq!(all.len() as u64, older.len() as u64 + cost);
        assert!(older.iter().all(|entry| all.contains(entry)), "an older entry was moved");
    }

    // The numbers begin again after 13 digits.
    let last = START_US - START_US % 10_000_000_000_000 + 9_999_999_999_998;
    assert!(script.decide(last, 0, "other", 3).allowed);
    let key = script.keys(0, "other").remove(0);
    let mut members: Vec<u64> = redis.command(&format!("ZRANGE {key} 0 -1"));
    members.sort();
    assert_eq!(members, [0, 1, 9_999_999_999_999]);
}

/// C12: a full key that lost its time to live gets one, and blocks no longer
/// than a window.
#[test]
fn a_key_without_a_time_to_live_gets_one() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 1/60s"]]);
    assert_eq!(admitted(&mut script, at(0), 1), 1);
    let key = script.keys(0, "client").remove(0);
    assert_eq!(redis.command::<u8>(&format!("PERSIST {key}")), 1);
    assert_eq!(redis.command::<i64>(&format!("PTTL {key}")), -1);
    assert_eq!(admitted(&mut script, at(20_000), 1), 0);
    let ttl: i64 = redis.command(&format!("PTTL {key}"));
    assert!((39_000..=40_001).contains(&ttl), "{ttl}");
    assert_eq!(admitted(&mut script, at(60_000), 1), 1);
}

#[test]
fn a_foreign_value_fails_its_own_request_and_no_other() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 1/60s"]]);
    let foreign = script.keys(0, "foreign").remove(0);
    redis.command::<()>(&format!("SET {foreign} 7"));
    let asks = ["before", "foreign", "after"].map(|client| script.ask(0, client, 1));
    let verdicts = script.batch(Some(at(0)), &asks);
    assert!(verdicts[0].as_ref().is_ok_and(|verdict| verdict.allowed));
    assert!(verdicts[1].as_ref().is_err_and(|error| error.starts_with("WRONGTYPE")));
    assert!(verdicts[2].as_ref().is_ok_and(|verdict| verdict.allowed));
    assert_eq!(redis.command::<String>(&format!("GET {foreign}")), "7");
}

/// S04: what a request has that makes room for itself is no room for those behind it
/// in the call.
#[test]
fn out_of_memory_is_so_for_all_of_a_call() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 10/60s"], &["quota 10/day"]]);
    for millis in [0, 40_000] {
        assert!(script.decide(at(millis), 0, "client", 1).allowed);
    }
    redis.command::<()>("CONFIG SET maxmemory 1");
    let asks = [script.ask(0, "client", 1), script.ask(0, "new", 1), script.ask(1, "new", 1)];
    for verdict in script.batch(Some(at(60_001)), &asks) {
        assert!(verdict.as_ref().is_err_and(|error| error.starts_with("OOM")), "{verdict:?}");
    }
    assert_eq!(redis.command::<usize>("DBSIZE"), 1);
    redis.command::<()>("CONFIG SET maxmemory 0");
    assert!(script.batch(Some(at(60_001)), &asks).iter().flatten().all(|one| one.allowed));
    let key = script.keys(0, "client").remove(0);
    assert_eq!(redis.command::<usize>(&format!("ZCARD {key}")), 2, "what has expired went");
}

/// Whoever calls the script by hand and gets it wrong changes nothing.
#[test]
fn a_call_that_cannot_be_read_is_refused_as_a_whole() {
    let redis = Redis::start();
    for (keys, requests, problem) in [
        (1, &["1 nolog:1:1000"][..], "no such algorithm: nolog"),
        (0, &[], "there are no requests"),
        (1, &["log:1:1000"], "not a request"),
        (1, &["-1 log:1:1000"], "not a request"),
        (1, &["1.5 log:1:1000"], "not a request"),
        (1, &["-0@5 log:1:1000"], "not a request"),
        (1, &["-1@ log:1:1000"], "not a request"),
        (1, &["-1@-5 log:1:1000"], "not a request"),
        (1, &["-1@5.5 log:1:1000"], "not a request"),
        (1, &["-1@5"], "not a request"),
        (1, &["-1@9007199254740992 log:1:1000"], "not a request"),
        (1, &["-9007199254740992@5 log:1:1000"], "not a request"),
        (1, &["1@5 log:1:1000"], "not a request"),
        (1, &["+0 log:1:1000"], "not a request"),
        (1, &["+1@5 log:1:1000"], "not a request"),
        (1, &["+-1 log:1:1000"], "not a request"),
        (1, &["+9007199254740992 bucket:9:1000:9"], "not a request"),
        (1, &["+1 log:1:1000", "-1 log:1:1000"], "not a request"),
        (1, &["1"], "not a request"),
        (1, &["1 log:5:60000000  log:1:1000000"], "not a request"),
        (1, &["1 log:5:60000000 "], "not a request"),
        (1, &["9007199254740992 bucket:9:1000:9"], "not a request"),
        (1, &["1 log:5:60000000;log:1:1000000"], "not a request"),
        (1, &["1 log:5"], "not a request"),
        (1, &["1 log:5:1000:"], "not a request"),
        (1, &["1 log:5:1000:5"], "out of range"),
        (1, &["1 quota:5:month:5"], "out of range"),
        (1, &["1 log:0:1000"], "out of range"),
        (1, &["1 log:9007199254740992:1000"], "out of range"),
        (1, &["1 log:1:999"], "out of range"),
        (1, &["1 log:1:31622400000001"], "out of range"),
        (1, &["1 log:1:month"], "out of range"),
        (1, &["1 log:1:0x1000"], "out of range"),
        (1, &["1 quota:1:1000"], "out of range"),
        (1, &["1 quota:1:year"], "out of range"),
        (1, &["1 bucket:1:1000"], "out of range"),
        (1, &["1 bucket:1:1000:0"], "out of range"),
        (1, &["1 bucket:1:31622400000000:2"], "takes longer than 366 days to refill"),
        (1, &["1 log:1:1000", "1 log:1:1000"], "have 2 limits, but there are 1 keys"),
        (2, &["1 log:1:1000"], "have 1 limits, but there are 2 keys"),
    ] {
        let mut call = redis::cmd("EVAL");
        call.arg(weir_redis::script::SOURCE).arg(keys);
        for key in 0..keys {
            call.arg(format!("key-{key}"));
        }
        call.arg("");
        call.arg(requests);
        let error = call.query::<Value>(&mut redis.connect()).expect_err(problem).to_string();
        assert!(error.contains(problem), "{requests:?}: {error}");
    }
    for clock in ["now", "1e15", "-1", "0x10", "1.5"] {
        let mut call = redis::cmd("EVAL");
        call.arg(weir_redis::script::SOURCE).arg(1).arg("key").arg(clock).arg("1 log:1:1000");
        let error = call.query::<Value>(&mut redis.connect()).expect_err(clock).to_string();
        assert!(error.contains("ARGV[1] is not a time in microseconds"), "{error}");
    }
    assert_eq!(redis.command::<usize>("DBSIZE"), 0);
}

/// The same key twice would be charged twice against one limit.
#[test]
fn the_keys_of_a_request_must_differ() {
    let redis = Redis::start();
    let mut call = redis::cmd("EVAL");
    call.arg(weir_redis::script::SOURCE).arg(5).arg(&["a", "b", "a", "a", "b"]);
    call.arg("").arg("1 log:1:1000 log:1:1000 log:1:1000").arg("1 log:5:60000000 quota:5:day");
    let reply: Vec<Value> = call.query(&mut redis.connect()).unwrap();
    assert_eq!(reply[1], Value::Int(-1));
    assert_eq!(reply[2], Value::BulkString(b"the keys of a request must differ".to_vec()));
    assert_eq!(reply[3..6], [1, 4, 0].map(Value::Int), "and the next request is decided");
    assert_eq!(reply.len(), 1 + 2 + 7);
}

/// Outside tests the time is Redis's own, and the key goes by itself.
#[test]
fn redis_tells_the_time() {
    let redis = Redis::start();
    let mut script = Script::new(redis.connect(), &[&["log 1/200ms"]]);
    let ask = script.ask(0, "client", 1);
    let decide =
        |script: &mut Script| script.batch(None, std::slice::from_ref(&ask)).remove(0).unwrap();
    assert!(decide(&mut script).allowed);
    let (seconds, _): (u64, u64) = redis.command("TIME");
    let key = script.keys(0, "client").remove(0);
    let scores: Vec<(String, u64)> = redis.command(&format!("ZRANGE {key} 0 0 WITHSCORES"));
    assert!(scores[0].1.abs_diff(seconds * 1_000_000) < 2_000_000);
    let Wait::For(wait) = decide(&mut script).limits[0].wait else { panic!("full") };
    assert!(wait <= Duration::from_millis(200));
    weir_tests::wait_until("the key has gone", Duration::from_secs(2), || {
        redis.command::<u8>(&format!("EXISTS {key}")) == 0
    });
}

/// The calls that docs/redis.md shows, for whoever shares a budget by hand.
#[test]
fn the_documented_calls_are_answered_as_documented() {
    let redis = Redis::start();
    let called = |text: &str| -> (u64, Vec<i64>) {
        let mut call = redis::cmd("EVAL");
        call.arg(weir_redis::script::SOURCE).arg(1).arg("weir:{=alice}:api:log:1m");
        let mut reply: Vec<i64> = call.arg("").arg(text).query(&mut redis.connect()).unwrap();
        (reply.remove(0) as u64, reply)
    };
    let (time_us, reply) = called("1 log:100:60000000");
    let (seconds, _): (u64, u64) = redis.command("TIME");
    assert!(time_us.abs_diff(seconds * 1_000_000) < 2_000_000, "{time_us}");
    assert_eq!(reply, [1, 99, 0, 60_000_000]);
    assert_eq!(called(&format!("-1@{time_us} log:100:60000000")).1, [1, 100, 0, 0]);
    assert_eq!(called("+25 log:100:60000000").1, [1, 75, 0, 60_000_000]);
}

/// What others run is what Weir runs.
#[test]
fn make_script_prints_the_script() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let make = std::process::Command::new("make").args(["-s", "script"]).current_dir(root).output();
    let printed = make.expect("make runs").stdout;
    assert_eq!(String::from_utf8(printed).unwrap(), weir_redis::script::SOURCE);
}
