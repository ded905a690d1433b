//! The token bucket: bursts up to `burst`, and beyond them a steady rate.
//!
//! A bucket of `burst` tokens refills evenly, `limit` tokens in a window. A
//! request takes its cost in tokens, or is refused. Kept is what is missing
//! from the bucket, which is the "continuous-state leaky bucket" form of the
//! generic cell rate algorithm (ITU-T I.371, annex A), equivalent to the form
//! that keeps a theoretical arrival time. It alone can tell a clock that
//! stepped back from a client in debt, and keeps what a client has used where
//! the rate changes.
//!
//! What is charged afterwards may be more than is in the bucket. It is then in
//! debt, and the debt is refilled before anything passes.
//!
//! **Guarantee.** In any span of time no more is admitted than `burst` and what
//! the rate refills in that span. **Memory.** Three numbers; four in debt.
//! **Not when** "N in any window" must hold: a full bucket and a window's refill
//! are `burst + limit`.
//!
//! ```
//! use std::time::Duration;
//! use weir_core::algorithm::Ledger;
//! use weir_core::algorithm::token_bucket::TokenBucket;
//! use weir_core::decision::Wait;
//! use weir_core::Timestamp;
//! use weir_core::limit::BucketRate;
//!
//! // 10 a second, and up to 40 at once.
//! let terms = BucketRate::new("10/1s".parse().unwrap(), 40).unwrap();
//! let at = |millis: u64| Timestamp::from_micros(millis * 1_000);
//! let mut bucket = TokenBucket::default();
//!
//! assert_eq!(bucket.decide(terms, at(0), 40).remaining, 0);
//! // A token comes every 100 ms: three in 300 ms.
//! assert_eq!(bucket.decide(terms, at(0), 3).wait, Wait::For(Duration::from_millis(300)));
//! assert_eq!(bucket.decide(terms, at(300), 3).wait, Wait::None);
//! ```

use std::time::Duration;

use super::{Ledger, clock_skew};
use crate::Timestamp;
use crate::decision::{Standing, Wait};
use crate::limit::BucketRate;
use crate::rate::{MAX_LIMIT, MAX_WINDOW};

/// What is missing from the bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBucket {
    /// When it was so.
    at: Timestamp,
    /// In tokens times the window's microseconds: of these, a whole token has
    /// the window's microseconds and a microsecond refills the limit. Whole
    /// numbers, so nothing is ever rounded.
    missing: u128,
    /// By how many tokens, rounded up, that is more than the burst because it was
    /// charged beyond it; not what was used under a larger burst.
    debt: u64,
}

impl TokenBucket {
    /// The debt, in tokens, rounded up, as of when the bucket was charged last.
    pub fn debt(&self) -> u64 {
        self.debt
    }

    pub(super) fn write(&self, words: &mut Vec<u64>) {
        let (low, high) = (self.missing as u64, (self.missing >> 64) as u64);
        words.extend([self.at.as_micros(), low, high, self.debt]);
    }

    pub(super) fn read(words: &[u64]) -> Option<Self> {
        let &[at, low, high, debt] = words else { return None };
        let missing = u128::from(high) << 64 | u128::from(low);
        Some(Self { at: Timestamp::from_micros(at), missing, debt })
    }

    /// What is missing at `now` of a bucket of which at most `size` was missing.
    fn missing_at(&self, terms: BucketRate, now: Timestamp, size: u128) -> u128 {
        if self.is_of_another_clock(terms, now) {
            return 0;
        }
        self.missing.min(size).saturating_sub(refilled(terms, now.since(self.at)))
    }

    /// Burst and debt, in tokens: no more is held against a client. A burst that
    /// was lowered meanwhile, by another plan for example, is not held against it
    /// for longer than the new one takes to refill.
    fn held(&self, terms: BucketRate, now: Timestamp) -> u64 {
        let debt = if self.is_of_another_clock(terms, now) { 0 } else { self.debt };
        (terms.burst() + debt).min(MAX_LIMIT)
    }

    fn is_of_another_clock(&self, terms: BucketRate, now: Timestamp) -> bool {
        self.at > now + clock_skew(terms.refill())
    }
}

