//! The configuration: from what the operator wrote to checked values.
//!
//! [`Value`] is the configuration as data, whatever language it was written
//! in. [`Config::check`] takes it apart, field by field in a fixed order, and
//! stops at the first thing wrong. Every field must be known.

mod answers;
mod clients;
mod fields;
mod limits;
mod policy;
mod value;

use std::time::Duration;

use crate::duration;
use crate::identity::{MIN_SECRET, Secret};
use crate::{ConfigError, Policy};

use fields::Fields;
pub use value::Value;

/// The longest name (of a policy, plan or bucket) or key prefix, in bytes.
pub const MAX_NAME: usize = 64;

/// The longest `runtime_dir`, in bytes: a Unix socket's path ends at 107.
pub const MAX_RUNTIME_DIR: usize = 70;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the decisions are made.
    pub redis: RedisConfig,
    /// Where a worker puts the socket over which it wakes itself. `None`: the
    /// first writable of `$TMPDIR`, `/dev/shm` and `/tmp`.
    pub runtime_dir: Option<String>,
    /// What identities are hashed with: there where a policy has `hash_keys`.
    pub secret: Option<Secret>,
    /// The policies, by name in alphabetical order. Never empty.
    pub policies: Vec<Policy>,
}

/// The `redis` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// The server's address. May hold a password: never to be shown.
    pub url: String,
    /// The most that a request may wait for its decision: 1ms to 60s.
    pub timeout: Duration,
    /// How many requests of one worker may queue for Redis: 1 to 1,000,000.
    pub queue: usize,
    /// What every key begins with.
    pub prefix: String,
}

impl Config {
    /// Checks a whole configuration.
    pub fn check(config: Value) -> Result<Self, ConfigError> {
        let mut fields = Fields::of("", config, &["redis", "runtime_dir", "secret", "policies"])?;
        let redis = RedisConfig::check(fields.required("redis")?)?;
        let runtime_dir = fields.string("runtime_dir")?;
        if let Some(dir) = &runtime_dir
            && !dir.starts_with('/')
        {
            return Err(ConfigError::new("runtime_dir", "must be an absolute path"));
        }
        if runtime_dir.as_ref().is_some_and(|dir| dir.len() > MAX_RUNTIME_DIR) {
            let problem = format!("must be at most {MAX_RUNTIME_DIR} bytes long");
            return Err(ConfigError::new("runtime_dir", problem));
        }
        let secret = fields.string("secret")?;
        let policies = policy::all(fields.required("policies")?)?;
        if secret.is_none()
            && let Some(policy) = policies.iter().find(|policy| policy.hash_keys)
        {
            let wanted = format!(
                "at least {MIN_SECRET} bytes, as \"openssl rand -hex 32\" prints them, since there \
                 is policies.{}.hash_keys; from the environment it comes only with \"env NAME;\" in \
                 nginx.conf",
                policy.name
            );
            return Err(fields.missing("secret", &wanted));
        }
        let secret = secret.map(|text| {
            Secret::new(text.as_bytes()).ok_or_else(|| {
                fields.wrong("secret", format!("must be at least {MIN_SECRET} bytes long"))
            })
        });
        Ok(Self { redis, runtime_dir, secret: secret.transpose()?, policies })
    }
}

impl RedisConfig {
    fn check(config: Value) -> Result<Self, ConfigError> {
        let mut fields = Fields::of("redis", config, &["url", "timeout", "queue", "prefix"])?;
        let url = match fields.string("url")? {
            Some(url) => url,
            None => return Err(fields.missing("url", "a string like \"redis://127.0.0.1:6379/0\"")),
        };
        let timeout = match fields.string("timeout")? {
            Some(text) => duration::parse(&text)
                .map_err(|error| fields.wrong("timeout", format!("{text:?}: {error}")))?,
            None => Duration::from_millis(100),
        };
        if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&timeout) {
            return Err(fields.wrong("timeout", "must be from 1ms to 60s"));
        }
        let queue = fields.whole_number("queue", 1..=1_000_000)?.unwrap_or(10_000);
        let prefix = fields.string("prefix")?.unwrap_or_else(|| "weir".to_owned());
        if !is_name(&prefix) {
            return Err(fields.wrong("prefix", NAME_RULE));
        }
        Ok(Self { url, timeout, queue: queue as usize, prefix })
    }
}

const NAME_RULE: &str = "must be 1 to 64 letters, digits, \"_\", \"-\" or \".\"";

fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    (1..=MAX_NAME).contains(&text.len()) && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests;
