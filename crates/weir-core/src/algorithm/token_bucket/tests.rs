use super::*;
use crate::Rate;
use proptest::prelude::*;

fn terms(rate: &str, burst: u64) -> BucketRate {
    BucketRate::new(rate.parse().expect(rate), burst).expect("a bucket")
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + millis * 1_000)
}

fn passed(bucket: &mut TokenBucket, terms: BucketRate, now: Timestamp, tries: usize) -> usize {
    (0..tries).filter(|_| bucket.decide(terms, now, 1).wait.is_none()).count()
}

/// C02, C04: asked every 37 µs for 10 s, what passes is the rate.
#[test]
fn the_long_run_rate_is_the_limit_whatever_is_offered() {
    for (rate, expected) in [("1/1s", 10), ("3000/1s", 30_000)] {
        let (terms, mut bucket) = (terms(rate, 1), TokenBucket::default());
        let start = at(0).as_micros();
        let times = (start..start + 10_000_000).step_by(37).map(Timestamp::from_micros);
        let passed = times.filter(|&now| bucket.decide(terms, now, 1).wait.is_none()).count();
        // Each waits for the next asking, up to 37 µs after its token.
        assert!(passed <= expected + 1 && passed * 100 >= expected * 90, "{rate}: {passed}");
    }
}

/// C04.
#[test]
fn a_burst_in_the_same_microsecond_passes() {
    let (terms, mut bucket) = (terms("3000/1s", 5), TokenBucket::default());
    assert_eq!(passed(&mut bucket, terms, at(0), 10), 5);
}

/// C27: 30,000 a day is one every 2.88 s; and three a second has no
/// microsecond of its own.
#[test]
fn refills_are_exact_where_a_token_is_no_whole_microsecond() {
    let (day, mut bucket) = (terms("30000/1d", 30_000), TokenBucket::default());
    assert_eq!(bucket.decide(day, at(0), 30_000).reset, Duration::from_secs(86_400));
    assert_eq!(bucket.look(day, at(2_879), 0).remaining, 0);
    assert_eq!(bucket.look(day, at(2_880), 0).remaining, 1);
    assert_eq!(bucket.look(day, at(86_400_000), 0).remaining, 30_000);

    // A third of a second is no whole microsecond: waits are rounded up,
    // and what they were rounded by is not lost.
    let (thirds, mut bucket) = (terms("3/1s", 3), TokenBucket::default());
    let mut now = at(0);
    assert_eq!(passed(&mut bucket, thirds, now, 4), 3);
    for second in 1..=1_000 {
        for _ in 0..3 {
            let Wait::For(wait) = bucket.look(thirds, now, 1).wait else { panic!("empty") };
            now = now + wait;
            assert_eq!(passed(&mut bucket, thirds, now, 2), 1);
        }
        assert_eq!(now, at(second * 1_000));
    }
}

/// C29: elapsed 0, no refill, no drain, the stored time not moved back.
#[test]
fn a_clock_that_steps_back_moves_nothing() {
    let (terms, mut bucket) = (terms("10/1m", 10), TokenBucket::default());
    assert_eq!(passed(&mut bucket, terms, at(60_000), 4), 4);
    let stood = bucket.clone();
    assert_eq!(bucket.look(terms, at(59_800), 0).remaining, 6);
    assert_eq!(passed(&mut bucket, terms, at(59_800), 1), 1);
    assert_eq!(bucket.at, stood.at);
    assert_eq!(bucket.look(terms, at(60_000), 0).remaining, 5);
    assert_eq!(bucket.look(terms, at(0), 0).remaining, 5, "60 s behind still counts");
    let reset = Timestamp::from_micros(at(0).as_micros() - 1);
    assert_eq!(bucket.look(terms, reset, 0).remaining, 10);
}

/// Nobody is locked out for longer than a bucket refills, or a second.
#[test]
fn a_clock_that_steps_back_far_costs_one_bucket() {
    let (terms, mut bucket) = (terms("10/1s", 10), TokenBucket::default());
    assert_eq!(passed(&mut bucket, terms, at(60_000), 11), 10);
    let refused = bucket.look(terms, at(59_000), 1);
    assert_eq!(refused.wait, Wait::For(Duration::from_secs(1)));
    assert_eq!(passed(&mut bucket, terms, at(58_999), 11), 10);
    assert_eq!(bucket.at, at(58_999));
}

/// A plan of a smaller burst forgets nothing of what was used under a larger
/// one: it admits at its rate, and what it leaves repays the rest.
#[test]
fn a_charge_under_a_smaller_burst_forgets_nothing() {
    let (large, small) = (terms("1/1h", 1_000), terms("1/1h", 1));
    let mut bucket = TokenBucket::default();
    let hour = 3_600_000;
    assert_eq!(bucket.decide(large, at(0), 1_000).remaining, 0);
    assert!(!bucket.look(small, at(hour - 1), 1).wait.is_none());
    assert!(bucket.decide(small, at(hour), 1).wait.is_none());
    assert!(!bucket.look(small, at(hour), 1).wait.is_none());
    assert_eq!(bucket.look(large, at(hour), 0).remaining, 0);
    assert_eq!(bucket.expires(large), Some(at(1_001 * hour)));
    assert_eq!(bucket.look(large, at(500 * hour), 0).remaining, 499);
}

