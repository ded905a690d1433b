//! The configuration: from what the operator wrote to checked values.
//!
//! [`Value`] is the configuration as data, whatever language it was written
//! in. [`Config::check`] takes it apart, field by field in a fixed order, and
//! stops at the first thing wrong. Every field must be known.

mod answers;
mod clients;
mod fields;
mod limits;
mod memory;
mod policy;
mod redis;
mod secret;
mod value;

use crate::identity::{MIN_SECRET, Secret};
use crate::{ConfigError, Policy};

use fields::Fields;
pub use limits::MAX_LIMITS;
pub use memory::MemoryConfig;
use memory::Sharing;
pub use redis::{Breaker, Deployment, MAX_CONNECTIONS, MAX_DATABASE, RedisConfig, Tls};
pub use secret::{ReadSecret, SecretSource, SecretString};
pub use value::Value;

/// The longest name (of a policy, plan or bucket) or key prefix, in bytes.
pub const MAX_NAME: usize = 64;

/// The longest `runtime_dir`, in bytes: a Unix socket's path ends at 107.
pub const MAX_RUNTIME_DIR: usize = 70;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the decisions are made. `None`: in the memory that the workers of the
    /// host share.
    pub redis: Option<RedisConfig>,
    /// That memory.
    pub memory: MemoryConfig,
    /// Where a worker puts the socket over which it wakes itself. `None`: the
    /// first writable of `$TMPDIR`, `/dev/shm` and `/tmp`.
    pub runtime_dir: Option<String>,
    /// What identities are hashed with: there where a policy has `hash_keys`.
    pub secret: Option<Secret>,
    /// The policies, by name in alphabetical order. Never empty.
    pub policies: Vec<Policy>,
}

impl Config {
    /// Checks a whole configuration. `read` reads secrets that lie elsewhere.
    pub fn check(config: Value, read: ReadSecret) -> Result<Self, ConfigError> {
        let mut fields = Fields::of("", config, &FIELDS)?;
        let store = store(&mut fields)?;
        let redis =
            fields.take("redis").map(|redis| RedisConfig::check(redis, read)).transpose()?;
        if redis.is_none() && store == Some(Store::Redis) {
            return Err(fields.missing("redis", "a table, since store is \"redis\""));
        }
        let redis = redis.filter(|_| store != Some(Store::Memory));
        let memory = MemoryConfig::check(fields.take("memory"))?;
        let sharing = Sharing::read(&mut fields, Sharing::default())?;
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
        let secret = secret::read(&mut fields, "secret", read)?;
        let policies = policy::all(fields.required("policies")?, sharing)?;
        if secret.is_none()
            && let Some(policy) = policies.iter().find(|policy| policy.hash_keys)
        {
            let wanted = format!(
                "at least {MIN_SECRET} bytes, as \"openssl rand -hex 32\" prints them, since there \
                 is policies.{}.hash_keys",
                policy.name
            );
            return Err(fields.missing("secret", &wanted));
        }
        let secret = secret.map(|text| {
            Secret::new(text.expose().as_bytes()).ok_or_else(|| {
                fields.wrong("secret", format!("must be at least {MIN_SECRET} bytes long"))
            })
        });
        Ok(Self { redis, memory, runtime_dir, secret: secret.transpose()?, policies })
    }
}

/// The fields of a configuration.
const FIELDS: [&str; 8] = [
    "store",
    "redis",
    "memory",
    "local_share",
    "remember_denials",
    "runtime_dir",
    "secret",
    "policies",
];

/// Where the operator says that decisions are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Redis,
    Memory,
}

fn store(fields: &mut Fields) -> Result<Option<Store>, ConfigError> {
    match fields.string("store")?.as_deref() {
        None => Ok(None),
        Some("redis") => Ok(Some(Store::Redis)),
        Some("memory") => Ok(Some(Store::Memory)),
        Some(other) => {
            let problem = format!("{other:?}: must be \"redis\" or \"memory\"");
            Err(fields.wrong("store", problem))
        }
    }
}

const NAME_RULE: &str = "must be 1 to 64 letters, digits, \"_\", \"-\" or \".\"";

fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    (1..=MAX_NAME).contains(&text.len()) && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests;
