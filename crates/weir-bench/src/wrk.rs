//! The load: wrk, with clients in turn.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Load {
    /// Connections that are kept busy.
    pub connections: u32,
    /// Threads that do so.
    pub threads: u32,
    /// For how long, in seconds.
    pub seconds: u32,
    /// How many clients the requests are of.
    pub clients: u32,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Outcome {
    /// Requests that were answered.
    pub requests: u64,
    duration_us: u64,
    p50_us: u64,
    p99_us: u64,
    /// How many of them with a status from 400 on.
    pub refused: u64,
    /// Connections that failed, and answers that did not come.
    pub failed: u64,
}

impl Load {
    /// Runs it against a path of the server at this port.
    ///
    /// # Errors
    ///
    /// If wrk does not run, or prints what it should not.
    pub fn run(&self, port: u16, path: &str) -> Result<Outcome> {
        let Self { connections, threads, seconds, clients } = self;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/load.lua");
        let output = Command::new("wrk")
            .args(["-t", &(*threads).min(*connections).to_string()])
            .args(["-c", &connections.to_string(), "-d", &seconds.to_string(), "--script"])
            .arg(script)
            .args([&format!("http://127.0.0.1:{port}{path}"), "--", &clients.to_string()])
            .output()
            .context("wrk does not run: `make setup` installs it")?;
        if !output.status.success() {
            bail!("wrk failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Outcome::parse(&String::from_utf8_lossy(&output.stdout))
    }
}

impl Outcome {
    /// Reads what wrk printed: the line of JSON that load.lua adds at its end.
    fn parse(text: &str) -> Result<Self> {
        let line = text
            .lines()
            .find(|line| line.starts_with('{'))
            .with_context(|| format!("wrk did not say what came of it: {text}"))?;
        let outcome: Self =
            serde_json::from_str(line).with_context(|| format!("wrk printed {line}"))?;
        if outcome.requests == 0 || outcome.duration_us == 0 {
            bail!("no request was answered: {line}");
        }
        Ok(outcome)
    }

    /// Requests per second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 / Duration::from_micros(self.duration_us).as_secs_f64()
    }

    /// What half of the requests took at most, in microseconds.
    pub fn p50_us(&self) -> f64 {
        self.p50_us as f64
    }

    /// What 99 of 100 requests took at most, in microseconds.
    pub fn p99_us(&self) -> f64 {
        self.p99_us as f64
    }

    /// Fails unless all answers were refusals, or none was.
    ///
    /// # Errors
    ///
    /// With what was not as it should be.
    pub fn must_be(&self, refused: bool) -> Result<()> {
        let expected = if refused { self.requests } else { 0 };
        if self.failed > 0 {
            bail!("{} connections or answers failed", self.failed);
        }
        if self.refused != expected {
            bail!(
                "{} of {} answers were refusals, in place of {expected}",
                self.refused,
                self.requests
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by wrk 4.1.0 with load.lua.
    const PRINTED: &str = r#"Running 1s test @ http://127.0.0.1:25998/
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     4.64ms    3.34ms  26.16ms   78.86%
    Req/Sec     0.91k   292.74     1.35k    72.73%
  997 requests in 1.10s, 506.29KB read
Requests/sec:    907.05
Transfer/sec:    460.61KB
{"requests":997,"duration_us":1099173,"p50_us":3423,"p99_us":16220,"refused":0,"failed":0}
"#;

    #[test]
    fn what_wrk_prints_is_read() {
        let outcome = Outcome::parse(PRINTED).unwrap();
        assert_eq!(format!("{:.2}", outcome.rate()), "907.05");
        assert_eq!((outcome.p50_us(), outcome.p99_us()), (3_423.0, 16_220.0));
    }

    #[test]
    fn a_load_that_was_not_answered_is_an_error() {
        assert!(Outcome::parse("unable to connect to 127.0.0.1:1\n").is_err());
        let none = PRINTED.replace("\"requests\":997", "\"requests\":0");
        assert!(Outcome::parse(&none).is_err());
    }

    #[test]
    fn answers_are_all_refusals_or_none() {
        let admitted = Outcome::parse(PRINTED).unwrap();
        assert!(admitted.must_be(false).is_ok());
        assert!(admitted.must_be(true).is_err());
        let mixed = Outcome { refused: 1, ..admitted };
        assert!(mixed.must_be(false).is_err());
        assert!(mixed.must_be(true).is_err());
        let refused = Outcome { refused: 997, ..admitted };
        assert!(refused.must_be(true).is_ok());
        assert!(Outcome { failed: 1, ..refused }.must_be(true).is_err());
    }
}
