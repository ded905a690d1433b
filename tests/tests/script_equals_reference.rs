//! The script in a real Redis decides as the reference in weir-core does.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weir_core::algorithm::State;
use weir_core::{Limit, Timestamp};
use weir_redis::Operation;
use weir_tests::Redis;
use weir_tests::script::{KeyAfter, START_US, Script};
use weir_tests::trace::{perform, rules, step};

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
            // When each key will go, as the script last had it.
            let mut expiries: HashMap<String, u64> = HashMap::new();
            let mut now_us = START_US;
            for step in steps {
                let rule = step.rule % rules.len();
                let limits = &rules[rule];
                now_us = now_us.saturating_add_signed(step.clock_us);
                let now = Timestamp::from_micros(now_us);

                let name = format!("client-{}", step.client);
                let keys = script.keys(rule, &name);
                let mut before: Vec<State> = keys
                    .iter()
                    .zip(limits)
                    .map(|(key, limit)| states.remove(key).unwrap_or_else(|| State::new(limit)))
                    .collect();
                let operation = step.operation(limits, now_us, &charges);
                let expected = perform(operation, limits, &mut before, now);
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
                    let expiry_us = ttl_us.map(|ttl_us| now_us + ttl_us);
                    if after.ttl_ms == -1 {
                        let had_us = expiries.get(&key).copied();
                        prop_assert!(is_charged && keeps_ttl(limit), "{:?}: no end", limit);
                        prop_assert_eq!(expiry_us, had_us, "{:?}: another end", limit);
                    } else {
                        check_key(limit, &state, ttl_us, after)?;
                    }
                    if let Some(expiry_us) = expiry_us {
                        expiries.insert(key.clone(), expiry_us);
                    }
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

/// Whether a charge may leave a key the time to live that it has: it ends with a
/// window or period, whatever is charged in that.
fn keeps_ttl(limit: &Limit) -> bool {
    matches!(limit, Limit::SlidingCounter(_) | Limit::Quota(_))
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
