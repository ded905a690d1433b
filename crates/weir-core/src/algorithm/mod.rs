//! The algorithms, as pure functions of state, time and cost: the reference
//! that every store is tested against, and the page to choose from.
//!
//! | | guarantee | memory for each client | not when |
//! |---|---|---|---|
//! | [`sliding_log`] | exact: no span of one window holds more than the limit | an entry for each admitted unit | limits above some thousands and many clients |
//! | [`compact_log`] | the same, bit for bit | 8 to 9 bytes for each admitted unit | people or other tools read the log |
//! | [`sliding_counter`] | an estimate, off in both directions | three numbers | a provider's limit must be kept to the unit |
//! | [`token_bucket`] | bursts up to `burst`, beyond them a steady rate | three numbers | "N in any window" must hold: a full bucket and its refill are more |
//! | [`quota`] | a total for each calendar period, UTC | two numbers | a rate is meant: all of it may be spent in one second |
//!
//! What holds for all. A request is charged under each of its limits or under
//! none ([`decide`]). A cost of 0 looks and charges nothing, and is never
//! refused. A refusal changes nothing. Waits are exact: [`Wait::For`](crate::decision::Wait) is the first
//! microsecond at which the same cost is admitted if nobody else comes.
//!
//! The clock may step back. State then stands still until the clock has caught
//! up: nothing is refilled and nothing is lost. State further ahead than the
//! limit's own span (its window, time to refill or period; at least 1 s, at most
//! 60 s) was written by a clock that has since been set back, and counts no
//! more: that costs at most one extra quota, and nobody is locked out for
//! longer. While the clock is behind its state, waits are cut to the longest
//! that the limit can ask for.
//!
//! What a request costs may be known only afterwards ([`charge_afterwards`]),
//! and what it was charged may turn out not to be due ([`give_back`]). Charging
//! afterwards finds no room and refuses nothing: counts may then be above the
//! limit, and a bucket in debt. Giving back leaves no less recorded than if those
//! units had never been charged, so that no guarantee is lost by it; of a bucket
//! this holds as long as its rate and burst stay the same, and of counts that have
//! not come to the end of their numbers.

use std::time::Duration;

use crate::decision::{Standing, Verdict, Wait};
use crate::{Limit, Timestamp};

pub mod compact_log;
pub mod quota;
pub mod sliding_counter;
pub mod sliding_log;
pub mod token_bucket;

use quota::QuotaCounter;
use sliding_counter::SlidingCounter;
use sliding_log::SlidingLog;
use token_bucket::TokenBucket;

/// How far the state of a limit of this span may be ahead of the clock before
/// the clock is taken to have been set back.
fn clock_skew(span: Duration) -> Duration {
    span.clamp(Duration::from_secs(1), Duration::from_secs(60))
}

/// What one limit has recorded of one client. The default is a client that was
/// never seen.
pub trait Ledger: Default {
    /// What the limit allows.
    type Terms: Copy;

    /// Where the limit stands at `now` for a request of `cost` units, before
    /// it is charged. Changes nothing.
    fn look(&self, terms: Self::Terms, now: Timestamp, cost: u64) -> Standing;

    /// Records `cost` units at `now`, whether [`look`](Self::look) finds room for
    /// them or not.
    fn charge(&mut self, terms: Self::Terms, now: Timestamp, cost: u64);

    /// Gives back, at `now`, what of `cost` units that were charged at
    /// `charged_at` is still recorded. Nothing goes below zero, and what has left,
    /// was refilled or is of another period stays as it is.
    fn refund(&mut self, terms: Self::Terms, now: Timestamp, cost: u64, charged_at: Timestamp);

    /// From when on what is recorded says nothing more; `None` if nothing is
    /// recorded.
    fn expires(&self, terms: Self::Terms) -> Option<Timestamp>;

    /// [`look`](Self::look), and if there is room [`charge`](Self::charge):
    /// the decision of a policy with this one limit. Returns the standing
    /// after it.
    fn decide(&mut self, terms: Self::Terms, now: Timestamp, cost: u64) -> Standing {
        let before = self.look(terms, now, cost);
        if !before.wait.is_none() || cost == 0 {
            return before;
        }
        self.charge(terms, now, cost);
        Standing { wait: Wait::None, ..self.look(terms, now, 0) }
    }
}

