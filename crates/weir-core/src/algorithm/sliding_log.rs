//! The sliding log: exact, at the price of one entry per admitted unit.
//!
//! **Guarantee.** No span of one window's length ever holds more admitted
//! units than the limit. **Memory.** One entry per unit in the window, so up
//! to the limit. Take another algorithm when the limit is in the tens of
//! thousands and identities are many.
//!
//! ```
//! use std::time::Duration;
//! use weir_core::algorithm::Ledger;
//! use weir_core::algorithm::sliding_log::SlidingLog;
//! use weir_core::decision::Wait;
//! use weir_core::{Rate, Timestamp};
//!
//! let rate: Rate = "2/10s".parse().unwrap();
//! let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
//! let mut log = SlidingLog::default();
//!
//! assert_eq!(log.decide(rate, at(0), 1).remaining, 1);
//! assert_eq!(log.decide(rate, at(4), 1).remaining, 0);
//! // Full. The first entry leaves at second 10, when it is one window old.
//! assert_eq!(log.decide(rate, at(7), 1).wait, Wait::For(Duration::from_secs(3)));
//! assert_eq!(log.decide(rate, at(10), 1).wait, Wait::None);
//! ```
//!
//! An entry counts while it is younger than the window; one exactly one window
//! old has left. Entries ahead of the clock count too, so a clock that steps
//! back [by no more than a skew](super) frees nothing. No wait is longer than
//! the window. A request of more than [`MAX_LOG_COST`] units never fits.

use std::ops::Range;
use std::time::Duration;

use super::{Ledger, clock_skew};
use crate::decision::{Standing, Wait};
use crate::limit::MAX_LOG_COST;
use crate::{Rate, Timestamp};

/// The times of the admitted units, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingLog {
    entries: Vec<Timestamp>,
}

impl SlidingLog {
    /// Units recorded and not yet forgotten, whether they still count or not.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn write(&self, words: &mut Vec<u64>) {
        words.extend(self.entries.iter().map(|entry| entry.as_micros()));
    }

    pub(super) fn read(words: &[u64]) -> Option<Self> {
        let entries = words.iter().map(|&micros| Timestamp::from_micros(micros)).collect();
        Some(Self { entries })
    }

    /// Which entries count at `now`.
    fn live(&self, rate: Rate, now: Timestamp) -> Range<usize> {
        let skew = clock_skew(rate.window());
        let gone = self.entries.partition_point(|&entry| entry + rate.window() <= now);
        let end = self.entries.partition_point(|&entry| entry <= now + skew);
        gone..end
    }
}

impl Ledger for SlidingLog {
    type Terms = Rate;

    fn look(&self, rate: Rate, now: Timestamp, cost: u64) -> Standing {
        let entries = &self.entries[self.live(rate, now)];
        let count = entries.len() as u64;
        let left_after = |entry: Timestamp| (entry + rate.window()).since(now).min(rate.window());

        let remaining = rate.limit().saturating_sub(count);
        let most = rate.limit().min(MAX_LOG_COST);
        let wait = Wait::of(cost, most, remaining, || {
            // Room is made when all but the newest `limit - cost` have left.
            left_after(entries[(count + cost - rate.limit() - 1) as usize])
        });
        Standing {
            limit: rate.limit(),
            remaining,
            wait,
            reset: entries.last().map_or(Duration::ZERO, |&newest| left_after(newest)),
        }
    }

    /// Also forgets what counts no more.
    fn charge(&mut self, rate: Rate, now: Timestamp, cost: u64) {
        let live = self.live(rate, now);
        self.entries.truncate(live.end);
        self.entries.drain(..live.start);
        let place = self.entries.partition_point(|&entry| entry <= now);
        self.entries.splice(place..place, (0..cost).map(|_| now));
    }

    /// Entries of one time are alike, so any of them will do. One of another time
    /// will not: a newer one would have counted for longer, and more would pass
    /// when these would have left.
    fn refund(&mut self, rate: Rate, now: Timestamp, cost: u64, charged_at: Timestamp) {
        let live = self.live(rate, now);
        let entries = &self.entries[live.clone()];
        let first = entries.partition_point(|&entry| entry < charged_at);
        let behind = entries.partition_point(|&entry| entry <= charged_at);
        let given = (behind - first).min(usize::try_from(cost).unwrap_or(usize::MAX));
        let first = live.start + first;
        self.entries.drain(first..first + given);
    }

    fn expires(&self, rate: Rate) -> Option<Timestamp> {
        self.entries.last().map(|&newest| newest + rate.window())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(text: &str) -> Rate {
        text.parse().expect(text)
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000 + millis * 1_000)
    }

    fn admitted(log: &mut SlidingLog, rate: Rate, now: Timestamp, cost: u64) -> bool {
        log.decide(rate, now, cost).wait.is_none()
    }

