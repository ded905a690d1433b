//! One limit: the algorithm, and how much it allows.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::period::Period;
use crate::rate::{MAX_LIMIT, MAX_WINDOW, Rate, RateError, parse_limit};
use crate::{duration, time};

/// The most units that a log takes at once: it records each by itself, and a
/// store does nothing else meanwhile.
pub const MAX_LOG_COST: u64 = 10_000;

/// One limit of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// [`crate::algorithm::sliding_log`].
    SlidingLog(Rate),
    /// [`crate::algorithm::compact_log`].
    CompactLog(Rate),
    /// [`crate::algorithm::sliding_counter`].
    SlidingCounter(Rate),
    /// [`crate::algorithm::token_bucket`].
    TokenBucket(BucketRate),
    /// [`crate::algorithm::quota`].
    Quota(Quota),
}

impl Limit {
    /// The most units that it can ever hold, from 1 to [`MAX_LIMIT`].
    pub const fn capacity(&self) -> u64 {
        match self {
            Self::SlidingLog(rate) | Self::CompactLog(rate) | Self::SlidingCounter(rate) => {
                rate.limit()
            }
            Self::TokenBucket(terms) => terms.burst,
            Self::Quota(quota) => quota.limit,
        }
    }

    /// The part of it that each of so many edges (from 1) decides by itself: its
    /// numbers divided by theirs and rounded down, but at least 1.
    pub fn share(&self, edges: u64) -> Self {
        let part = |number: u64| (number / edges).max(1);
        match self {
            Self::SlidingLog(rate) => Self::SlidingLog(rate.with_limit(part(rate.limit()))),
            Self::CompactLog(rate) => Self::CompactLog(rate.with_limit(part(rate.limit()))),
            Self::SlidingCounter(rate) => Self::SlidingCounter(rate.with_limit(part(rate.limit()))),
            Self::Quota(quota) => {
                Self::Quota(Quota { limit: part(quota.limit), period: quota.period })
            }
            Self::TokenBucket(terms) => {
                let rate = terms.rate.with_limit(part(terms.rate.limit()));
                // Rounded down, the rate may no longer refill it in time.
                let longest = u128::from(time::micros(MAX_WINDOW)) * u128::from(rate.limit());
                let most = longest / rate.window().as_micros();
                let burst = part(terms.burst).min(u64::try_from(most).unwrap_or(u64::MAX));
                Self::TokenBucket(BucketRate { rate, burst })
            }
        }
    }

    /// The most units that one request may cost: one of more is refused, and
    /// told no wait.
    pub fn max_cost(&self) -> u64 {
        match self {
            Self::SlidingLog(_) | Self::CompactLog(_) => self.capacity().min(MAX_LOG_COST),
            Self::SlidingCounter(_) | Self::TokenBucket(_) | Self::Quota(_) => self.capacity(),
        }
    }

    /// The most units that may be charged at once after the fact, whether there
    /// is room or not.
    pub const fn max_charge(&self) -> u64 {
        match self {
            Self::SlidingLog(_) | Self::CompactLog(_) => MAX_LOG_COST,
            Self::SlidingCounter(_) | Self::TokenBucket(_) | Self::Quota(_) => MAX_LIMIT,
        }
    }

    /// How many entries of its own a store makes for a request of this cost.
    pub fn entries(&self, cost: u64) -> u64 {
        match self {
            Self::SlidingLog(_) | Self::CompactLog(_) if cost <= self.max_cost() => cost,
            _ => 0,
        }
    }

    /// How many entries a store makes or takes away at most, where so much is
    /// charged after the fact or given back.
    pub fn entries_afterwards(&self, cost: u64) -> u64 {
        match self {
            Self::SlidingLog(_) | Self::CompactLog(_) => cost.min(MAX_LOG_COST),
            Self::SlidingCounter(_) | Self::TokenBucket(_) | Self::Quota(_) => 0,
        }
    }

    /// The name under which the script and the keys know the algorithm.
    pub const fn tag(&self) -> &'static str {
        match self {
            Self::SlidingLog(_) => "log",
            Self::CompactLog(_) => "ring",
            Self::SlidingCounter(_) => "counter",
            Self::TokenBucket(_) => "bucket",
            Self::Quota(_) => "quota",
        }
    }

    /// `ALGORITHM:WINDOW`, by which the limits of a policy are told apart in
    /// keys. A limit with another window or algorithm starts clean under a key
    /// of its own; one with other numbers goes on counting.
    pub fn key_suffix(&self) -> String {
        let tag = self.tag();
        match self {
            Self::SlidingLog(rate) | Self::CompactLog(rate) | Self::SlidingCounter(rate) => {
                format!("{tag}:{}", duration::canonical(rate.window()))
            }
            Self::TokenBucket(terms) => {
                format!("{tag}:{}", duration::canonical(terms.rate.window()))
            }
            Self::Quota(quota) => format!("{tag}:{}", quota.period.word()),
        }
    }
}

/// A rate with bursts: `rate` refills a bucket of `burst` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketRate {
    rate: Rate,
    burst: u64,
}

/// Why a burst is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BurstError {
    /// Not in range.
    #[error("must be a whole number from 1 to 9007199254740991")]
    Range,
    /// A bucket that takes longer than [`MAX_WINDOW`] to refill.
    #[error("the rate must refill it within 366d")]
    TooSlow,
}

