//! The script in a real Redis decides as the reference in weir-core does.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weir_core::algorithm::{State, charge_afterwards, decide, give_back};
use weir_core::limit::BucketRate;
use weir_core::rate::MAX_LIMIT;
use weir_core::{Limit, Rate, Timestamp};
use weir_redis::Operation;
use weir_tests::Redis;
use weir_tests::script::{KeyAfter, START_US, Script};

/// How far the clock moves before a request, in microseconds.
fn clock() -> impl Strategy<Value = i64> {
    let second = 1_000_000i64;
    prop_oneof![
        40 => Just(0i64),
        20 => 0..1_000i64,
        60 => 0..4 * second,
        // Whole seconds meet every boundary.
        30 => (0i64..6).prop_map(move |seconds| seconds * second),
        8 => (0i64..50).prop_map(move |hours| hours * 3_600 * second),
        2 => (0i64..70).prop_map(move |days| days * 86_400 * second),
        10 => -3 * second..0,
        2 => -59 * second..0,
        1 => Just(-60 * second),
        1 => Just(-70 * second),
        1 => Just(70 * second),
    ]
}

/// Limits that are reached, and the largest.
fn rate() -> impl Strategy<Value = Rate> {
    let limit = prop_oneof![8 => 1u64..8, 3 => 8u64..200, 1 => (1u64 << 53) - 3..1 << 53];
    let window = prop::sample::select(vec!["1ms", "999ms", "1s", "4s", "7s", "1h", "366d"]);
    (limit, window).prop_map(|(limit, window)| format!("{limit}/{window}").parse().expect("a rate"))
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let bucket = (rate(), prop_oneof![Just(None), (1u64..20).prop_map(Some)]).prop_filter_map(
        "a bucket that refills in time",
        |(rate, burst)| {
            let terms = BucketRate::new(rate, burst.unwrap_or(rate.limit()));
            terms.ok().map(Limit::TokenBucket)
        },
    );
    let period = prop::sample::select(vec!["hour", "day", "month"]);
    let quota = (rate(), period).prop_map(|(rate, period)| {
        Limit::Quota(format!("{}/{period}", rate.limit()).parse().expect("a quota"))
    });
    prop_oneof![
        rate().prop_map(Limit::SlidingLog),
        rate().prop_map(Limit::CompactLog),
        rate().prop_map(Limit::SlidingCounter),
        bucket,
        quota,
    ]
}

/// Rules that share keys where algorithm and window are the same, so that a
/// trace also is one of limits and plans that change.
fn rules() -> impl Strategy<Value = Vec<Vec<Limit>>> {
    let limits = prop::collection::vec(any_limit(), 1..4).prop_map(|mut limits| {
        let mut seen = Vec::new();
        limits.retain(|limit| {
            let suffix = limit.key_suffix();
            let is_new = !seen.contains(&suffix);
            seen.push(suffix);
            is_new
        });
        limits
    });
    prop::collection::vec(limits, 1..5)
}

/// A request: rule (modulo their number), client, cost, clock.
#[derive(Clone, Debug)]
struct Step {
    rule: usize,
    client: usize,
    kind: Kind,
    cost: Cost,
    clock_us: i64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Decide,
    Charge,
    Refund(Charged),
}

/// Which time is given back.
#[derive(Clone, Copy, Debug)]
enum Charged {
    /// That of the charge so many before the last: its cost, and so many units
    /// more. It may be of another client or rule, have been given back, or have
    /// left long ago.
    Earlier(usize, i64),
    /// So many microseconds from now.
    FromNow(i64),
}