#[test]
fn a_changed_rate_keeps_what_was_used() {
    let mut bucket = TokenBucket::default();
    assert_eq!(passed(&mut bucket, terms("10/1s", 10), at(0), 10), 10);
    assert_eq!(bucket.look(terms("20/1s", 20), at(0), 0).remaining, 10);
    // Lowered: nothing remains, and the wait is within the time to refill.
    let lowered = bucket.look(terms("2/1s", 2), at(0), 1);
    assert_eq!((lowered.remaining, lowered.wait), (0, Wait::For(Duration::from_millis(500))));
    assert!(bucket.look(terms("2/1s", 2), at(500), 1).wait.is_none());
    assert!(!bucket.look(terms("2/1s", 2), at(499), 1).wait.is_none());
}

#[test]
fn the_fastest_bucket_is_exact() {
    let all = 9_007_199_254_740_991;
    let (terms, mut bucket) = (terms("9007199254740991/1ms", all), TokenBucket::default());
    assert_eq!(bucket.decide(terms, at(0), all).remaining, 0);
    let a_microsecond_later = at(0) + Duration::from_micros(1);
    assert_eq!(bucket.look(terms, a_microsecond_later, 0).remaining, all / 1_000);
}

/// A bucket that was full since has nothing to be given back.
#[test]
fn what_was_refilled_since_is_not_given_back_a_second_time() {
    let (terms, mut bucket) = (terms("10/1s", 10), TokenBucket::default());
    assert_eq!(passed(&mut bucket, terms, at(0), 10), 10);
    // Four are back, and six of the ten are given back.
    bucket.refund(terms, at(400), 10, at(0));
    assert_eq!(bucket.look(terms, at(400), 0).remaining, 10);
    assert_eq!(passed(&mut bucket, terms, at(400), 20), 10);
    // The first ten are refilled: what is missing is of the others.
    bucket.refund(terms, at(1_000), 10, at(0));
    assert_eq!(bucket.look(terms, at(1_000), 0).remaining, 6);
    // A part of a token is a part: half of the one is there again.
    bucket.refund(terms, at(450), 1, at(400));
    assert_eq!(bucket.look(terms, at(450), 0).remaining, 1);
    assert_eq!(bucket.look(terms, at(450), 2).wait, Wait::For(Duration::from_millis(100)));
}

#[test]
fn what_is_given_back_is_no_more_than_is_missing() {
    let (terms, mut bucket) = (terms("10/1s", 10), TokenBucket::default());
    bucket.refund(terms, at(0), 5, at(0));
    assert_eq!(bucket, TokenBucket::default());
    bucket.charge(terms, at(0), 4);
    bucket.refund(terms, at(0), 10, at(0));
    bucket.refund(terms, at(0), 10, at(0));
    assert_eq!(bucket.look(terms, at(0), 0).remaining, 10);
    assert_eq!(bucket.expires(terms), None);
    // Of a clock that has since been set back: not its time.
    bucket.charge(terms, at(100_000), 4);
    let stood = bucket.clone();
    bucket.refund(terms, at(0), 4, at(100_000));
    assert_eq!(bucket, stood);
}

/// A hundred charges of a clock that was ahead are none of what it has recorded
/// since.
#[test]
fn what_was_charged_before_a_clock_was_set_back_is_not_given_back() {
    let (terms, mut bucket) = (terms("10/1s", 10), TokenBucket::default());
    let ahead = (0..100).map(|second| at(1_000_000 + second * 1_000));
    for time in ahead.clone() {
        assert!(bucket.decide(terms, time, 10).wait.is_none());
    }
    assert!(bucket.decide(terms, at(0), 10).wait.is_none());
    for time in ahead {
        bucket.refund(terms, at(0), 10, time);
        assert_eq!(bucket.look(terms, at(0), 1).remaining, 0);
    }
    bucket.refund(terms, at(0), 10, at(0));
    assert_eq!(bucket.look(terms, at(0), 1).remaining, 10);
}

/// The clock was there, refilled what it refilled, and stepped back.
#[test]
fn a_clock_that_steps_back_gives_nothing_back_a_second_time() {
    let (terms, mut bucket) = (terms("10/10s", 10), TokenBucket::default());
    bucket.charge(terms, at(0), 10);
    bucket.charge(terms, at(5_000), 5);
    bucket.refund(terms, at(0), 10, at(0));
    assert_eq!(bucket.look(terms, at(0), 0).remaining, 5);
}

