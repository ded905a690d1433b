//! Where a run is: on a terminal one line that changes, elsewhere a line for each group.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

/// Told on stderr.
pub struct Progress {
    /// How long each group should take.
    expected: Vec<Duration>,
    /// How many of them have begun.
    nth: usize,
    group: String,
    begun: Instant,
    group_begun: Instant,
    is_terminal: bool,
    has_ended: bool,
}

impl Progress {
    /// Of so many groups, of which each should take as long as that.
    pub fn new(expected: Vec<Duration>) -> Self {
        let now = Instant::now();
        Self {
            expected,
            nth: 0,
            group: String::new(),
            begun: now,
            group_begun: now,
            is_terminal: stderr().is_terminal(),
            has_ended: false,
        }
    }

    /// How long all of it should take.
    pub fn expected(&self) -> Duration {
        self.expected.iter().sum()
    }

    /// The next group begins.
    pub fn begins(&mut self, group: &str) {
        self.nth += 1;
        self.group_begun = Instant::now();
        self.group = format!("{} of {}: {group}", self.nth, self.expected.len());
        if !self.is_terminal {
            eprintln!("{}", self.group);
        }
    }

    /// The next step of the group begins.
    pub fn goes_on(&self, step: &str) {
        if self.is_terminal {
            let so_far = self.group_begun - self.begun;
            let left = left(&self.expected, self.nth, so_far, self.group_begun.elapsed());
            // To the end of the line, which may have been longer.
            eprint!("\r{}; {step}; {} left\x1b[K", self.group, minutes(left));
            let _ = stderr().flush();
        }
    }

    /// Something that stays to be read.
    pub fn says(&self, what: &str) {
        let end = if self.is_terminal { "\r\x1b[K" } else { "" };
        eprintln!("{end}{what}");
    }

    /// Nothing is left.
    pub fn ends(&mut self) {
        self.has_ended = true;
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // An error begins on a line of its own.
        if self.is_terminal && !self.has_ended {
            eprintln!();
        }
    }
}

/// What is left in the `nth` group, where those before have taken `so_far`, and this one
/// until now: if they took longer than they should, so will the others.
fn left(expected: &[Duration], nth: usize, so_far: Duration, now: Duration) -> Duration {
    let (before, rest) = expected.split_at(nth.saturating_sub(1).min(expected.len()));
    let should_have: Duration = before.iter().sum();
    let pace = match should_have.as_secs_f64() {
        0.0 => 1.0,
        should_have => so_far.as_secs_f64() / should_have,
    };
    let (this, later) = rest.split_first().unwrap_or((&Duration::ZERO, &[]));
    this.mul_f64(pace).saturating_sub(now) + later.iter().sum::<Duration>().mul_f64(pace)
}

/// As `3:07`.
pub fn minutes(span: Duration) -> String {
    format!("{}:{:02}", span.as_secs() / 60, span.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_the_pace_so_far_says() {
        let seconds = Duration::from_secs;
        let expected = [seconds(10), seconds(20), seconds(30)];
        assert_eq!(left(&expected, 1, seconds(0), seconds(4)), seconds(6 + 50));
        // Half as fast as expected.
        assert_eq!(left(&expected, 2, seconds(20), seconds(0)), seconds(100));
        // One that takes longer than it should takes nothing from the others.
        assert_eq!(left(&expected, 2, seconds(10), seconds(25)), seconds(30));
        assert_eq!(left(&expected, 3, seconds(30), seconds(31)), seconds(0));
    }
}