impl BucketRate {
    /// A bucket of `burst` tokens, from 1 to [`MAX_LIMIT`], which `rate` refills
    /// within [`MAX_WINDOW`].
    pub fn new(rate: Rate, burst: u64) -> Result<Self, BurstError> {
        if !(1..=MAX_LIMIT).contains(&burst) {
            return Err(BurstError::Range);
        }
        let longest = u128::from(time::micros(MAX_WINDOW)) * u128::from(rate.limit());
        if u128::from(burst) * rate.window().as_micros() > longest {
            return Err(BurstError::TooSlow);
        }
        Ok(Self { rate, burst })
    }

    /// What refills the bucket.
    pub const fn rate(self) -> Rate {
        self.rate
    }

    /// The bucket's size in tokens: what may be admitted at once.
    pub const fn burst(self) -> u64 {
        self.burst
    }

    /// How long an empty bucket takes to refill, rounded up to a microsecond.
    pub fn refill(self) -> Duration {
        let whole = u128::from(self.burst) * self.rate.window().as_micros();
        // At most MAX_WINDOW, so it fits.
        Duration::from_micros(whole.div_ceil(u128::from(self.rate.limit())) as u64)
    }
}

/// At most `limit` units in any one calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    limit: u64,
    period: Period,
}

/// Why a quota is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// Not of the form `N/PERIOD`.
    #[error("expected N/PERIOD, as in \"100000/month\"")]
    Form,
    /// N is not a whole number in range.
    #[error(transparent)]
    Limit(RateError),
    /// Not a period.
    #[error("the period of a quota must be hour, day or month")]
    Period,
}

impl Quota {
    /// Units per period, from 1 to [`MAX_LIMIT`].
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// The period.
    pub const fn period(self) -> Period {
        self.period
    }
}

/// Reads `"100000/month"`.
impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let (limit, period) = text.split_once('/').ok_or(QuotaError::Form)?;
        let limit = parse_limit(limit).map_err(QuotaError::Limit)?;
        let period = Period::ALL.into_iter().find(|known| known.word() == period);
        Ok(Self { limit, period: period.ok_or(QuotaError::Period)? })
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.limit, self.period.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_read_by_its_calendar_period() {
        let quota: Quota = "100000/month".parse().expect("a quota");
        assert_eq!((quota.limit(), quota.period()), (100_000, Period::Month));
        assert_eq!(quota.to_string(), "100000/month");
        for (text, message) in [
            ("5", "expected N/PERIOD, as in \"100000/month\""),
            ("0/day", "the limit must be a whole number from 1 to 9007199254740991"),
            ("5/1h", "the period of a quota must be hour, day or month"),
            ("5/year", "the period of a quota must be hour, day or month"),
        ] {
            let error = text.parse::<Quota>().expect_err(text).to_string();
            assert_eq!(error, message, "{text}");
        }
    }

    #[test]
    fn a_bucket_must_refill_within_the_longest_window() {
        let rate = |text: &str| text.parse::<Rate>().expect(text);
        assert_eq!(BucketRate::new(rate("1/s"), 0), Err(BurstError::Range));
        assert_eq!(BucketRate::new(rate("1/s"), MAX_LIMIT + 1), Err(BurstError::Range));
        assert_eq!(BucketRate::new(rate("1/366d"), 2), Err(BurstError::TooSlow));
        let slowest = BucketRate::new(rate("1/366d"), 1).expect("a year's token");
        assert_eq!(slowest.refill(), MAX_WINDOW);
        let fastest = BucketRate::new(rate("9007199254740991/1ms"), 1).expect("a fast bucket");
        assert_eq!(fastest.refill(), Duration::from_micros(1));
    }

    #[test]
    fn a_share_is_a_part_of_every_number_and_never_nothing() {
        let rate = |text: &str| text.parse::<Rate>().expect(text);
        let bucket =
            |text, burst| Limit::TokenBucket(BucketRate::new(rate(text), burst).expect("a bucket"));
        let quota = |text: &str| Limit::Quota(text.parse().expect("a quota"));
        for (limit, edges, share) in [
            (Limit::SlidingLog(rate("100/1m")), 1, Limit::SlidingLog(rate("100/1m"))),
            (Limit::SlidingLog(rate("100/1m")), 3, Limit::SlidingLog(rate("33/1m"))),
            (Limit::CompactLog(rate("5/1m")), 8, Limit::CompactLog(rate("1/1m"))),
            (Limit::SlidingCounter(rate("9/1s")), 2, Limit::SlidingCounter(rate("4/1s"))),
            (bucket("10/1s", 40), 4, bucket("2/1s", 10)),
            (quota("100000/month"), 10, quota("10000/month")),
            // Seven in 5/3 of a window, and two in two windows: too long by now.
            (bucket("5/230d", 7), 3, bucket("1/230d", 1)),
        ] {
            assert_eq!(limit.share(edges), share, "{limit:?} by {edges}");
            assert_eq!(share.key_suffix(), limit.key_suffix());
        }
    }

    #[test]
    fn keys_tell_limits_apart_by_algorithm_and_window_alone() {
        let rate: Rate = "100/60s".parse().expect("a rate");
        let bucket = |burst| BucketRate::new(rate, burst).expect("a bucket");
        for (limit, suffix) in [
            (Limit::SlidingLog(rate), "log:1m"),
            (Limit::CompactLog(rate), "ring:1m"),
            (Limit::SlidingCounter(rate), "counter:1m"),
            (Limit::TokenBucket(bucket(5)), "bucket:1m"),
            (Limit::TokenBucket(bucket(500)), "bucket:1m"),
            (Limit::Quota("100/day".parse().expect("a quota")), "quota:day"),
        ] {
            assert_eq!(limit.key_suffix(), suffix);
        }
    }
}