#[test]
fn a_debt_is_refilled_before_anything_passes() {
    let (terms, mut bucket) = (terms("10/1s", 10), TokenBucket::default());
    bucket.charge(terms, at(0), 35);
    assert_eq!(bucket.debt(), 25);
    let refused = bucket.look(terms, at(0), 1);
    assert_eq!((refused.remaining, refused.wait), (0, Wait::For(Duration::from_millis(2_600))));
    assert_eq!(refused.reset, Duration::from_millis(3_500));
    assert_eq!(bucket.look(terms, at(0), 10).wait, Wait::For(Duration::from_millis(3_500)));
    assert_eq!(bucket.look(terms, at(0), 11).wait, Wait::Forever);
    assert!(!bucket.look(terms, at(2_599), 1).wait.is_none());
    assert_eq!(passed(&mut bucket, terms, at(2_600), 2), 1);
    assert_eq!(bucket.debt(), 0, "there was room");

    // What is given back is taken from the debt, rounded up.
    let mut bucket = TokenBucket::default();
    bucket.charge(terms, at(0), 35);
    bucket.refund(terms, at(150), 20, at(0));
    assert_eq!(bucket.debt(), 7);
    assert_eq!(bucket.look(terms, at(150), 1).wait, Wait::For(Duration::from_millis(600)));
}

/// Twice into debt is both debts; a smaller burst is held against nobody.
#[test]
fn a_debt_is_not_what_was_used_under_a_larger_burst() {
    let (large, small) = (terms("1/1s", 100), terms("1/1s", 5));
    let mut bucket = TokenBucket::default();
    bucket.charge(large, at(0), 100);
    assert_eq!(bucket.look(small, at(0), 1).wait, Wait::For(Duration::from_secs(1)));
    bucket.charge(small, at(0), 3);
    bucket.charge(small, at(0), 4);
    assert_eq!(bucket.debt(), 7);
    assert_eq!(bucket.look(small, at(0), 1).wait, Wait::For(Duration::from_secs(8)));
    assert_eq!(bucket.look(large, at(0), 1).wait, Wait::For(Duration::from_secs(8)));
}

/// Nobody is locked out for longer than the longest window.
#[test]
fn a_debt_ends_at_what_is_refilled_in_366_days() {
    let (slow, mut bucket) = (terms("3/366d", 2), TokenBucket::default());
    bucket.charge(slow, at(0), MAX_LIMIT);
    assert_eq!((bucket.debt(), bucket.look(slow, at(0), 0).reset), (1, MAX_WINDOW));
    bucket.charge(slow, at(0), MAX_LIMIT);
    assert_eq!(bucket.look(slow, at(0), 2).wait, Wait::For(MAX_WINDOW));

    let (fast, mut bucket) = (terms("9007199254740991/1ms", 1), TokenBucket::default());
    for _ in 0..2 {
        bucket.charge(fast, at(0), MAX_LIMIT);
        assert_eq!(bucket.debt(), MAX_LIMIT - 1);
        assert_eq!(bucket.look(fast, at(0), 1).wait, Wait::For(Duration::from_millis(1)));
    }
}

proptest! {
    /// What was charged and not given back is within the burst and the refill,
    /// and at the wait the cost is admitted, a microsecond earlier not, in debt
    /// too.
    #[test]
    fn no_span_holds_more_than_the_burst_and_the_refill(
        (limit, burst) in (1u64..20, 1u64..20),
        steps in proptest::collection::vec((0u64..300_000, 1u64..9, 0usize..8), 1..200),
    ) {
        let rate = Rate::new(limit, Duration::from_secs(1)).expect("a valid rate");
        let terms = BucketRate::new(rate, burst).expect("a bucket");
        let mut bucket = TokenBucket::default();
        let mut now = at(0);
        let mut charged: Vec<(Timestamp, u64)> = Vec::new();
        for (step, cost, back) in steps {
            now = now + Duration::from_micros(step);
            // One of the last three charges is given back whole, if at all.
            if back < 3 && back < charged.len() {
                let (time, cost) = charged.remove(charged.len() - 1 - back);
                bucket.refund(terms, now, cost, time);
                continue;
            }
            let standing = bucket.decide(terms, now, cost);
            match standing.wait {
                Wait::None => charged.push((now, cost)),
                Wait::For(wait) => {
                    let early = now + (wait - Duration::from_micros(1));
                    prop_assert!(!bucket.look(terms, early, cost).wait.is_none());
                    prop_assert!(bucket.look(terms, now + wait, cost).wait.is_none());
                }
                Wait::Forever => {}
            }
            for (index, (first, _)) in charged.iter().enumerate() {
                let units: u64 = charged[index..].iter().map(|(_, cost)| cost).sum();
                let most = burst * 1_000_000 + now.since(*first).as_micros() as u64 * limit;
                prop_assert!(units * 1_000_000 <= most, "{} since {:?}", units, first);
            }
        }
    }
}
