//! Times, counts and the calendar, exact to the last unit.

use std::time::Duration;

use weir_core::period::Period;
use weir_core::time::micros;
use weir_core::{Limit, Timestamp};
use weir_redis::Operation;
use weir_tests::Redis;
use weir_tests::script::{START_US, Script, each, limit};
use weir_tests::subject::{Reference, Subject as _};

const MAX_LIMIT: u64 = (1 << 53) - 1;

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
        "counter 4503599627370496/1h",
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
                (start_us + window_us + window_us / part, capacity - capacity / 4),
                (start_us + window_us + window_us / part, capacity / part),
                (start_us + 2 * window_us - 1, capacity / 2),
            ] {
                let decide = Operation::Decide { cost };
                assert_eq!(
                    script.perform_and_persist(time_us, rule, &name, decide).0.as_ref(),
                    Ok(&reference.decide(time_us, rule, &name, cost)),
                    "{:?} {part} {time_us}",
                    limits[0]
                );
            }
        }
    }
}

/// The script's own division, of products that a double cannot hold, even ones
/// and others.
#[test]
fn products_beyond_a_double_are_divided_exactly() {
    let source = weir_redis::script::SOURCE;
    let begin = source.find("local function muldiv").expect("it is there");
    let length = source[begin..].find("\nend\n").expect("it ends") + 5;
    let lua = format!(
        "local floor, MAX_LIMIT = math.floor, {MAX_LIMIT} \
         {} \
         local out = {{}} \
         for i = 1, #ARGV, 3 do \
             local q, l = muldiv(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])) \
             out[#out + 1], out[#out + 2] = string.format('%d', q), string.format('%d', l) \
         end \
         return out",
        &source[begin..begin + length]
    );
    let mut random = fastrand::Rng::with_seed(53);
    let cases: Vec<[u64; 3]> = std::iter::from_fn(|| {
        let mut below = |bits: u32| {
            let bits = random.u32(1..=bits);
            random.u64(1..1 << bits)
        };
        let (a, b, c) = match below(2) {
            1 => (below(53), below(53), below(53)),
            _ => {
                let (shared, other) = (below(26), below(26));
                (below(26) * shared, below(26) * other, shared * other)
            }
        };
        Some([a, b, c])
    })
    .filter(|&[a, b, c]| u128::from(a) * u128::from(b) / u128::from(c) < 1 << 53)
    .take(20_000)
    .collect();
    let redis = Redis::start();
    for cases in cases.chunks(1_000) {
        let mut call = redis::cmd("EVAL");
        call.arg(&lua).arg(0).arg(cases.concat());
        let replies: Vec<u64> = call.query(&mut redis.connect()).unwrap();
        for ([a, b, c], reply) in cases.iter().zip(replies.chunks(2)) {
            let product = u128::from(*a) * u128::from(*b);
            let expected = [product / u128::from(*c), product % u128::from(*c)];
            assert_eq!(reply.iter().map(|&it| u128::from(it)).collect::<Vec<_>>(), expected);
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
