//! A Redis server by its address, and how it is connected to.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, PushInfo,
    PushKind, RedisResult,
};
use thiserror::Error;

use crate::lookup::OneLookup;
use crate::script;

/// A server's address, checked; nothing is connected yet.
#[derive(Clone, Debug)]
pub struct Server {
    client: Client,
    name: String,
    lookup: OneLookup,
}

/// What is wrong with an address. Never repeats it: it may hold a password.
#[derive(Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Not a scheme that is known.
    #[error("must begin with redis:// or unix://")]
    Scheme,
    /// TLS.
    #[error("rediss:// (TLS) is not supported")]
    Tls,
    /// A part that the server would not see, or that nobody would serve.
    #[error("{0}")]
    Part(&'static str),
    /// The rest cannot be read.
    #[error(
        "cannot be read; expected redis://[[user]:password@]host[:port][/database] \
         or unix:///path/to/redis.sock"
    )]
    Unreadable,
}

impl Server {
    /// Reads `redis://[[user]:password@]host[:port][/database]` or
    /// `unix:///path`.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        if url.starts_with("rediss://") {
            return Err(UrlError::Tls);
        }
        if !["redis://", "unix://", "redis+unix://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(UrlError::Scheme);
        }
        check_parts(url)?;
        let info = url.into_connection_info().map_err(|_| UrlError::Unreadable)?;
        let name = match info.addr() {
            ConnectionAddr::Unix(path) => format!("unix:{}", path.display()),
            addr => addr.to_string(),
        };
        let tcp = TcpSettings::default()
            // The crate leaves Nagle's algorithm on: calls in flight would wait
            // for the acknowledgement of the one before.
            .set_nodelay(true)
            .set_keepalive(
                TcpKeepalive::new()
                    .with_time(Duration::from_secs(15))
                    .with_interval(Duration::from_secs(5))
                    .with_retries(3),
            )
            .set_user_timeout(Duration::from_secs(10));
        // RESP3, in which the crate tells of a lost connection at once and not
        // only to the next request.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
        let client = Client::open(info).map_err(|_| UrlError::Unreadable)?;
        Ok(Self { client, name, lookup: OneLookup::default() })
    }

    /// Its address without user and password, for log lines.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Connects, and brings the script along. `lost` is called once when the
    /// connection ends later. Takes as long as it takes: bounded by the caller.
    pub(crate) async fn connect(
        &self,
        lost: impl Fn() + Send + Sync + 'static,
    ) -> RedisResult<MultiplexedConnection> {
        let on_push = move |push: PushInfo| -> Result<(), std::convert::Infallible> {
            if push.kind == PushKind::Disconnection {
                lost();
            }
            Ok(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_dns_resolver(self.lookup.clone())
            .set_push_sender(on_push);
        let mut connection =
            self.client.get_multiplexed_async_connection_with_config(&config).await?;
        script::load().exec_async(&mut connection).await?;
        Ok(connection)
    }
}

/// What the crate would pass over in silence.
fn check_parts(url: &str) -> Result<(), UrlError> {
    let Some(parts) = redis::parse_redis_url(url) else { return Err(UrlError::Unreadable) };
    if parts.scheme() != "redis" {
        return Ok(());
    }
    if parts.query().is_some() || parts.fragment().is_some() {
        return Err(UrlError::Part("must end with the database: nothing is known behind it"));
    }
    if !parts.username().is_empty() && parts.password().is_none() {
        return Err(UrlError::Part("has a user without a password (redis://user:password@host)"));
    }
    if parts.port() == Some(0) {
        return Err(UrlError::Part("the port must be from 1 to 65535"));
    }
    let database = parts.path().trim_start_matches('/');
    if !database.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(UrlError::Part("the database must be a number"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_never_shows_the_password() {
        for (url, name) in [
            ("redis://127.0.0.1:6379/0", "127.0.0.1:6379"),
            ("redis://me:secret@redis.example:7000/3", "redis.example:7000"),
            ("redis://:secret@[::1]", "::1:6379"),
            ("unix:///run/redis.sock?pass=secret", "unix:/run/redis.sock"),
        ] {
            assert_eq!(Server::parse(url).expect(url).name(), name);
        }
    }

    #[test]
    fn a_wrong_address_is_refused_without_repeating_it() {
        for (url, error) in [
            ("127.0.0.1:6379", UrlError::Scheme),
            ("http://localhost", UrlError::Scheme),
            ("", UrlError::Scheme),
            ("rediss://:secret@localhost", UrlError::Tls),
            ("redis://", UrlError::Unreadable),
            ("redis://:secret@host:port", UrlError::Unreadable),
            ("redis://:secret@host/99999999999999999999", UrlError::Unreadable),
        ] {
            let refused = Server::parse(url).expect_err(url);
            assert_eq!(refused, error, "{url}");
            assert!(!refused.to_string().contains("secret"));
        }
        for url in [
            "redis://:secret@host/zero",
            "redis://host/-1",
            "redis://host:0",
            "redis://host/0?protocol=resp2",
            "redis://secret@host",
        ] {
            let refused = Server::parse(url).expect_err(url);
            assert!(matches!(refused, UrlError::Part(_)), "{url}: {refused:?}");
            assert!(!refused.to_string().contains("secret"));
        }
    }
}
