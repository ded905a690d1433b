//! What every algorithm guarantees, of the reference, of the script and of the store in
//! memory.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use weir_core::decision::Wait;
use weir_core::time::micros;
use weir_core::{Limit, Timestamp};
use weir_tests::script::{START_US, limit};
use weir_tests::subject::{InMemory, InRedis, Reference, Subject};

/// Requests: microseconds since the one before, and cost. Windows are of some
/// seconds, so that requests crowd about every boundary, and long enough for
/// the server's own clock, by which keys go, not to matter.
fn traffic(most: usize) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let step = prop_oneof![4 => 0u64..2_000_000, 2 => Just(0u64), 1 => 2_000_000u64..30_000_000];
    let cost = prop_oneof![8 => Just(1u64), 4 => 0u64..5, 1 => 5u64..60];
    prop::collection::vec((step, cost), 1..most)
}

fn one_of(limits: &[&'static str]) -> impl Strategy<Value = Limit> + use<> {
    prop::sample::select(limits.to_vec()).prop_map(limit)
}

const LOGS: [&str; 8] = [
    "log 1/10s",
    "log 3/7s",
    "log 20/10s",
    "log 100/50s",
    "ring 1/10s",
    "ring 3/7s",
    "ring 20/10s",
    "ring 100/50s",
];
const COUNTERS: [&str; 3] = ["counter 1/10s", "counter 7/10s", "counter 40/20s"];
const BUCKETS: [&str; 4] = ["bucket 1/10s", "bucket 7/10s 3", "bucket 7/3s 30", "bucket 999/10s 5"];
const QUOTAS: [&str; 3] = ["quota 20/hour", "quota 7/day", "quota 3/month"];

fn any_limit() -> impl Strategy<Value = Limit> {
    let all: Vec<_> = [&LOGS[..], &COUNTERS, &BUCKETS, &QUOTAS].concat();
    one_of(&all)
}

/// Runs `property` on many cases of the reference and of the store in memory and,
/// fewer, of the script.
fn of_all<S: Strategy>(
    cases: &S,
    rules: impl Fn(&S::Value) -> Vec<Vec<Limit>>,
    property: impl Fn(&mut dyn Subject, &S::Value) -> Result<(), TestCaseError>,
) {
    runner(400)
        .run(cases, |case| property(&mut Reference::new(&rules(&case)), &case))
        .unwrap_or_else(|error| panic!("the reference: {error}"));
    of_the_stores(cases, rules, property);
}

fn of_the_stores<S: Strategy>(
    cases: &S,
    rules: impl Fn(&S::Value) -> Vec<Vec<Limit>>,
    property: impl Fn(&mut dyn Subject, &S::Value) -> Result<(), TestCaseError>,
) {
    runner(400)
        .run(cases, |case| property(&mut InMemory::new(&rules(&case)), &case))
        .unwrap_or_else(|error| panic!("the store in memory: {error}"));
    let redis = std::cell::RefCell::new(InRedis::start());
    runner(40)
        .run(cases, |case| {
            let mut redis = redis.borrow_mut();
            redis.begin(&rules(&case));
            property(&mut *redis, &case)
        })
        .unwrap_or_else(|error| panic!("the script: {error}"));
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

fn one_rule(limit: &Limit) -> Vec<Vec<Limit>> {
    vec![vec![*limit]]
}

/// The times at which units of this traffic were admitted.
fn admitted(subject: &mut dyn Subject, traffic: &[(u64, u64)], scale: u64) -> Vec<(u64, u64)> {
    let mut now_us = START_US;
    let mut admitted = Vec::new();
    for &(step, cost) in traffic {
        now_us += step * scale;
        if subject.decide(now_us, 0, "client", cost).allowed {
            admitted.push((now_us, cost));
        }
    }
    admitted
}

/// The most units in any span of this length, ends included.
fn most_within(admitted: &[(u64, u64)], span_us: u64) -> u64 {
    let from = |(index, &(first, _)): (usize, &(u64, u64))| {
        let within = admitted[index..].iter().take_while(|(time, _)| *time <= first + span_us);
        within.map(|(_, cost)| cost).sum::<u64>()
    };
    admitted.iter().enumerate().map(from).max().unwrap_or(0)
}

/// Promise 1.
#[test]
fn no_window_of_a_log_holds_more_than_the_limit() {
    let cases = (one_of(&LOGS), traffic(200));
    of_all(
        &cases,
        |(limit, _)| one_rule(limit),
        |subject, (limit, traffic)| {
            let (Limit::SlidingLog(rate) | Limit::CompactLog(rate)) = limit else {
                unreachable!("a log")
            };
            let admitted = admitted(subject, traffic, 1);
            // Half open: the end of a window is the next one's.
            let most = most_within(&admitted, micros(rate.window()) - 1);
            prop_assert!(most <= rate.limit(), "{} within a window", most);
            Ok(())
        },
    );
}

/// Traffic of which some is given back: for each request which of the charges
/// before it, from the last, and by how many units more than it was charged;
/// and a second time, if that is so.
fn returned_traffic(most: usize) -> impl Strategy<Value = Vec<(u64, u64, Option<Return>)>> {
    let step = prop_oneof![4 => 0u64..2_000_000, 2 => Just(0u64), 1 => 2_000_000u64..12_000_000];
    let back = (0usize..4, prop_oneof![4 => Just(0u64), 1 => 1u64..9], prop::bool::weighted(0.2));
    let cost = prop_oneof![8 => Just(1u64), 4 => 1u64..5, 1 => 5u64..60];
    prop::collection::vec((step, cost, prop::option::weighted(0.4, back)), 1..most)
}

type Return = (usize, u64, bool);

/// The charges of this traffic that were not given back, and calls `check` with
/// those, and with the time, after each request.
fn due(
    subject: &mut dyn Subject,
    traffic: &[(u64, u64, Option<Return>)],
    mut check: impl FnMut(&[(u64, u64)], u64) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut now_us = START_US;
    let mut due: Vec<(u64, u64)> = Vec::new();
    for &(step, cost, back) in traffic {
        now_us += step;
        match back {
            Some((back, more, again)) if back < due.len() => {
                let (charged_us, cost) = due.remove(due.len() - 1 - back);
                // Of several at one time, as much as is given back is not due.
                let mut more_us = if again { cost + 2 * more } else { more };
                for other in due.iter_mut().filter(|(time, _)| *time == charged_us) {
                    let taken = other.1.min(more_us);
                    other.1 -= taken;
                    more_us -= taken;
                }
                due.retain(|(_, cost)| *cost > 0);
                subject.refund(now_us, 0, "client", cost + more, charged_us);
                if again {
                    subject.refund(now_us, 0, "client", cost + more, charged_us);
                }
            }
            _ if subject.decide(now_us, 0, "client", cost).allowed => due.push((now_us, cost)),
            _ => {}
        }
        check(&due, now_us)?;
    }
    Ok(())
}

/// Promise 1, whatever is given back.
#[test]
fn no_window_of_a_log_holds_more_than_the_limit_that_was_not_given_back() {
    let cases = (one_of(&LOGS), returned_traffic(150));
    of_all(
        &cases,
        |(limit, _)| one_rule(limit),
        |subject, (limit, traffic)| {
            let (Limit::SlidingLog(rate) | Limit::CompactLog(rate)) = limit else {
                unreachable!("a log")
            };
            due(subject, traffic, |due, _| {
                let most = most_within(due, micros(rate.window()) - 1);
                prop_assert!(most <= rate.limit(), "{} within a window", most);
                Ok(())
            })
        },
    );
}

/// Of charges that were given back as they were charged, each once.
#[test]
fn a_bucket_lets_no_more_through_for_what_was_given_back() {
    let honest = returned_traffic(150).prop_map(|mut traffic| {
        for (_, _, back) in &mut traffic {
            *back = back.map(|(back, ..)| (back, 0, false));
        }
        traffic
    });
    let cases = (one_of(&BUCKETS), honest);
    of_all(
        &cases,
        |(limit, _)| one_rule(limit),
        |subject, (limit, traffic)| {
            let Limit::TokenBucket(terms) = limit else { unreachable!("a bucket") };
            let (limit, window) = (terms.rate().limit(), micros(terms.rate().window()));
            due(subject, traffic, |due, now_us| {
                for (index, (first, _)) in due.iter().enumerate() {
                    let units: u64 = due[index..].iter().map(|(_, cost)| cost).sum();
                    let most = terms.burst() + (now_us - first) * limit / window;
                    prop_assert!(units <= most, "{} in {} µs", units, now_us - first);
                }
                Ok(())
            })
        },
    );
}

#[test]
fn a_bucket_admits_its_burst_and_what_is_refilled_and_no_more() {
    let cases = (one_of(&BUCKETS), traffic(200));
    of_all(
        &cases,
        |(limit, _)| one_rule(limit),
        |subject, (limit, traffic)| {
            let Limit::TokenBucket(terms) = limit else { unreachable!("a bucket") };
            let admitted = admitted(subject, traffic, 1);
            let (limit, window) = (terms.rate().limit(), micros(terms.rate().window()));
            for (index, &(first, _)) in admitted.iter().enumerate() {
                let mut units = 0;
                for &(time, cost) in &admitted[index..] {
                    units += cost;
                    let most = terms.burst() + (time - first) * limit / window;
                    prop_assert!(units <= most, "{} in {} µs", units, time - first);
                }
            }
            Ok(())
        },
    );
}

#[test]
fn no_period_of_a_quota_and_no_aligned_window_of_a_counter_holds_more_than_the_limit() {
    let limits = [&QUOTAS[..], &COUNTERS].concat();
    let cases = (one_of(&limits), traffic(200));
    of_all(
        &cases,
        |(limit, _)| one_rule(limit),
        |subject, (limit, traffic)| {
            // A quota's requests come over hours and months.
            let is_quota = matches!(limit, Limit::Quota(_));
            let admitted = admitted(subject, traffic, if is_quota { 10_000 } else { 1 });
            let period = |time_us: u64| match limit {
                Limit::Quota(quota) => {
                    quota.period().start(Timestamp::from_micros(time_us)).as_micros()
                }
                Limit::SlidingCounter(rate) => time_us / micros(rate.window()),
                _ => unreachable!(),
            };
            for (index, &(first, _)) in admitted.iter().enumerate() {
                let same = |(time, _): &&(u64, u64)| period(*time) == period(first);
                let units: u64 = admitted[index..].iter().filter(same).map(|(_, cost)| cost).sum();
                prop_assert!(units <= limit.capacity(), "{} in a period", units);
            }
            Ok(())
        },
    );
}

/// Promises 4 and 5, under one limit and under several, with room or far beyond
/// the limit after charges that asked for none.
#[test]
fn the_wait_is_exact_and_a_refusal_changes_nothing() {
    let several = prop::collection::vec(any_limit(), 1..4).prop_map(|mut limits| {
        limits.sort_by_key(Limit::key_suffix);
        limits.dedup_by_key(|limit| limit.key_suffix());
        limits
    });
    let beyond = prop_oneof![2 => Just(0u64), 1 => 1u64..60];
    let cases = (several, traffic(60), 1u64..30, beyond);
    of_all(
        &cases,
        |(limits, ..)| vec![limits.clone()],
        |subject, (limits, traffic, cost, beyond)| {
            admitted(subject, traffic, 1);
            if *beyond > 0 {
                let then_us = START_US + traffic.iter().map(|(step, _)| step / 2).sum::<u64>();
                let charged = subject.charge(then_us, 0, "client", *beyond);
                prop_assert!(charged.allowed);
            }
            let now_us = START_US + traffic.iter().map(|(step, _)| step).sum::<u64>();
            // A first look may find that nothing recorded matters any more.
            subject.decide(now_us, 0, "client", 0);
            let before = subject.recorded(0, "client");
            let looked = subject.decide(now_us, 0, "client", 0);
            prop_assert_eq!(&subject.recorded(0, "client"), &before, "a look changed something");

            let verdict = subject.decide(now_us, 0, "client", *cost);
            if verdict.allowed {
                return Ok(());
            }
            prop_assert_eq!(&subject.recorded(0, "client"), &before, "a refusal did");
            for ((limit, standing), looked) in
                limits.iter().zip(&verdict.limits).zip(&looked.limits)
            {
                prop_assert_eq!(standing.remaining, looked.remaining);
                prop_assert_eq!(standing.reset, looked.reset);
                prop_assert_eq!(standing.wait == Wait::Forever, *cost > limit.capacity());
                prop_assert_eq!(standing.wait.is_none(), *cost <= standing.remaining);
            }
            let Wait::For(wait) = verdict.tightest().expect("limits").wait else { return Ok(()) };
            prop_assert!(wait > Duration::ZERO);
            let told_us = now_us + micros(wait);
            let early = subject.decide(told_us - 1, 0, "client", *cost);
            prop_assert!(!early.allowed, "a microsecond before the end of {:?}", wait);
            prop_assert_eq!(early.tightest().expect("limits").wait, {
                Wait::For(Duration::from_micros(1))
            });
            prop_assert!(subject.decide(told_us, 0, "client", *cost).allowed, "after {:?}", wait);
            Ok(())
        },
    );
}

#[test]
fn a_request_is_charged_under_all_of_its_limits_or_under_none() {
    const LIMITS: [&str; 5] =
        ["log 9/10s", "ring 9/10s", "counter 9/10s", "bucket 9/10s", "quota 40/hour"];
    let limits = LIMITS.map(limit);
    // The first rule has all; each of the others one of them.
    let rules: Vec<Vec<Limit>> =
        std::iter::once(limits.to_vec()).chain(limits.iter().map(|&one| vec![one])).collect();
    of_all(
        &traffic(100),
        |_| rules.clone(),
        |subject, traffic| {
            let mut now_us = START_US;
            for &(step, cost) in traffic {
                now_us += step;
                // Apart from each other, they are charged alike.
                let apart: Vec<_> = (1..rules.len())
                    .map(|rule| subject.decide(now_us, rule, "apart", 0).limits[0])
                    .collect();
                let has_room = apart.iter().all(|standing| cost <= standing.remaining);
                let verdict = subject.decide(now_us, 0, "together", cost);
                prop_assert_eq!(verdict.allowed, has_room);
                for (rule, standing) in verdict.limits.iter().enumerate() {
                    let left = apart[rule].remaining - if has_room { cost } else { 0 };
                    prop_assert_eq!(standing.remaining, left, "{}", LIMITS[rule]);
                    if has_room {
                        prop_assert!(subject.decide(now_us, rule + 1, "apart", cost).allowed);
                    }
                }
            }
            Ok(())
        },
    );
}

/// The reference of both is one and the same.
#[test]
fn a_compact_log_decides_as_a_sliding_log_does() {
    let limits = prop::sample::select(vec!["1/10s", "3/7s", "40/10s", "300/50s", "6000/50s"]);
    let step = prop_oneof![2 => 0u64..3_000_000, 1 => Just(0u64)];
    let cost = prop_oneof![16 => 0u64..4, 2 => 4u64..90, 1 => 90u64..2_500];
    let cases = (limits, prop::collection::vec((step, cost), 1..300));
    of_the_stores(
        &cases,
        |(rate, _)| ["log", "ring"].map(|log| vec![limit(&format!("{log} {rate}"))]).to_vec(),
        |subject, (_, traffic)| {
            let mut now_us = START_US;
            for &(step, cost) in traffic {
                now_us += step;
                let log = subject.decide(now_us, 0, "client", cost);
                prop_assert_eq!(subject.decide(now_us, 1, "client", cost), log);
            }
            Ok(())
        },
    );
}
