//! What a load was answered, and how to ask about it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One request, and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// What for.
    pub path: &'static str,
    /// When it should have been sent.
    pub due: Instant,
    /// When it was.
    pub sent: Instant,
    /// When the last byte of its answer was there.
    pub done: Instant,
    /// The status; 0 if the connection broke or no answer came.
    pub status: u16,
    /// Whether the answer has `RateLimit-Limit`.
    pub limited: bool,
}

impl Asked {
    /// How long the server took.
    pub fn latency(&self) -> Duration {
        self.done - self.sent
    }

    /// How long a client waited.
    pub fn since_due(&self) -> Duration {
        self.done - self.due
    }
}

/// Some requests of a load.
#[derive(Clone, Debug)]
pub struct Answers(Vec<Asked>);

impl Answers {
    pub(crate) fn new(asked: Vec<Asked>) -> Self {
        Self(asked)
    }

    /// Those for this path.
    pub fn to(&self, path: &str) -> Self {
        self.only(|asked| asked.path == path)
    }

    /// Those sent from here on.
    pub fn since(&self, from: Instant) -> Self {
        self.only(|asked| asked.sent >= from)
    }

    /// Those sent before.
    pub fn before(&self, until: Instant) -> Self {
        self.only(|asked| asked.sent < until)
    }

    /// Those of which this is true.
    pub fn only(&self, is_one: impl Fn(&Asked) -> bool) -> Self {
        Self(self.0.iter().filter(|asked| is_one(asked)).copied().collect())
    }

    /// Each of them, in the order of their ends.
    pub fn iter(&self) -> impl Iterator<Item = &Asked> {
        self.0.iter()
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many of each status.
    pub fn statuses(&self) -> BTreeMap<u16, usize> {
        let mut statuses = BTreeMap::new();
        for asked in &self.0 {
            *statuses.entry(asked.status).or_default() += 1;
        }
        statuses
    }

    /// How many have limit headers.
    pub fn limited(&self) -> usize {
        self.0.iter().filter(|asked| asked.limited).count()
    }

    /// When the first answer with limit headers came.
    pub fn first_limited(&self) -> Option<Instant> {
        self.0.iter().filter(|asked| asked.limited).map(|asked| asked.done).min()
    }

    /// How many took the server longer than this.
    pub fn later_than(&self, limit: Duration) -> usize {
        self.0.iter().filter(|asked| asked.latency() > limit).count()
    }

    /// The longest that the server took.
    pub fn worst(&self) -> Duration {
        self.quantile(1.0)
    }

    /// What this share of them took at most, from 0 to 1, counted since they
    /// were sent.
    pub fn quantile(&self, share: f64) -> Duration {
        self.quantile_of(share, Asked::latency)
    }

    /// The same, counted since they were due.
    pub fn quantile_since_due(&self, share: f64) -> Duration {
        self.quantile_of(share, Asked::since_due)
    }

    fn quantile_of(&self, share: f64, time: impl Fn(&Asked) -> Duration) -> Duration {
        let mut times: Vec<Duration> = self.0.iter().map(time).collect();
        times.sort_unstable();
        let rank = (times.len() as f64 * share).ceil() as usize;
        *times.get(rank.saturating_sub(1)).expect("there are requests")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests one millisecond apart that took this many milliseconds, each
    /// sent a millisecond late.
    fn answers(took_ms: &[u64]) -> (Instant, Answers) {
        let begun = Instant::now();
        let after = |ms: u64| begun + Duration::from_millis(ms);
        let asked = |(index, &took): (usize, &u64)| Asked {
            path: "/a",
            due: after(index as u64),
            sent: after(index as u64 + 1),
            done: after(index as u64 + 1 + took),
            status: if took > 9 { 503 } else { 200 },
            limited: took == 3,
        };
        (begun, Answers::new(took_ms.iter().enumerate().map(asked).collect()))
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_quantile_is_what_that_share_took_at_most() {
        let (_, answers) = answers(&[5, 1, 4, 2, 3, 6, 7, 8, 9, 10]);
        assert_eq!(answers.quantile(0.5), ms(5));
        assert_eq!(answers.quantile(0.9), ms(9));
        assert_eq!(answers.quantile(0.91), ms(10));
        assert_eq!(answers.worst(), ms(10));
        assert_eq!(answers.quantile_since_due(1.0), ms(11));
        assert_eq!(answers.later_than(ms(8)), 2);
        assert_eq!(answers.statuses(), BTreeMap::from([(200, 9), (503, 1)]));
    }

    #[test]
    fn a_phase_has_what_was_sent_in_it() {
        let (begun, answers) = answers(&[3, 1, 30, 1, 3]);
        let phase = answers.since(begun + ms(2)).before(begun + ms(5));
        assert_eq!(phase.count(), 3);
        assert_eq!(phase.worst(), ms(30));
        assert_eq!(phase.limited(), 0);
        assert_eq!(answers.first_limited(), Some(begun + ms(4)));
        assert_eq!(answers.since(begun + ms(2)).first_limited(), Some(begun + ms(8)));
        assert_eq!(answers.to("/b").count(), 0);
    }
}
