//! What Redis has spent, as it counts itself.

use std::time::Duration;

use anyhow::{Context as _, Result};
use redis::Connection;
use weir_tests::Redis;

/// A connection that asks for it.
pub struct Meter(Connection);

/// Since the server's start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// In scripts, by `EVALSHA`.
    pub script: Duration,
    /// CPU of all kinds.
    pub cpu: Duration,
}

impl Spent {
    /// The rest, without what was spent before.
    pub fn since(self, before: Self) -> Self {
        Self { script: self.script - before.script, cpu: self.cpu - before.cpu }
    }
}

impl Meter {
    /// Of this server.
    pub fn of(redis: &Redis) -> Self {
        Self(redis.connect())
    }

    /// What it has spent so far.
    pub fn so_far(&mut self) -> Result<Spent> {
        Ok(Spent {
            script: script_time(&self.info("commandstats")?)?,
            cpu: cpu(&self.info("cpu")?)?,
        })
    }

    /// What its data take, in bytes.
    pub fn used_memory(&mut self) -> Result<u64> {
        let info = self.info("memory")?;
        let bytes = field(&info, "used_memory").context("no used_memory in INFO")?;
        Ok(bytes.parse()?)
    }

    fn info(&mut self, section: &str) -> Result<String> {
        Ok(redis::cmd("INFO").arg(section).query(&mut self.0)?)
    }
}

/// Reads `INFO commandstats`. Before the first call there is none.
fn script_time(stats: &str) -> Result<Duration> {
    let Some(fields) = field(stats, "cmdstat_evalsha") else { return Ok(Duration::ZERO) };
    let micros = fields.split(',').find_map(|field| field.strip_prefix("usec="));
    Ok(Duration::from_micros(micros.context("no usec in cmdstat_evalsha")?.parse()?))
}

/// Reads `INFO cpu`.
fn cpu(info: &str) -> Result<Duration> {
    let mut sum = 0.0;
    for name in ["used_cpu_user", "used_cpu_sys"] {
        sum += field(info, name).with_context(|| format!("no {name} in INFO"))?.parse::<f64>()?;
    }
    Ok(Duration::from_secs_f64(sum))
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_counts_is_read() {
        let stats = "# Commandstats\r\ncmdstat_eval:calls=1,usec=9,usec_per_call=9.00\r\n\
                     cmdstat_evalsha:calls=4,usec=1234,usec_per_call=308.50\r\n";
        assert_eq!(script_time(stats).unwrap(), Duration::from_micros(1_234));
        assert_eq!(script_time("# Commandstats\r\n").unwrap(), Duration::ZERO);
        let info = "used_cpu_sys:0.250000\r\nused_cpu_user:1.500000\r\n\
                    used_cpu_sys_children:7.0\r\n";
        assert_eq!(cpu(info).unwrap(), Duration::from_millis(1_750));
        assert!(cpu("used_cpu_sys:0.25\r\n").is_err());
    }
}