#[derive(Clone, Copy, Debug)]
enum Cost {
    Units(u64),
    /// The first limit's capacity, less or more a few.
    NearCapacity(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = prop_oneof![
        8 => (0u64..4).prop_map(Cost::Units),
        2 => (4u64..60).prop_map(Cost::Units),
        1 => (-4i64..3).prop_map(Cost::NearCapacity),
    ];
    let charged = prop_oneof![
        8 => (0usize..3, -1i64..3).prop_map(|(back, more)| Charged::Earlier(back, more)),
        2 => (3usize..40, -3i64..60).prop_map(|(back, more)| Charged::Earlier(back, more)),
        1 => clock().prop_map(|clock_us| Charged::FromNow(-clock_us)),
        1 => (-1i64..2).prop_map(Charged::FromNow),
    ];
    let kind = prop_oneof![
        6 => Just(Kind::Decide),
        2 => Just(Kind::Charge),
        4 => charged.prop_map(Kind::Refund),
    ];
    (0usize..4, 0usize..2, kind, cost, clock()).prop_map(|(rule, client, kind, cost, clock_us)| {
        Step { rule, client, kind, cost, clock_us }
    })
}

/// What a step does, where these were charged before: time and cost.
fn operation(step: &Step, cost: u64, now_us: u64, charges: &[(u64, u64)]) -> Operation {
    let (cost, charged_us) = match step.kind {
        Kind::Decide => return Operation::Decide { cost },
        Kind::Charge => return Operation::Charge { cost: cost.max(1) },
        Kind::Refund(Charged::FromNow(later_us)) => (cost, now_us.saturating_add_signed(later_us)),
        Kind::Refund(Charged::Earlier(back, more)) => match charges.iter().rev().nth(back) {
            Some((charged_us, cost)) => (cost.saturating_add_signed(more), *charged_us),
            None => (cost, now_us),
        },
    };
    let cost = cost.clamp(1, MAX_LIMIT);
    Operation::Refund { cost, charged_at: Timestamp::from_micros(charged_us) }
}

/// What the script must leave of a key: how long it has to live from `now` on.
fn expected_ttl(limit: &Limit, state: &State, now: Timestamp, is_charged: bool) -> Option<u64> {
    let expires = match (limit, state) {
        // A log that was written while the clock was behind it lives for one
        // window from then on: long enough for every entry, unless the clock
        // jumps ahead again, which may cost one extra quota.
        (Limit::SlidingLog(rate) | Limit::CompactLog(rate), _) if is_charged => {
            Some(now + rate.window())
        }
        _ => state.expires(limit),
    };
    expires.map(|expires| expires.as_micros().saturating_sub(now.as_micros()))
}

#[test]
fn the_script_decides_as_the_reference_does() {
    let redis = Redis::start();
    let mut runner = TestRunner::new(Config {
        cases: 300,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..Config::default()
    });
    let traces = (rules(), prop::collection::vec(step(), 1..250));
    let steps_done = std::cell::Cell::new(0);
    runner
        .run(&traces, |(rules, steps)| {
            redis.command::<()>("FLUSHALL");
            let mut script = Script::with(redis.connect(), &rules);
            let mut states: HashMap<String, State> = HashMap::new();
            let mut charges = Vec::new();
            let mut now_us = START_US;
            for step in steps {
                let rule = step.rule % rules.len();
                let limits = &rules[rule];
                let cost = match step.cost {
                    Cost::Units(units) => units,
                    Cost::NearCapacity(more) => {
                        limits[0].capacity().saturating_add_signed(more).min(MAX_LIMIT)
                    }
                };
                now_us = now_us.saturating_add_signed(step.clock_us);
                let now = Timestamp::from_micros(now_us);

                let name = format!("client-{}", step.client);
                let keys = script.keys(rule, &name);
                let mut before: Vec<State> = keys
                    .iter()
                    .zip(limits)
                    .map(|(key, limit)| states.remove(key).unwrap_or_else(|| State::new(limit)))
                    .collect();
                let operation = operation(&step, cost, now_us, &charges);
                let expected = match operation {
                    Operation::Decide { cost } => Some(decide(limits, &mut before, now, cost)),
                    Operation::Charge { cost } => charge_afterwards(limits, &mut before, now, cost),
                    Operation::Refund { cost, charged_at } => {
                        Some(give_back(limits, &mut before, now, cost, charged_at))
                    }
                };
                let (verdict, after) = script.perform_and_persist(now_us, rule, &name, operation);
                let told = (operation, limits, now_us);
                prop_assert_eq!(verdict.as_ref().ok(), expected.as_ref(), "{:?}", told);

                let mut is_charged = false;
                match (operation, verdict) {
                    (Operation::Decide { cost } | Operation::Charge { cost }, Ok(verdict)) => {
                        is_charged = verdict.allowed && cost > 0;
                        if is_charged {
                            charges.push((now_us, cost));
                        }
                    }
                    (Operation::Refund { .. }, Ok(_)) => {}
                    (_, Err(error)) => {
                        let is_told = error.starts_with("a log takes at most 10000 units at once");
                        prop_assert!(is_told, "{}", error);
                        // Not even looked at: what was without a time to live still is.
                        states.extend(keys.into_iter().zip(before));
                        continue;
                    }
                }
                for (((key, limit), mut state), after) in
                    keys.into_iter().zip(limits).zip(before).zip(after)
                {
                    let ttl_us = expected_ttl(limit, &state, now, is_charged);
                    check_key(limit, &state, ttl_us, after)?;
                    if after.ttl_ms == -2 {
                        // It went, as it may.
                        state = State::new(limit);
                    }
                    states.insert(key, state);
                }
                steps_done.set(steps_done.get() + 1);
            }
            Ok(())
        })
        .unwrap();
    println!("{} steps", steps_done.get());
    assert!(steps_done.get() > 20_000);
}

fn check_key(
    limit: &Limit,
    state: &State,
    ttl_us: Option<u64>,
    after: KeyAfter,
) -> Result<(), TestCaseError> {
    match ttl_us {
        None => prop_assert_eq!(after.ttl_ms, -2, "{:?}: a key without use", limit),
        Some(ttl_us) => {
            // A bucket in debt has a fourth number.
            if let (Limit::TokenBucket(_), State::Bucket(bucket)) = (limit, state) {
                let len = if bucket.debt() > 0 { 32 } else { 24 };
                prop_assert!(after.len == len || after.ttl_ms == -2, "{}", after.len);
            }
            // Rounded up to a millisecond, and one more for that which the
            // server was in.
            let ttl_ms = ttl_us.div_ceil(1_000) as i64;
            let lives = ttl_ms - after.pause_ms..=ttl_ms + 1;
            let may_be_gone = *lives.start() <= 1 && after.ttl_ms == -2;
            prop_assert!(
                may_be_gone || lives.contains(&after.ttl_ms),
                "{:?}: lives {} ms, not {:?}",
                limit,
                after.ttl_ms,
                lives
            );
        }
    }
    if let (Limit::CompactLog(_), State::Log(log)) = (limit, state) {
        prop_assert!(after.len <= 9 * log.len() as u64 + 64, "{} of {}", after.len, log.len());
    }
    Ok(())
}
