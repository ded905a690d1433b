//! What was decided about one request.

use std::time::Duration;

/// Where one limit stands after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The most units that the limit can ever hold: units per window or
    /// period, of a token bucket its burst.
    pub limit: u64,
    /// Units that could still be admitted right now.
    pub remaining: u64,
    /// What stands in the way, if anything.
    pub wait: Wait,
    /// Until the whole budget would be free again with no further traffic.
    pub reset: Duration,
}

/// How long a request must wait before this limit has room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The limit has room.
    None,
    /// The limit has room after this time, and not a microsecond earlier, if
    /// nobody else takes the place. More than zero, and at most one window;
    /// two for a sliding counter, a quota's period, the time to refill a bucket
    /// and its debt.
    For(Duration),
    /// The cost is above what the limit can ever hold.
    Forever,
}

impl Wait {
    /// The wait of a request of `cost` units where `most` can ever be had at
    /// once and `remaining` can now; `until_room` tells when there is room, and
    /// is asked only if there is none.
    pub(crate) fn of(
        cost: u64,
        most: u64,
        remaining: u64,
        until_room: impl FnOnce() -> Duration,
    ) -> Self {
        if cost > most {
            Wait::Forever
        } else if cost <= remaining {
            Wait::None
        } else {
            Wait::For(until_room())
        }
    }

    /// Whether the limit had room.
    pub fn is_none(self) -> bool {
        self == Wait::None
    }

    fn rank(self) -> Duration {
        match self {
            Wait::None => Duration::ZERO,
            Wait::For(span) => span,
            Wait::Forever => Duration::MAX,
        }
    }
}

/// The decision about one request under all limits of its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request may pass. If so each limit was charged; if not,
    /// none was.
    pub allowed: bool,
    /// Each limit, in the order of the policy. Never empty.
    pub limits: Vec<Standing>,
}

impl Verdict {
    /// The limit to tell the client about: on a refusal the one with the
    /// longest wait, otherwise the one with the least remaining. `None` only
    /// for a verdict without limits.
    pub fn tightest(&self) -> Option<&Standing> {
        self.limits.get(self.tightest_index()?)
    }

    /// Which of the limits it is.
    pub fn tightest_index(&self) -> Option<usize> {
        let limits = 0..self.limits.len();
        if self.allowed {
            limits.min_by_key(|&index| self.limits[index].remaining)
        } else {
            limits.max_by_key(|&index| self.limits[index].wait.rank())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(limit: u64, remaining: u64, wait: Wait) -> Standing {
        Standing { limit, remaining, wait, reset: Duration::from_secs(1) }
    }

    #[test]
    fn an_admitted_client_hears_of_the_limit_with_the_least_left() {
        let verdict = Verdict {
            allowed: true,
            limits: vec![standing(100, 7, Wait::None), standing(5, 3, Wait::None)],
        };
        assert_eq!(verdict.tightest().map(|limit| limit.limit), Some(5));
    }

    #[test]
    fn a_refused_client_hears_of_the_limit_with_the_longest_wait() {
        let short = Wait::For(Duration::from_millis(10));
        let long = Wait::For(Duration::from_secs(10));
        let verdict = Verdict {
            allowed: false,
            limits: vec![standing(1, 0, short), standing(2, 0, long), standing(3, 0, Wait::None)],
        };
        assert_eq!(verdict.tightest().map(|limit| limit.limit), Some(2));
    }
}