/// The ledger of a limit of any algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Of a sliding or a compact log.
    Log(SlidingLog),
    /// Of a sliding counter.
    Counter(SlidingCounter),
    /// Of a token bucket.
    Bucket(TokenBucket),
    /// Of a quota.
    Quota(QuotaCounter),
}

impl State {
    /// The state of a client that was never seen.
    pub fn new(limit: &Limit) -> Self {
        match limit {
            Limit::SlidingLog(_) | Limit::CompactLog(_) => Self::Log(SlidingLog::default()),
            Limit::SlidingCounter(_) => Self::Counter(SlidingCounter::default()),
            Limit::TokenBucket(_) => Self::Bucket(TokenBucket::default()),
            Limit::Quota(_) => Self::Quota(QuotaCounter::default()),
        }
    }

    /// Appends what a store must keep of it.
    pub fn write(&self, words: &mut Vec<u64>) {
        match self {
            Self::Log(log) => log.write(words),
            Self::Counter(counter) => counter.write(words),
            Self::Bucket(bucket) => bucket.write(words),
            Self::Quota(counter) => counter.write(words),
        }
    }

    /// What [`write`](Self::write) wrote of a state of this limit; `None` for what
    /// it cannot have written.
    pub fn read(limit: &Limit, words: &[u64]) -> Option<Self> {
        match limit {
            Limit::SlidingLog(_) | Limit::CompactLog(_) => SlidingLog::read(words).map(Self::Log),
            Limit::SlidingCounter(_) => SlidingCounter::read(words).map(Self::Counter),
            Limit::TokenBucket(_) => TokenBucket::read(words).map(Self::Bucket),
            Limit::Quota(_) => QuotaCounter::read(words).map(Self::Quota),
        }
    }

    /// [`Ledger::look`].
    ///
    /// # Panics
    ///
    /// If the limit is of another algorithm than the state.
    pub fn look(&self, limit: &Limit, now: Timestamp, cost: u64) -> Standing {
        match (self, limit) {
            (Self::Log(log), Limit::SlidingLog(rate) | Limit::CompactLog(rate)) => {
                log.look(*rate, now, cost)
            }
            (Self::Counter(counter), Limit::SlidingCounter(rate)) => counter.look(*rate, now, cost),
            (Self::Bucket(bucket), Limit::TokenBucket(terms)) => bucket.look(*terms, now, cost),
            (Self::Quota(counter), Limit::Quota(quota)) => counter.look(*quota, now, cost),
            _ => mismatch(limit),
        }
    }

    /// [`Ledger::charge`].
    ///
    /// # Panics
    ///
    /// If the limit is of another algorithm than the state.
    pub fn charge(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        match (self, limit) {
            (Self::Log(log), Limit::SlidingLog(rate) | Limit::CompactLog(rate)) => {
                log.charge(*rate, now, cost);
            }
            (Self::Counter(counter), Limit::SlidingCounter(rate)) => {
                counter.charge(*rate, now, cost);
            }
            (Self::Bucket(bucket), Limit::TokenBucket(terms)) => bucket.charge(*terms, now, cost),
            (Self::Quota(counter), Limit::Quota(quota)) => counter.charge(*quota, now, cost),
            _ => mismatch(limit),
        }
    }

    /// [`Ledger::refund`].
    ///
    /// # Panics
    ///
    /// If the limit is of another algorithm than the state.
    pub fn refund(&mut self, limit: &Limit, now: Timestamp, cost: u64, charged_at: Timestamp) {
        match (self, limit) {
            (Self::Log(log), Limit::SlidingLog(rate) | Limit::CompactLog(rate)) => {
                log.refund(*rate, now, cost, charged_at);
            }
            (Self::Counter(counter), Limit::SlidingCounter(rate)) => {
                counter.refund(*rate, now, cost, charged_at);
            }
            (Self::Bucket(bucket), Limit::TokenBucket(terms)) => {
                bucket.refund(*terms, now, cost, charged_at);
            }
            (Self::Quota(counter), Limit::Quota(quota)) => {
                counter.refund(*quota, now, cost, charged_at);
            }
            _ => mismatch(limit),
        }
    }

