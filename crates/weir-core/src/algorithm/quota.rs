//! The quota: a total for each calendar hour, day or month, in UTC.
//!
//! A pool of credits that is filled anew when the period begins, not a rate:
//! all of it may be spent in the period's first second, and again in the next
//! one's. Combine it with a rate where that would hurt.
//!
//! **Guarantee.** No period ever holds more admitted units than the limit.
//! **Memory.** Two numbers. **Not when** a rate is meant, or an account's own
//! billing day: periods are the calendar's.
//!
//! ```
//! use std::time::Duration;
//! use weir_core::algorithm::Ledger;
//! use weir_core::algorithm::quota::QuotaCounter;
//! use weir_core::decision::Wait;
//! use weir_core::limit::Quota;
//! use weir_core::Timestamp;
//!
//! let quota: Quota = "100/month".parse().unwrap();
//! // 2026-02-28 23:59:50 UTC, ten seconds before March.
//! let now = Timestamp::from_micros(1_772_323_190_000_000);
//! let mut counter = QuotaCounter::default();
//!
//! assert_eq!(counter.decide(quota, now, 100).remaining, 0);
//! assert_eq!(counter.decide(quota, now, 1).wait, Wait::For(Duration::from_secs(10)));
//! assert_eq!(counter.decide(quota, now + Duration::from_secs(10), 1).remaining, 99);
//! ```

use std::time::Duration;

use super::{Ledger, clock_skew};
use crate::Timestamp;
use crate::decision::{Standing, Wait};
use crate::limit::Quota;
use crate::rate::MAX_LIMIT;

/// Units admitted in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaCounter {
    /// Where the period begins.
    start: Timestamp,
    count: u64,
}

impl QuotaCounter {
    pub(super) fn write(&self, words: &mut Vec<u64>) {
        words.extend([self.start.as_micros(), self.count]);
    }

    pub(super) fn read(words: &[u64]) -> Option<Self> {
        let &[start, count] = words else { return None };
        Some(Self { start: Timestamp::from_micros(start), count })
    }

    /// The count as it stands at `now`.
    fn at(&self, quota: Quota, now: Timestamp) -> Self {
        let start = quota.period().start(now);
        let period = quota.period().end(start).since(start);
        if self.start > now + clock_skew(period) || self.start < start {
            Self { start, count: 0 }
        } else {
            self.clone()
        }
    }
}

impl Ledger for QuotaCounter {
    type Terms = Quota;

    fn look(&self, quota: Quota, now: Timestamp, cost: u64) -> Standing {
        let Self { start, count } = self.at(quota, now);
        let limit = quota.limit();
        let end = quota.period().end(start);
        // A clock that stepped back into the period before waits for no longer
        // than a period.
        let left = end.since(now).min(end.since(start));

        let remaining = limit.saturating_sub(count);
        let wait = Wait::of(cost, limit, remaining, || left);
        let reset = if count == 0 { Duration::ZERO } else { left };
        Standing { limit, remaining, wait, reset }
    }

    fn charge(&mut self, quota: Quota, now: Timestamp, cost: u64) {
        *self = self.at(quota, now);
        self.count = (self.count + cost).min(MAX_LIMIT);
    }

    fn refund(&mut self, quota: Quota, now: Timestamp, cost: u64, charged_at: Timestamp) {
        let mut counter = self.at(quota, now);
        let end = quota.period().end(counter.start);
        if (counter.start..end).contains(&charged_at) && counter.count > 0 {
            counter.count = counter.count.saturating_sub(cost);
            *self = counter;
        }
    }

    fn expires(&self, quota: Quota) -> Option<Timestamp> {
        (self.count > 0).then(|| quota.period().end(self.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(text: &str) -> Quota {
        text.parse().expect(text)
    }

    /// Seconds after 2027-01-31 00:00:00 UTC.
    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros((1_801_353_600 + second) * 1_000_000)
    }

    const DAY: u64 = 86_400;

    #[test]
    fn a_period_holds_the_limit_and_the_next_one_begins_anew() {
        for (text, end) in [("5/hour", 3_600), ("5/day", DAY), ("5/month", DAY)] {
            let (quota, mut counter) = (quota(text), QuotaCounter::default());
            assert_eq!(counter.decide(quota, at(0), 5).remaining, 0, "{text}");
            let refused = counter.decide(quota, at(10), 1);
            assert_eq!(refused.wait, Wait::For(Duration::from_secs(end - 10)), "{text}");
            assert_eq!(refused.reset, Duration::from_secs(end - 10), "{text}");
            assert!(!counter.look(quota, at(end - 1), 1).wait.is_none(), "{text}");
            assert_eq!(counter.decide(quota, at(end), 1).remaining, 4, "{text}");
        }
    }

    #[test]
    fn a_changed_limit_keeps_what_was_used() {
        let mut counter = QuotaCounter::default();
        counter.charge(quota("100/day"), at(0), 60);
        assert_eq!(counter.look(quota("200/day"), at(0), 1).remaining, 140);
        let lowered = counter.look(quota("50/day"), at(0), 1);
        assert_eq!((lowered.remaining, lowered.wait), (0, Wait::For(Duration::from_secs(DAY))));
    }

    /// C29.
    #[test]
    fn a_clock_that_steps_back_begins_no_period_anew() {
        let (quota, mut counter) = (quota("5/day"), QuotaCounter::default());
        counter.charge(quota, at(DAY), 5);
        let refused = counter.look(quota, at(DAY - 60), 1);
        assert_eq!(refused.wait, Wait::For(Duration::from_secs(DAY)), "no more than a period");
        assert_eq!(counter.look(quota, at(DAY - 61), 1).wait, Wait::None, "a clock that was reset");
    }

    #[test]
    fn what_is_given_back_is_of_the_current_period() {
        let (quota, mut counter) = (quota("5/day"), QuotaCounter::default());
        counter.charge(quota, at(0), 5);
        counter.refund(quota, at(10), 2, at(0));
        assert_eq!(counter.look(quota, at(10), 0).remaining, 2);
        let stood = counter.clone();
        counter.refund(quota, at(10), 1, at(DAY));
        counter.refund(quota, at(10), 1, Timestamp::from_micros(at(0).as_micros() - 1));
        counter.refund(quota, at(DAY), 1, at(0));
        assert_eq!(counter, stood);
        for _ in 0..2 {
            counter.refund(quota, at(10), 5, at(DAY - 1));
            assert_eq!(counter.look(quota, at(10), 0).remaining, 5);
        }
        assert_eq!(counter.expires(quota), None);
    }

    #[test]
    fn a_count_beyond_the_limit_waits_for_the_next_period() {
        let (quota, mut counter) = (quota("5/day"), QuotaCounter::default());
        counter.charge(quota, at(0), 7);
        let refused = counter.look(quota, at(0), 1);
        assert_eq!((refused.remaining, refused.wait), (0, Wait::For(Duration::from_secs(DAY))));
        counter.refund(quota, at(0), 2, at(0));
        assert_eq!(counter.look(quota, at(0), 0).remaining, 0, "five are due");
        counter.charge(quota, at(0), MAX_LIMIT);
        assert_eq!(counter.count, MAX_LIMIT);
    }
}
