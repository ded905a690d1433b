//! The sliding counter: an estimate of the sliding log from two counts.
//!
//! Time is cut into windows, aligned to the Unix epoch. What was admitted in
//! the current one counts in full; what was admitted in the previous one counts
//! by the share of it that the last window's length still overlaps, rounded up.
//! A request passes if this estimate and its cost are within the limit.
//!
//! **Guarantee.** An estimate. It is exact where traffic is even. It takes the
//! previous window's requests to have been spread evenly over it: where they
//! came late, up to twice the limit passes in the span of one window; where
//! they came early, requests are refused that the log would admit. No aligned
//! window ever holds more than the limit. **Memory.** Three numbers.
//! **Not when** a limit must be kept to the unit. `docs/algorithms.md` has the
//! error measured.
//!
//! ```
//! use std::time::Duration;
//! use weir_core::algorithm::Ledger;
//! use weir_core::algorithm::sliding_counter::SlidingCounter;
//! use weir_core::decision::Wait;
//! use weir_core::{Rate, Timestamp};
//!
//! let rate: Rate = "10/60s".parse().unwrap();
//! let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
//! let mut counter = SlidingCounter::default();
//!
//! assert_eq!(counter.decide(rate, at(50), 10).remaining, 0);
//! // 6 s into the next window, 54/60 of the 10 still count: one place is free.
//! assert_eq!(counter.decide(rate, at(66), 1).remaining, 0);
//! // The next is free when 48/60 of them do, 6 s later.
//! assert_eq!(counter.decide(rate, at(66), 1).wait, Wait::For(Duration::from_secs(6)));
//! assert_eq!(counter.decide(rate, at(72), 1).wait, Wait::None);
//! ```

use std::time::Duration;

use super::{Ledger, clock_skew};
use crate::decision::{Standing, Wait};
use crate::rate::MAX_LIMIT;
use crate::time::micros;
use crate::{Rate, Timestamp};

/// Units admitted in a window and in the one before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingCounter {
    /// Where the current window begins.
    start: Timestamp,
    current: u64,
    previous: u64,
}

impl SlidingCounter {
    pub(super) fn write(&self, words: &mut Vec<u64>) {
        words.extend([self.start.as_micros(), self.current, self.previous]);
    }

    pub(super) fn read(words: &[u64]) -> Option<Self> {
        let &[start, current, previous] = words else { return None };
        Some(Self { start: Timestamp::from_micros(start), current, previous })
    }

    /// The counts as they stand at `now`.
    fn at(&self, rate: Rate, now: Timestamp) -> Self {
        let window = micros(rate.window());
        let start = Timestamp::from_micros(now.as_micros() - now.as_micros() % window);
        if self.start > now + clock_skew(rate.window()) {
            Self { start, current: 0, previous: 0 }
        } else if start <= self.start {
            self.clone()
        } else if start == self.start + rate.window() {
            Self { start, current: 0, previous: self.current }
        } else {
            Self { start, current: 0, previous: 0 }
        }
    }
}

impl Ledger for SlidingCounter {
    type Terms = Rate;

    fn look(&self, rate: Rate, now: Timestamp, cost: u64) -> Standing {
        let Self { start, current, previous } = self.at(rate, now);
        let (limit, window) = (u128::from(rate.limit()), rate.window().as_micros());
        // A clock that stepped back behind the window is taken to be at its start.
        let into_window = now.since(start);
        let behind = start.since(now);
        let overlap = window - into_window.as_micros();

        let current = u128::from(current);
        // A limit that was lowered meanwhile is not held against it for longer.
        let previous = u128::from(previous).min(limit);
        let estimate = current + (previous * overlap).div_ceil(window);

        // Until no more than `room` of `previous` overlap, in microseconds.
        let until_overlap = |previous: u128, overlap: u128, room: u128| {
            if previous <= room { 0 } else { overlap - room * window / previous }
        };
        let longest = rate.window() * 2;
        let from_now = |span: u128| (behind + span_of(span)).min(longest);
        let remaining = limit.saturating_sub(estimate) as u64;
        let wait = Wait::of(cost, rate.limit(), remaining, || {
            let cost = u128::from(cost);
            if current + cost <= limit {
                return from_now(until_overlap(previous, overlap, limit - current - cost));
            }
            // Not in this window; in the next its own count is the previous one.
            from_now(overlap + until_overlap(current.min(limit), window, limit - cost))
        });
        let reset = match (current, previous) {
            (0, 0) => Duration::ZERO,
            (0, _) => from_now(overlap),
            _ => from_now(overlap + window),
        };
        Standing { limit: rate.limit(), remaining, wait, reset }
    }