    /// [`Ledger::expires`].
    ///
    /// # Panics
    ///
    /// If the limit is of another algorithm than the state.
    pub fn expires(&self, limit: &Limit) -> Option<Timestamp> {
        match (self, limit) {
            (Self::Log(log), Limit::SlidingLog(rate) | Limit::CompactLog(rate)) => {
                log.expires(*rate)
            }
            (Self::Counter(counter), Limit::SlidingCounter(rate)) => counter.expires(*rate),
            (Self::Bucket(bucket), Limit::TokenBucket(terms)) => bucket.expires(*terms),
            (Self::Quota(counter), Limit::Quota(quota)) => counter.expires(*quota),
            _ => mismatch(limit),
        }
    }
}

fn mismatch(limit: &Limit) -> ! {
    panic!("the state is not one of {limit:?}")
}

/// Decides a request under several limits, `states[i]` being what `limits[i]`
/// has recorded: looks at all, and charges all if each has room, else none.
///
/// ```
/// use weir_core::algorithm::{State, decide};
/// use weir_core::{Limit, Timestamp};
///
/// let limits = ["5/10s", "2/1s"].map(|rate| Limit::SlidingLog(rate.parse().unwrap()));
/// let mut states = limits.each_ref().map(State::new);
/// let now = Timestamp::from_micros(0);
///
/// assert!(decide(&limits, &mut states, now, 2).allowed);
/// let refused = decide(&limits, &mut states, now, 1);
/// assert!(!refused.allowed);
/// assert_eq!(refused.limits[0].remaining, 3, "the first limit was not charged");
/// ```
///
/// # Panics
///
/// If a state is of another algorithm than its limit.
pub fn decide(limits: &[Limit], states: &mut [State], now: Timestamp, cost: u64) -> Verdict {
    let before: Vec<Standing> =
        limits.iter().zip(&*states).map(|(limit, state)| state.look(limit, now, cost)).collect();
    let allowed = before.iter().all(|standing| standing.wait.is_none());
    if !allowed || cost == 0 {
        return Verdict { allowed, limits: before };
    }
    for (limit, state) in limits.iter().zip(states.iter_mut()) {
        state.charge(limit, now, cost);
    }
    standings(limits, states, now)
}

/// Charges, at `now`, a request that has passed the `cost` units (1 to
/// [`MAX_LIMIT`](crate::rate::MAX_LIMIT)) that it was found to cost, whether there
/// is room or not. The verdict is never a refusal, and tells where the limits
/// stand afterwards. `None` if a limit cannot record so much at once
/// ([`Limit::max_charge`]): then nothing is charged.
///
/// ```
/// use std::time::Duration;
/// use weir_core::algorithm::{State, charge_afterwards, decide};
/// use weir_core::decision::Wait;
/// use weir_core::{Limit, Timestamp};
///
/// let limits = [Limit::SlidingLog("5/10s".parse().unwrap())];
/// let mut states = limits.each_ref().map(State::new);
/// let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
///
/// assert!(decide(&limits, &mut states, at(0), 1).allowed);
/// let charged = charge_afterwards(&limits, &mut states, at(1), 7).unwrap();
/// assert_eq!(charged.limits[0].remaining, 0);
/// // Eight are recorded, and all but four of them must leave.
/// let refused = decide(&limits, &mut states, at(2), 1);
/// assert_eq!(refused.limits[0].wait, Wait::For(Duration::from_secs(9)));
/// ```
///
/// # Panics
///
/// If a state is of another algorithm than its limit.
pub fn charge_afterwards(
    limits: &[Limit],
    states: &mut [State],
    now: Timestamp,
    cost: u64,
) -> Option<Verdict> {
    if limits.iter().any(|limit| cost > limit.max_charge()) {
        return None;
    }
    for (limit, state) in limits.iter().zip(states.iter_mut()) {
        state.charge(limit, now, cost);
    }
    Some(standings(limits, states, now))
}

/// Gives back, at `now`, what of `cost` units (from 1) that were charged at
/// `charged_at` is still recorded ([`Ledger::refund`]). The verdict is never a
/// refusal, and tells where the limits stand afterwards.
///
/// ```
/// use weir_core::algorithm::{State, decide, give_back};
/// use weir_core::{Limit, Timestamp};
///
/// let limits = [Limit::SlidingLog("2/10s".parse().unwrap())];
/// let mut states = limits.each_ref().map(State::new);
/// let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
///
/// assert!(decide(&limits, &mut states, at(0), 1).allowed);
/// assert!(decide(&limits, &mut states, at(4), 1).allowed);
/// let given = give_back(&limits, &mut states, at(5), 1, at(0));
/// assert_eq!(given.limits[0].remaining, 1);
/// // Once: that of second 4 is another's.
/// let again = give_back(&limits, &mut states, at(5), 1, at(0));
/// assert_eq!(again.limits[0].remaining, 1);
/// ```
///
/// # Panics
///
/// If a state is of another algorithm than its limit.
pub fn give_back(
    limits: &[Limit],
    states: &mut [State],
    now: Timestamp,
    cost: u64,
    charged_at: Timestamp,
) -> Verdict {
    for (limit, state) in limits.iter().zip(states.iter_mut()) {
        state.refund(limit, now, cost, charged_at);
    }
    standings(limits, states, now)
}

