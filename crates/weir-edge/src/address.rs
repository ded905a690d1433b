//! The server of a configuration.

use std::fmt::Write as _;

use weir_core::ConfigError;
use weir_core::config::{Deployment, RedisConfig};
use weir_redis::Server;

/// One server, with the user, password and database that stand beside its
/// address.
pub(crate) fn server(redis: &RedisConfig) -> Result<Server, ConfigError> {
    let url = match &redis.deployment {
        Deployment::Single { url } => url.expose(),
        Deployment::Sentinel { .. } => {
            return Err(ConfigError::new("redis.sentinels", "not supported yet"));
        }
        Deployment::Cluster { .. } => {
            return Err(ConfigError::new("redis.cluster", "not supported yet"));
        }
    };
    let wrong = |error: weir_redis::UrlError| ConfigError::new("redis.url", error.to_string());
    // As it stands first: what is added must not make a wrong one right.
    let server = Server::parse(url).map_err(wrong)?;
    if redis.password.is_none() && redis.database.is_none() {
        return Ok(server);
    }
    Server::parse(&completed(url, redis)).map_err(wrong)
}

fn completed(url: &str, redis: &RedisConfig) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let user = escaped(redis.user.as_deref().unwrap_or_default());
    let password = redis.password.as_ref().map(|password| escaped(password.expose()));
    let is_socket = scheme.ends_with("unix");
    let mut query = Vec::new();
    let mut url = format!("{scheme}://");
    match password {
        Some(password) if is_socket => {
            if !user.is_empty() {
                query.push(format!("user={user}"));
            }
            query.push(format!("pass={password}"));
            url.push_str(rest);
        }
        Some(password) => {
            let _ = write!(url, "{user}:{password}@{rest}");
        }
        None => url.push_str(rest),
    }
    match redis.database {
        Some(database) if is_socket => query.push(format!("db={database}")),
        Some(database) => {
            let _ = write!(url, "{}{database}", if url.ends_with('/') { "" } else { "/" });
        }
        None => {}
    }
    if !query.is_empty() {
        let _ = write!(url, "{}{}", if url.contains('?') { '&' } else { '?' }, query.join("&"));
    }
    url
}

/// Every byte as a URL carries it.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        let _ = write!(escaped, "%{byte:02X}");
        escaped
    })
}
