//! What a load costs: the CPU of nginx and of Redis, and what Redis was asked.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use weir_tests::{Nginx, Redis, process};

use crate::wrk::Load;

/// One round's figures. CPU and commands are for each request.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Requests per second.
    pub rate: f64,
    /// What half of the requests took at most.
    pub p50_us: f64,
    /// What 99 of 100 requests took at most.
    pub p99_us: f64,
    /// All threads of all nginx workers.
    pub worker_us: f64,
    /// All threads of Redis.
    pub redis_us: f64,
    /// Scripts that Redis was asked to run.
    pub script_calls: f64,
    /// Commands that the scripts ran.
    pub in_scripts: f64,
}

/// Loads a path of this nginx, and measures. With the figures it returns whether the
/// answers were as they should be: all refusals, or none.
///
/// # Errors
///
/// If wrk fails.
pub fn measure(
    nginx: &Nginx,
    redis: &Redis,
    load: &Load,
    path: &str,
    refused: bool,
) -> Result<(Figures, Result<()>)> {
    let workers = nginx.workers();
    let cpu = || workers.iter().map(|&pid| process::cpu(pid)).sum::<Duration>();
    let calls = Calls::so_far(redis);
    let before = (cpu(), process::cpu(redis.pid()));
    let outcome = load.run(nginx.port(), path)?;
    let after = (cpu(), process::cpu(redis.pid()));
    let calls = Calls::so_far(redis).since(calls);

    let requests = outcome.requests as f64;
    let micros = |spent: Duration| spent.as_secs_f64() * 1e6 / requests;
    let figures = Figures {
        rate: outcome.rate(),
        p50_us: outcome.p50_us(),
        p99_us: outcome.p99_us(),
        worker_us: micros(after.0 - before.0),
        redis_us: micros(after.1 - before.1),
        script_calls: calls.scripts as f64 / requests,
        in_scripts: calls.in_scripts as f64 / requests,
    };
    Ok((figures, outcome.must_be(refused)))
}

/// Commands that a server has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Calls {
    scripts: u64,
    in_scripts: u64,
}

impl Calls {
    fn so_far(redis: &Redis) -> Self {
        Self::read(&redis.command::<String>("INFO commandstats"))
    }

    /// Reads `INFO commandstats`, which counts what scripts run under the same names as
    /// what connections send. What else these do (`PING`, `CLIENT SETINFO`, what this
    /// tool itself asks) is a handful, and left out.
    fn read(stats: &str) -> Self {
        let mut calls = Self::default();
        for line in stats.lines() {
            let Some((name, rest)) =
                line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls="))
            else {
                continue;
            };
            let count = rest.split(',').next().and_then(|count| count.parse().ok()).unwrap_or(0);
            match name {
                "eval" | "evalsha" => calls.scripts += count,
                "auth" | "flushall" | "hello" | "info" | "ping" | "role" | "select" => {}
                _ if name.contains('|') => {}
                _ => calls.in_scripts += count,
            }
        }
        calls
    }

    fn since(self, before: Self) -> Self {
        Self {
            scripts: self.scripts - before.scripts,
            in_scripts: self.in_scripts - before.in_scripts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scripts_run_is_told_from_what_was_sent() {
        let stats = "# Commandstats\r
cmdstat_evalsha:calls=7,usec=70,usec_per_call=10.00,rejected_calls=0,failed_calls=0\r
cmdstat_eval:calls=2,usec=20,usec_per_call=10.00,rejected_calls=0,failed_calls=0\r
cmdstat_zadd:calls=9,usec=9,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r
cmdstat_time:calls=9,usec=9,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r
cmdstat_client|setinfo:calls=2,usec=2,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r
cmdstat_ping:calls=1,usec=1,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r
cmdstat_info:calls=4,usec=400,usec_per_call=100.00,rejected_calls=0,failed_calls=0\r
";
        assert_eq!(Calls::read(stats), Calls { scripts: 9, in_scripts: 18 });
    }
}
