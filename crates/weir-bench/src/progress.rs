//! Where a run is: on a terminal one line that changes, elsewhere a line for each group.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

/// Told on stderr.
pub struct Progress {
    steps: usize,
    done: usize,
    begun: Instant,
    group: String,
    is_terminal: bool,
}

impl Progress {
    /// Of so many steps, which take about as long.
    pub fn new(steps: usize) -> Self {
        let is_terminal = stderr().is_terminal();
        Self { steps, done: 0, begun: Instant::now(), group: String::new(), is_terminal }
    }

    /// A group of steps begins.
    pub fn begins(&mut self, group: &str) {
        group.clone_into(&mut self.group);
        if !self.is_terminal {
            eprintln!("{group}");
        }
    }

    /// The next step begins.
    pub fn goes_on(&mut self, step: &str) {
        if self.is_terminal {
            let left = match self.done {
                0 => String::new(),
                done => {
                    let each = self.begun.elapsed() / done as u32;
                    format!("; {} left", minutes(each * (self.steps - done) as u32))
                }
            };
            // To the end of the line, which may have been longer.
            eprint!("\r{}; {step}{left}\x1b[K", self.group);
            let _ = stderr().flush();
        }
        self.done += 1;
    }

    /// Something that stays to be read.
    pub fn says(&self, what: &str) {
        let end = if self.is_terminal { "\r\x1b[K" } else { "" };
        eprintln!("{end}{what}");
    }

    /// Nothing is left.
    pub fn ends(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // An error begins on a line of its own.
        if self.is_terminal && self.done < self.steps {
            eprintln!();
        }
    }
}

/// As `3:07`.
pub fn minutes(span: Duration) -> String {
    format!("{}:{:02}", span.as_secs() / 60, span.as_secs() % 60)
}
