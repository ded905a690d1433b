//! The `redis` table: where the decisions are made, and how that is reached.
//!
//! Here is checked what goes with what. Whether an address can be read at all,
//! and what is in the files of TLS, is for those who connect.

mod deployment;
mod tls;

use std::time::Duration;

use super::fields::Fields;
use super::secret::{self, ReadSecret, SecretString};
use super::{NAME_RULE, Value, is_name};
use crate::{ConfigError, duration};

pub use deployment::Deployment;
pub use tls::Tls;

/// The highest database's number. Redis itself asks `databases` of its
/// configuration.
pub const MAX_DATABASE: u32 = 1_000_000;

/// The most connections of one worker to one server.
pub const MAX_CONNECTIONS: usize = 32;

/// The longest `timeout` and pause.
const LONGEST: Duration = Duration::from_secs(60);

/// The `redis` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// Which servers there are.
    pub deployment: Deployment,
    /// The ACL user, never without a password. `None`: the one in the address of
    /// a single server, or `default`.
    pub user: Option<String>,
    /// The password. `None`: the one in the address of a single server, or none.
    pub password: Option<SecretString>,
    /// The database, 0 to [`MAX_DATABASE`]. `None`: the one in the address of a
    /// single server, or 0. Always `None` for a cluster.
    pub database: Option<u32>,
    /// How TLS is spoken, where the addresses are `rediss://`; else the default.
    pub tls: Tls,
    /// Connections for each worker and server: 1 to [`MAX_CONNECTIONS`].
    pub connections: usize,
    /// When a server counts as failed, and how it is tried again.
    pub breaker: Breaker,
    /// The most that a request may wait for its decision: 1ms to 60s.
    pub timeout: Duration,
    /// How many requests of one worker may queue for Redis: 1 to 1,000,000.
    pub queue: usize,
    /// What every key begins with.
    pub prefix: String,
}

/// When a server counts as failed, and how it is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Failures in a row that open it: 1 to 1000.
    pub failures: u32,
    /// The first pause between attempts while it is open, 1ms to 60s. Each next
    /// one is twice as long.
    pub pause: Duration,
    /// The longest pause: from `pause` to 60s.
    pub max_pause: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failures: 3, pause: Duration::from_millis(50), max_pause: Duration::from_secs(1) }
    }
}

/// The fields of the table.
const FIELDS: [&str; 15] = [
    "url",
    "sentinels",
    "master",
    "cluster",
    "user",
    "password",
    "database",
    "sentinel_user",
    "sentinel_password",
    "tls",
    "connections",
    "breaker",
    "timeout",
    "queue",
    "prefix",
];

impl RedisConfig {
    pub(super) fn check(config: Value, read: ReadSecret) -> Result<Self, ConfigError> {
        let mut fields = Fields::of("redis", config, &FIELDS)?;
        let deployment = deployment::read(&mut fields, read)?;
        let user = fields.string("user")?;
        let password = secret::read(&mut fields, "password", read)?;
        check_login(&fields, ["user", "password"], &user, &password)?;
        let database = fields
            .whole_number("database", 0..=u64::from(MAX_DATABASE))?
            .map(|number| number as u32);
        deployment.check_login_and_database(
            &fields,
            user.is_some(),
            password.is_some(),
            database.is_some(),
        )?;
        let tls = tls::read(&mut fields, &deployment)?;
        let connections =
            fields.whole_number("connections", 1..=MAX_CONNECTIONS as u64)?.unwrap_or(1);
        let breaker = breaker(&mut fields)?;
        let timeout = span(&mut fields, "timeout", Duration::from_millis(1))?
            .unwrap_or(Duration::from_millis(100));
        let queue = fields.whole_number("queue", 1..=1_000_000)?.unwrap_or(10_000);
        let prefix = fields.string("prefix")?.unwrap_or_else(|| "weir".to_owned());
        if !is_name(&prefix) {
            return Err(fields.wrong("prefix", NAME_RULE));
        }
        Ok(Self {
            deployment,
            user,
            password,
            database,
            tls,
            connections: connections as usize,
            breaker,
            timeout,
            queue: queue as usize,
            prefix,
        })
    }
}

/// Redis takes a user only with a password.
fn check_login(
    fields: &Fields,
    [user_field, password_field]: [&str; 2],
    user: &Option<String>,
    password: &Option<SecretString>,
) -> Result<(), ConfigError> {
    match user {
        Some(user) if user.is_empty() => Err(fields.wrong(user_field, "is empty")),
        Some(_) if password.is_none() => {
            let wanted = format!("the password of {user_field}");
            Err(fields.missing(password_field, &wanted))
        }
        _ => Ok(()),
    }
}

fn breaker(fields: &mut Fields) -> Result<Breaker, ConfigError> {
    let default = Breaker::default();
    let Some(config) = fields.take("breaker") else { return Ok(default) };
    let known = ["failures", "pause", "max_pause"];
    let mut fields = Fields::of(fields.path_of("breaker"), config, &known)?;
    let failures = fields.whole_number("failures", 1..=1000)?;
    let pause = span(&mut fields, "pause", Duration::from_millis(1))?.unwrap_or(default.pause);
    let max_pause = span(&mut fields, "max_pause", pause)?;
    Ok(Breaker {
        failures: failures.map_or(default.failures, |failures| failures as u32),
        pause,
        max_pause: max_pause.unwrap_or(default.max_pause.max(pause)),
    })
}

/// A span from `least` to [`LONGEST`].
fn span(
    fields: &mut Fields,
    field: &'static str,
    least: Duration,
) -> Result<Option<Duration>, ConfigError> {
    let Some(text) = fields.string(field)? else { return Ok(None) };
    let span = duration::parse(&text)
        .map_err(|error| fields.wrong(field, format!("{text:?}: {error}")))?;
    if (least..=LONGEST).contains(&span) {
        return Ok(Some(span));
    }
    let problem = format!("must be from {} to {}s", duration::canonical(least), LONGEST.as_secs());
    Err(fields.wrong(field, problem))
}