    /// C06: the quota spent at the end of one clock window is not there again
    /// at the start of the next.
    #[test]
    fn a_burst_across_a_window_boundary_is_refused() {
        let (rate, mut log) = (rate("10/60s"), SlidingLog::default());
        let admitted_at = |log: &mut SlidingLog, millis| {
            (0..10).filter(|_| admitted(log, rate, at(millis), 1)).count()
        };
        assert_eq!(admitted_at(&mut log, 59_900), 10);
        assert_eq!(admitted_at(&mut log, 60_100), 0);
    }

    /// C08: 1 hit at 0:00, 8 at 0:59, then many at 1:01: two more pass.
    #[test]
    fn the_history_outlives_the_first_window() {
        let (rate, mut log) = (rate("10/1h"), SlidingLog::default());
        let minute = 60_000;
        assert!(admitted(&mut log, rate, at(0), 1));
        for _ in 0..8 {
            assert!(admitted(&mut log, rate, at(59 * minute), 1));
        }
        let late = (0..10).filter(|_| admitted(&mut log, rate, at(61 * minute), 1)).count();
        assert_eq!(late, 2);
    }

    /// C11: an entry exactly one window old has left.
    #[test]
    fn an_entry_exactly_one_window_old_has_left() {
        let (rate, mut log) = (rate("3/10s"), SlidingLog::default());
        for _ in 0..3 {
            assert!(admitted(&mut log, rate, at(0), 1));
        }
        assert!(!admitted(&mut log, rate, at(9_999), 1));
        assert!(admitted(&mut log, rate, at(10_000), 1));
    }

    /// C15: the wait is the time left, not the window.
    #[test]
    fn the_wait_is_the_time_until_the_oldest_entry_leaves() {
        let (rate, mut log) = (rate("5/60s"), SlidingLog::default());
        for _ in 0..5 {
            assert!(admitted(&mut log, rate, at(0), 1));
        }
        let refused = log.decide(rate, at(55_000), 1);
        assert_eq!(refused.wait, Wait::For(Duration::from_secs(5)));
        assert_eq!(refused.reset, Duration::from_secs(5));
    }

    /// C17: remaining counts down to zero and stays there.
    #[test]
    fn remaining_counts_down_to_zero() {
        let (rate, mut log) = (rate("3/60s"), SlidingLog::default());
        let seen: Vec<u64> = (0..5).map(|_| log.decide(rate, at(0), 1).remaining).collect();
        assert_eq!(seen, [2, 1, 0, 0, 0]);
    }

    /// Each unit is an entry: more than a store should make at once never fits.
    #[test]
    fn what_is_above_ten_thousand_units_never_fits() {
        let (rate, mut log) = (rate("30000/60s"), SlidingLog::default());
        assert_eq!(log.decide(rate, at(0), 10_001).wait, Wait::Forever);
        assert_eq!(log.decide(rate, at(0), 10_000).remaining, 20_000);
    }

    #[test]
    fn a_lowered_limit_refuses_until_enough_has_left() {
        let mut log = SlidingLog::default();
        for second in 0..5 {
            assert!(admitted(&mut log, rate("5/10s"), at(second * 1_000), 1));
        }
        let refused = log.decide(rate("2/10s"), at(5_000), 1);
        assert_eq!(refused.remaining, 0);
        // Room is made when all but one have left: the fourth leaves at 13 s.
        assert_eq!(refused.wait, Wait::For(Duration::from_secs(8)));
        assert!(admitted(&mut log, rate("2/10s"), at(13_000), 1));
    }

    /// C29: a clock that steps back frees nothing, and no wait exceeds the
    /// window.
    #[test]
    fn a_clock_that_steps_back_frees_nothing() {
        let (rate, mut log) = (rate("2/10s"), SlidingLog::default());
        assert!(admitted(&mut log, rate, at(30_000), 1));
        assert!(admitted(&mut log, rate, at(29_800), 1));
        assert_eq!(log.entries, [at(29_800), at(30_000)]);
        let wait = |millis| Wait::For(Duration::from_millis(millis));
        assert_eq!(log.decide(rate, at(29_900), 1).wait, wait(9_900));
        assert_eq!(log.decide(rate, at(29_000), 1).wait, wait(10_000));
        assert!(!admitted(&mut log, rate, at(20_000), 1));
        // Further back than the window: nobody is locked out for longer.
        assert!(admitted(&mut log, rate, at(19_799), 1));
        assert_eq!(log.entries, [at(19_799)]);
    }

    #[test]
    fn an_entry_of_a_corrected_clock_counts_no_more() {
        let (rate, mut log) = (rate("1/1h"), SlidingLog::default());
        assert!(admitted(&mut log, rate, at(120_000), 1));
        assert!(!admitted(&mut log, rate, at(60_000), 1), "60 s ahead still counts");
        assert!(admitted(&mut log, rate, at(59_999), 1), "more than 60 s ahead does not");
        assert_eq!(log.entries, [at(59_999)]);
    }

