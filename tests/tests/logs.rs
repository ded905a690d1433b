//! The two logs: what they record, forget and take.

use std::time::{Duration, Instant};

use weir_core::Verdict;
use weir_core::decision::Wait;
use weir_tests::script::{Script, at, each};

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
    let error = script.charge(second, 0, "client", 1).expect_err("afterwards too");
    assert!(error.contains("a compact log holds at most 16777216 units"), "{error}");
    // Of all of them the last goes, in place.
    assert_eq!(script.refund(second, 0, "client", 1, 0).limits[0].remaining, 1);
    assert_eq!(script.charge(second, 0, "client", 1).map(|it| it.limits[0].remaining), Ok(0));
}
