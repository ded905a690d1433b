//! When requests no longer wait for a server, and how often it is tried
//! meanwhile.

use std::time::Duration;

use weir_core::config::Breaker as Settings;

/// A circuit breaker: closed while requests may wait for the server, open while
/// `on_error` decides at once.
///
/// Failures in a row open it. A connection over which the server takes writes
/// closes it on probation: the next failure opens it again, and only a request's
/// decision is the end of it.
#[derive(Debug)]
pub(crate) struct Breaker {
    settings: Settings,
    failures: u32,
    open: bool,
    pause: Duration,
}

impl Breaker {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, failures: 0, open: false, pause: Duration::ZERO }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Takes note of a failure; whether it opened the breaker.
    pub(crate) fn failed(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        let opens = !self.open && self.failures >= self.settings.failures;
        self.open |= opens;
        opens
    }

    /// Takes note of a server that says itself that it cannot serve; whether that
    /// opened the breaker.
    pub(crate) fn condemned(&mut self) -> bool {
        self.failures = self.failures.max(self.settings.failures - 1);
        self.failed()
    }

    /// The server takes writes: requests may try.
    pub(crate) fn probed(&mut self) {
        self.open = false;
    }

    /// The server has decided a request.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
        self.open = false;
    }

    /// The last attempt to connect led to something.
    pub(crate) fn attempt_succeeded(&mut self) {
        self.pause = Duration::ZERO;
    }

    /// A connection ended that had been there for so long. One that lasted longer
    /// than any pause is not what pauses are for, used or not.
    pub(crate) fn connection_ended(&mut self, lasted: Duration) {
        if lasted > self.settings.max_pause {
            self.pause = Duration::ZERO;
        }
    }

    /// How long to wait before the next attempt to connect. The first after one
    /// that led to something follows at once; then twice as long each time.
    /// Spread, so that many workers do not knock at once.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).clamp(self.settings.pause, self.settings.max_pause);
        jittered(pause)
    }
}

/// A pause of 75 to 100 %.
pub(crate) fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    // RandomState is seeded anew for each instance: random enough to spread
    // attempts, without a dependency.
    let random = RandomState::new().hash_one(0u8) % 256;
    pause.mul_f64(1.0 - random as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        let millis = Duration::from_millis;
        Breaker::new(Settings { failures: 3, pause: millis(50), max_pause: millis(150) })
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_decision_between_them_does_not_let_them() {
        let mut breaker = breaker();
        assert!(!breaker.failed() && !breaker.failed());
        breaker.succeeded();
        assert!(!breaker.failed() && !breaker.failed() && !breaker.is_open());
        assert!(breaker.failed(), "the third in a row");
        assert!(breaker.is_open());
        assert!(!breaker.failed(), "it is open already");
        assert!(breaker.is_open());
    }

    #[test]
    fn a_connection_closes_it_on_probation() {
        let mut breaker = breaker();
        (0..3).for_each(|_| _ = breaker.failed());
        breaker.probed();
        assert!(!breaker.is_open());
        assert!(breaker.failed() && breaker.is_open(), "the first failure after it");
        breaker.probed();
        breaker.succeeded();
        assert!(!breaker.failed(), "a decision is the end of it");
    }

    #[test]
    fn a_server_that_says_so_itself_is_not_asked_three_times() {
        let mut breaker = breaker();
        assert!(breaker.condemned() && breaker.is_open());
        assert!(!breaker.condemned(), "it is open already");
    }

    #[test]
    fn attempts_follow_at_once_then_more_and_more_slowly() {
        let mut breaker = breaker();
        let pauses: Vec<_> = (0..5).map(|_| breaker.next_pause()).collect();
        assert_eq!(pauses[0], Duration::ZERO);
        for (pause, longest) in pauses[1..].iter().zip([50, 100, 150, 150]) {
            let longest = Duration::from_millis(longest);
            assert!(*pause > longest.mul_f64(0.75) && *pause <= longest, "{pauses:?}");
        }
        breaker.succeeded();
        assert!(breaker.next_pause() > Duration::ZERO, "over a connection of before");
        breaker.attempt_succeeded();
        assert_eq!(breaker.next_pause(), Duration::ZERO);
    }

    /// Redis closes what was idle for its `timeout`, again and again.
    #[test]
    fn what_lasted_is_made_again_at_once() {
        let mut breaker = breaker();
        (0..5).for_each(|_| _ = breaker.next_pause());
        breaker.connection_ended(Duration::from_millis(150));
        assert!(breaker.next_pause() > Duration::ZERO, "no longer than a pause");
        breaker.connection_ended(Duration::from_millis(151));
        assert_eq!(breaker.next_pause(), Duration::ZERO);
    }

    #[test]
    fn a_pause_is_spread_over_its_last_quarter() {
        let pause = Duration::from_millis(1_000);
        let pauses: Vec<_> = (0..100).map(|_| jittered(pause)).collect();
        assert!(pauses.iter().all(|&p| p > pause.mul_f64(0.75) && p <= pause));
        assert!(pauses.iter().any(|&p| p != pauses[0]));
    }
}