    #[test]
    fn only_entries_of_their_own_time_are_given_back() {
        let (rate, mut log) = (rate("5/10s"), SlidingLog::default());
        for millis in [0, 0, 1, 2] {
            assert!(admitted(&mut log, rate, at(millis), 1));
        }
        log.refund(rate, at(3), 1, at(0));
        assert_eq!(log.entries, [at(0), at(1), at(2)]);
        log.refund(rate, at(3), 9, at(0));
        assert_eq!(log.entries, [at(1), at(2)]);
        log.refund(rate, at(3), 9, at(0));
        log.refund(rate, at(3), 9, at(3));
        assert_eq!(log.entries, [at(1), at(2)], "none are of that time");
        // Left, or of another clock: nothing to give back.
        log.refund(rate, at(10_001), 1, at(1));
        log.refund(rate, Timestamp::from_micros(0), 1, at(1));
        assert_eq!(log.entries, [at(1), at(2)]);
    }

    #[test]
    fn what_is_charged_beyond_the_limit_must_leave_before_anything_passes() {
        let (rate, mut log) = (rate("3/10s"), SlidingLog::default());
        log.charge(rate, at(0), 2);
        log.charge(rate, at(4_000), 3);
        let refused = log.look(rate, at(5_000), 1);
        assert_eq!((refused.remaining, refused.wait), (0, Wait::For(Duration::from_secs(9))));
        assert!(log.look(rate, at(14_000), 1).wait.is_none());
    }

    proptest! {
        /// Promise 1, on any traffic whose clock does not step back.
        #[test]
        fn no_window_ever_holds_more_than_the_limit(
            limit in 1u64..20,
            window_ms in 1u64..200,
            steps in proptest::collection::vec((0u64..50_000, 0u64..5), 1..300),
        ) {
            let rate = Rate::new(limit, Duration::from_millis(window_ms)).expect("a valid rate");
            let mut log = SlidingLog::default();
            let mut now = at(0);
            let mut history: Vec<(Timestamp, u64)> = Vec::new();
            for (step, cost) in steps {
                now = now + Duration::from_micros(step);
                if log.decide(rate, now, cost).wait.is_none() {
                    history.push((now, cost));
                }
                let in_window: u64 = history
                    .iter()
                    .filter(|(time, _)| *time + rate.window() > now)
                    .map(|(_, cost)| cost)
                    .sum();
                prop_assert!(in_window <= limit);
            }
        }

        /// What was charged and not given back never exceeds the limit.
        #[test]
        fn what_is_given_back_lets_no_more_through(
            limit in 1u64..20,
            steps in proptest::collection::vec((0u64..3_000, 1u64..5, 0usize..8), 1..200),
        ) {
            let rate = Rate::new(limit, Duration::from_millis(20)).expect("a valid rate");
            let (mut log, mut now) = (SlidingLog::default(), at(0));
            let mut charged: Vec<(Timestamp, u64)> = Vec::new();
            for (step, cost, back) in steps {
                now = now + Duration::from_micros(step);
                // One of the last three charges is given back, if at all.
                if back < 3 && back < charged.len() {
                    let (time, cost) = charged.remove(charged.len() - 1 - back);
                    log.refund(rate, now, cost, time);
                } else if log.decide(rate, now, cost).wait.is_none() {
                    charged.push((now, cost));
                }
                let within = charged.iter().filter(|(time, _)| *time + rate.window() > now);
                let recorded = limit - log.look(rate, now, 0).remaining;
                prop_assert_eq!(within.map(|(_, cost)| cost).sum::<u64>(), recorded);
            }
        }

        /// Promise 5: at the wait it is admitted, a microsecond earlier not;
        /// and promise 4: the refusal left no trace.
        #[test]
        fn the_wait_is_exact_and_a_refusal_changes_nothing(
            limit in 1u64..10,
            steps in proptest::collection::vec((0u64..3_000, 1u64..4), 1..60),
            cost in 1u64..10,
        ) {
            let rate = Rate::new(limit, Duration::from_millis(10)).expect("a valid rate");
            let mut log = SlidingLog::default();
            let mut now = at(0);
            for (step, cost) in steps {
                now = now + Duration::from_micros(step);
                log.decide(rate, now, cost);
            }
            let before = log.clone();
            if let Wait::For(wait) = log.decide(rate, now, cost).wait {
                prop_assert!(wait > Duration::ZERO && wait <= rate.window());
                prop_assert_eq!(&log, &before);
                let early = now + (wait - Duration::from_micros(1));
                prop_assert!(!log.look(rate, early, cost).wait.is_none());
                prop_assert!(log.look(rate, now + wait, cost).wait.is_none());
            }
        }
    }
}