impl Ledger for TokenBucket {
    type Terms = BucketRate;

    fn look(&self, terms: BucketRate, now: Timestamp, cost: u64) -> Standing {
        let (rate, burst) = (terms.rate(), terms.burst());
        let window = rate.window().as_micros();
        let held = u128::from(self.held(terms, now)) * window;
        let missing = self.missing_at(terms, now, held);

        let behind = match self.is_of_another_clock(terms, now) {
            true => Duration::ZERO,
            false => self.at.since(now),
        };
        let longest = refill(terms, held).min(MAX_WINDOW);
        let until_refilled = |tokens: u128| (behind + refill(terms, tokens)).min(longest);
        let remaining = (size(terms).saturating_sub(missing) / window) as u64;
        let wait = Wait::of(cost, burst, remaining, || {
            until_refilled(u128::from(cost) * window + missing - size(terms))
        });
        let reset = if missing == 0 { Duration::ZERO } else { until_refilled(missing) };
        Standing { limit: burst, remaining, wait, reset }
    }

    fn charge(&mut self, terms: BucketRate, now: Timestamp, cost: u64) {
        let window = terms.rate().window().as_micros();
        let owed = self.missing_at(terms, now, u128::MAX);
        let missing = self.missing_at(terms, now, u128::from(self.held(terms, now)) * window);
        let cost = u128::from(cost) * window;

        self.at = if self.is_of_another_clock(terms, now) { now } else { self.at.max(now) };
        if missing + cost <= size(terms) {
            (self.missing, self.debt) = (owed + cost, 0);
        } else {
            // Into debt, but into none that takes longer than MAX_WINDOW to refill.
            let dearest = refilled(terms, MAX_WINDOW) / window;
            let dearest = dearest.min(u128::from(MAX_LIMIT)) * window;
            let more = |tokens: u128| (tokens + cost).min(dearest).max(tokens);
            self.missing = more(owed);
            self.debt = debt(terms, more(missing));
        }
    }

    /// What the rate has refilled since is not given back a second time: the
    /// bucket may have been full in between, and would then let more through than
    /// the burst and the refill.
    fn refund(&mut self, terms: BucketRate, now: Timestamp, cost: u64, charged_at: Timestamp) {
        if self.is_of_another_clock(terms, now) || charged_at > self.at {
            // Nothing that counts, or nothing that was charged here: a clock was set
            // back, and the record begun anew.
            return;
        }
        let window = terms.rate().window().as_micros();
        let since = self.at.max(now).since(charged_at);
        let back = (u128::from(cost) * window).saturating_sub(refilled(terms, since));
        if back > 0 {
            // As of when it was so: what is missing now follows from that.
            let held = self.missing.min(u128::from(self.held(terms, now)) * window);
            self.missing = self.missing.saturating_sub(back);
            self.debt = debt(terms, held.saturating_sub(back));
        }
    }

    fn expires(&self, terms: BucketRate) -> Option<Timestamp> {
        (self.missing > 0).then(|| self.at + refill(terms, self.missing).min(MAX_WINDOW))
    }
}

/// A whole bucket, as [`TokenBucket::missing`] counts.
fn size(terms: BucketRate) -> u128 {
    u128::from(terms.burst()) * terms.rate().window().as_micros()
}

/// By how many tokens this is more than a whole bucket, rounded up.
fn debt(terms: BucketRate, missing: u128) -> u64 {
    let window = terms.rate().window().as_micros();
    // At most MAX_LIMIT tokens are missing, so it fits.
    missing.saturating_sub(size(terms)).div_ceil(window) as u64
}

/// What the rate refills in this time.
fn refilled(terms: BucketRate, span: Duration) -> u128 {
    span.as_micros() * u128::from(terms.rate().limit())
}

/// How long the rate takes to refill this much: rounded up, since at a
/// microsecond earlier it is not there.
fn refill(terms: BucketRate, missing: u128) -> Duration {
    let micros = missing.div_ceil(u128::from(terms.rate().limit()));
    // A bucket refills within 366 days; only what was taken under a much larger
    // one can be more than fits.
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