    fn charge(&mut self, rate: Rate, now: Timestamp, cost: u64) {
        *self = self.at(rate, now);
        self.current = (self.current + cost).min(MAX_LIMIT);
    }

    fn refund(&mut self, rate: Rate, now: Timestamp, cost: u64, charged_at: Timestamp) {
        let mut counter = self.at(rate, now);
        let end = counter.start + rate.window();
        let count = if (counter.start..end).contains(&charged_at) {
            &mut counter.current
        } else if charged_at < counter.start && charged_at + rate.window() >= counter.start {
            &mut counter.previous
        } else {
            return;
        };
        if *count > 0 {
            *count = count.saturating_sub(cost);
            *self = counter;
        }
    }

    fn expires(&self, rate: Rate) -> Option<Timestamp> {
        match (self.current, self.previous) {
            (0, 0) => None,
            (0, _) => Some(self.start + rate.window()),
            _ => Some(self.start + rate.window() * 2),
        }
    }
}

/// Spans here are at most two windows.
fn span_of(micros: u128) -> Duration {
    Duration::from_micros(micros as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().expect(text)
    }

    /// A window of 10 s, of 60 s and of 1 h begin at 0.
    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000 + millis * 1_000)
    }

    fn passed(counter: &mut SlidingCounter, rate: Rate, now: Timestamp, attempts: usize) -> usize {
        (0..attempts).filter(|_| counter.decide(rate, now, 1).wait.is_none()).count()
    }

    /// C06: the quota is not there again at the start of the next window.
    #[test]
    fn a_burst_across_a_window_boundary_is_refused() {
        let (rate, mut counter) = (rate("10/60s"), SlidingCounter::default());
        assert_eq!(passed(&mut counter, rate, at(59_900), 10), 10);
        assert_eq!(passed(&mut counter, rate, at(60_100), 10), 0);
    }

    /// C07: what remains is of the limit, less both windows' shares.
    #[test]
    fn remaining_counts_the_previous_window_too() {
        let (rate, mut counter) = (rate("10/60s"), SlidingCounter::default());
        assert_eq!(passed(&mut counter, rate, at(0), 10), 10);
        let standing = counter.decide(rate, at(66_000), 1);
        assert_eq!((standing.wait, standing.remaining), (Wait::None, 0));
    }

    /// C07: a previous count above the limit is capped.
    #[test]
    fn a_lowered_limit_is_not_held_against_a_client_for_longer_than_a_window() {
        let mut counter = SlidingCounter::default();
        assert_eq!(passed(&mut counter, rate("100/60s"), at(0), 100), 100);
        let refused = counter.decide(rate("10/60s"), at(30_000), 1);
        assert_eq!((refused.remaining, refused.wait), (0, Wait::For(Duration::from_secs(36))));
        assert!(counter.look(rate("10/60s"), at(66_000), 1).wait.is_none());
        // And raised again, all of it counts: 90 of 100 at 6 s.
        assert_eq!(counter.look(rate("100/60s"), at(66_000), 1).remaining, 10);
    }

    /// C08: 1 hit at 0:00, 8 at 0:59, then many at 1:01: one more passes.
    #[test]
    fn the_history_outlives_the_first_window() {
        let (rate, mut counter) = (rate("10/1h"), SlidingCounter::default());
        let minute = 60_000;
        assert_eq!(passed(&mut counter, rate, at(0), 1), 1);
        assert_eq!(passed(&mut counter, rate, at(59 * minute), 8), 8);
        assert_eq!(passed(&mut counter, rate, at(61 * minute), 10), 1);
    }

    /// One a window, as the estimate has it: what came at the start of a window
    /// counts to the end of the next.
    #[test]
    fn a_wait_may_reach_into_the_window_after_next() {
        let (rate, mut counter) = (rate("1/10s"), SlidingCounter::default());
        assert_eq!(passed(&mut counter, rate, at(0), 1), 1);
        let refused = counter.decide(rate, at(0), 1);
        assert_eq!(refused.wait, Wait::For(Duration::from_secs(20)));
        assert_eq!(refused.reset, Duration::from_secs(20));
        assert!(!counter.look(rate, at(19_999), 1).wait.is_none());
        assert!(counter.look(rate, at(20_000), 1).wait.is_none());
    }

    /// The worst of traffic, one way: all at the end of a window, and all that is
    /// admitted in the next.
    #[test]
    fn the_span_of_a_window_holds_less_than_twice_the_limit() {
        let (rate, mut counter) = (rate("10/10s"), SlidingCounter::default());
        let last = |window: u64| Timestamp::from_micros(at(window * 10_000).as_micros() - 1);
        assert_eq!(passed(&mut counter, rate, last(1), 20), 10);
        let next = (10_000..20_000).map(|millis| passed(&mut counter, rate, at(millis), 1));
        assert_eq!(next.sum::<usize>(), 9, "nineteen in less than ten seconds");
        assert_eq!(passed(&mut counter, rate, last(2), 1), 0);
    }

    /// And the other way: all at the start of a window still counts in full a
    /// window later, when the last window's length holds none of it.
    #[test]
    fn a_client_may_be_refused_though_its_window_is_empty() {
        let (rate, mut counter) = (rate("10/10s"), SlidingCounter::default());
        assert_eq!(passed(&mut counter, rate, at(0), 10), 10);
        assert_eq!(passed(&mut counter, rate, at(10_000), 10), 0);
        assert_eq!(passed(&mut counter, rate, at(11_000), 10), 1);
    }

    /// C29.
    #[test]
    fn a_clock_that_steps_back_moves_nothing() {
        let (rate, mut counter) = (rate("10/60s"), SlidingCounter::default());
        assert_eq!(passed(&mut counter, rate, at(0), 10), 10);
        assert_eq!(passed(&mut counter, rate, at(66_000), 1), 1);
        let stood = counter.clone();
        // Behind the window: as at its start, when the previous 10 all count.
        let refused = counter.decide(rate, at(59_800), 1);
        assert_eq!((refused.remaining, &counter), (0, &stood));
        assert_eq!(refused.wait, Wait::For(Duration::from_millis(12_200)));
        // Waits end at two windows, however far the clock is behind.
        let full = counter.look(rate, at(1_000), 10);
        assert_eq!(full.wait, Wait::For(Duration::from_secs(120)));
        // More than a minute behind it: a clock that was reset.
        assert_eq!(counter.look(rate, at(0), 10).remaining, 0, "60 s still counts");
        assert!(counter.look(rate, at(0), 10).wait != Wait::None);
        let before = Timestamp::from_micros(at(0).as_micros() - 1);
        assert_eq!(counter.look(rate, before, 10).wait, Wait::None);
    }

    /// C27.
    #[test]
    fn the_largest_limit_is_exact() {
        let (rate, mut counter) = (rate("9007199254740991/366d"), SlidingCounter::default());
        let now = Timestamp::from_micros(1_824_192_940_134_586);
        let all = 9_007_199_254_740_991;
        assert_eq!(counter.decide(rate, now, all - 1).remaining, 1);
        assert!(!counter.look(rate, now, 2).wait.is_none());
        assert_eq!(counter.decide(rate, now, 1).remaining, 0);
    }

    #[test]
    fn what_is_given_back_is_taken_from_its_own_window() {
        let (rate, mut counter) = (rate("10/60s"), SlidingCounter::default());
        assert_eq!(passed(&mut counter, rate, at(59_000), 6), 6);
        assert_eq!(passed(&mut counter, rate, at(60_000), 4), 4);
        counter.refund(rate, at(60_000), 1, at(59_000));
        counter.refund(rate, at(60_000), 2, at(60_000));
        assert_eq!((counter.previous, counter.current), (5, 2));
        counter.refund(rate, at(60_000), 9, at(0));
        counter.refund(rate, at(60_000), 9, at(119_999));
        assert_eq!((counter.previous, counter.current), (0, 0), "and no less than nothing");
        assert_eq!(counter.expires(rate), None);

        // Of a window that no more counts, or has not come.
        assert_eq!(passed(&mut counter, rate, at(60_000), 4), 4);
        let stood = counter.clone();
        counter.refund(rate, at(180_000), 4, at(60_000));
        counter.refund(rate, at(60_000), 4, at(120_000));
        counter.refund(rate, at(60_000), 4, Timestamp::from_micros(at(0).as_micros() - 1));
        assert_eq!(counter, stood);
        // The previous window, though nothing was charged in this one.
        counter.refund(rate, at(120_000), 1, at(60_000));
        assert_eq!((counter.previous, counter.current), (3, 0));
    }

    #[test]
    fn a_count_beyond_the_limit_is_waited_for() {
        let (rate, mut counter) = (rate("10/60s"), SlidingCounter::default());
        counter.charge(rate, at(0), 30);
        let refused = counter.look(rate, at(0), 1);
        // As if the limit had been lowered: ten of them, down to nine.
        assert_eq!((refused.remaining, refused.wait), (0, Wait::For(Duration::from_secs(66))));
        counter.charge(rate, at(0), MAX_LIMIT);
        assert_eq!(counter.current, MAX_LIMIT);
    }
}