/// What is told of a request that was admitted: where its limits stand, and no
/// wait.
fn standings(limits: &[Limit], states: &[State], now: Timestamp) -> Verdict {
    let stands = |(limit, state): (&Limit, &State)| state.look(limit, now, 0);
    Verdict { allowed: true, limits: limits.iter().zip(states).map(stands).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::BucketRate;

    /// One of each, of ten; and the wait of five when eight were admitted at
    /// 08:00 UTC.
    fn limits() -> [(Limit, Duration); 5] {
        let rate = "10/60s".parse().expect("a rate");
        let bucket = BucketRate::new(rate, 10).expect("a bucket");
        [
            (Limit::SlidingLog(rate), Duration::from_secs(60)),
            (Limit::CompactLog(rate), Duration::from_secs(60)),
            // When five of the eight overlap: 3/8 into the next window.
            (Limit::SlidingCounter(rate), Duration::from_millis(82_500)),
            (Limit::TokenBucket(bucket), Duration::from_secs(18)),
            (Limit::Quota("10/day".parse().expect("a quota")), Duration::from_secs(16 * 3_600)),
        ]
    }

    /// C26: a refused cost takes nothing, one that never fits waits for ever,
    /// zero only looks.
    #[test]
    fn a_cost_is_charged_whole_or_not_at_all() {
        let now = Timestamp::from_micros(1_800_000_000_000_000);
        for (limit, wait) in limits() {
            let mut states = [State::new(&limit)];
            let mut of = |cost| decide(&[limit], &mut states, now, cost).limits[0];
            assert_eq!((of(8).wait, of(0).remaining), (Wait::None, 2), "{limit:?}");
            assert_eq!(of(5).wait, Wait::For(wait), "{limit:?}");
            assert_eq!(of(11).wait, Wait::Forever, "{limit:?}");
            assert_eq!((of(0).wait, of(0).remaining), (Wait::None, 2), "{limit:?}");
            assert_eq!((of(2).wait, of(0).remaining), (Wait::None, 0), "{limit:?}");
            if let [State::Log(log)] = &states {
                assert_eq!(log.len(), 10);
            }
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written_and_expires_when_it_says_nothing_more() {
        let at = |micros: u64| Timestamp::from_micros(1_800_000_000_000_000 + micros);
        for (limit, _) in limits() {
            let mut states = [State::new(&limit)];
            assert_eq!(states[0].expires(&limit), None, "{limit:?}");
            for second in [0, 30, 61] {
                decide(&[limit], &mut states, at(second * 1_000_000), 2);
            }
            charge_afterwards(&[limit], &mut states, at(62_000_000), 20).expect("few");
            let [state] = states;
            let mut words = Vec::new();
            state.write(&mut words);
            assert_eq!(State::read(&limit, &words), Some(state.clone()), "{limit:?}");
            if !matches!(state, State::Log(_)) {
                assert_eq!(State::read(&limit, &words[1..]), None, "{limit:?}");
            }
            let expires = state.expires(&limit).expect("something is charged");
            let before = Timestamp::from_micros(expires.as_micros() - 1);
            assert!(!state.look(&limit, before, 0).reset.is_zero(), "{limit:?}");
            assert!(state.look(&limit, expires, 0).reset.is_zero(), "{limit:?}");
        }
        let bucket: crate::Rate = "9007199254740991/1d".parse().expect("a rate");
        let large = Limit::TokenBucket(BucketRate::new(bucket, bucket.limit()).expect("a bucket"));
        let mut states = [State::new(&large)];
        assert!(decide(&[large], &mut states, at(0), bucket.limit()).allowed);
        let mut words = Vec::new();
        states[0].write(&mut words);
        assert!(words[2] > 0, "more than fits in a word");
        assert_eq!(State::read(&large, &words), states.into_iter().next());
    }
}
