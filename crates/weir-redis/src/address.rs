//! Addresses as an operator writes them.

use redis::{ConnectionAddr, IntoConnectionInfo};
use thiserror::Error;

/// A server's address, and what else its URL said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) place: Place,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<i64>,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16 },
    Unix(std::path::PathBuf),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
            Place::Tcp { host, port } | Place::Tls { host, port } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            Place::Tcp { host, port } | Place::Tls { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// What is wrong with an address. Never repeats it: it may hold a password.
#[derive(Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub(crate) enum AddressError {
    #[error("must begin with redis://, rediss:// or unix://")]
    Scheme,
    /// A part that the server would not see, or that nobody would serve.
    #[error("{0}")]
    Part(&'static str),
    #[error(
        "cannot be read; expected redis://[[user]:password@]host[:port][/database], \
         rediss:// for TLS, or unix:///path/to/redis.sock"
    )]
    Unreadable,
}

impl Address {
    /// Reads `redis://[[user]:password@]host[:port][/database]`, the same with
    /// `rediss://` for TLS, or `unix:///path`.
    pub(crate) fn parse(url: &str) -> Result<Self, AddressError> {
        let known = ["redis://", "rediss://", "unix://", "redis+unix://"];
        if !known.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(AddressError::Scheme);
        }
        let has_database = check_parts(url)?;
        let info = url.into_connection_info().map_err(|_| AddressError::Unreadable)?;
        let settings = info.redis_settings();
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Place::Tcp { host: host.clone(), port: *port },
            ConnectionAddr::TcpTls { host, port, .. } => {
                Place::Tls { host: host.clone(), port: *port }
            }
            ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
            _ => return Err(AddressError::Unreadable),
        };
        Ok(Self {
            database: (has_database || matches!(place, Place::Unix(_)) && settings.db() != 0)
                .then(|| settings.db()),
            place,
            user: settings.username().map(str::to_owned),
            password: settings.password().map(str::to_owned),
        })
    }
}

impl Place {
    /// Reads `redis://host[:port]` or `rediss://host[:port]`.
    pub(crate) fn parse(url: &str, default_port: u16) -> Result<Self, AddressError> {
        let mut place = Address::parse(url)?.place;
        let has_port = redis::parse_redis_url(url).is_some_and(|parts| parts.port().is_some());
        if let Place::Tcp { port, .. } | Place::Tls { port, .. } = &mut place
            && !has_port
        {
            *port = default_port;
        }
        Ok(place)
    }
}

/// Refuses what the crate would pass over in silence. Whether there is a
/// database.
fn check_parts(url: &str) -> Result<bool, AddressError> {
    let Some(parts) = redis::parse_redis_url(url) else { return Err(AddressError::Unreadable) };
    if !matches!(parts.scheme(), "redis" | "rediss") {
        return Ok(false);
    }
    if parts.query().is_some() || parts.fragment().is_some() {
        return Err(AddressError::Part("must end with the database: nothing is known behind it"));
    }
    if !parts.username().is_empty() && parts.password().is_none() {
        return Err(AddressError::Part(
            "has a user without a password (redis://user:password@host)",
        ));
    }
    if parts.port() == Some(0) {
        return Err(AddressError::Part("the port must be from 1 to 65535"));
    }
    let database = parts.path().trim_start_matches('/');
    if !database.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(AddressError::Part("the database must be a number"));
    }
    Ok(!database.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let read = |url| Address::parse(url).expect(url);
        let tcp = |host: &str, port| Place::Tcp { host: host.to_owned(), port };
        assert_eq!(read("redis://127.0.0.1:6379/0").place, tcp("127.0.0.1", 6379));
        assert_eq!(read("redis://127.0.0.1").database, None);
        assert_eq!(read("redis://127.0.0.1/").database, None);
        let full = read("redis://me:s%40crt@redis.example:7000/3");
        assert_eq!(full.place, tcp("redis.example", 7000));
        assert_eq!((full.user.as_deref(), full.password.as_deref()), (Some("me"), Some("s@crt")));
        assert_eq!(full.database, Some(3));
        assert_eq!(read("redis://:secret@[::1]").place, tcp("::1", 6379));
        let tls = Place::Tls { host: "redis.example".to_owned(), port: 6379 };
        assert_eq!(read("rediss://redis.example").place, tls);
        let socket = read("unix:///run/redis.sock?pass=secret&db=2");
        assert_eq!(socket.place, Place::Unix("/run/redis.sock".into()));
        assert_eq!((socket.password.as_deref(), socket.database), (Some("secret"), Some(2)));
    }

    #[test]
    fn a_port_has_a_default_of_its_kind() {
        let place = |url| Place::parse(url, 26379);
        let tcp = |port| Ok(Place::Tcp { host: "s1".to_owned(), port });
        assert_eq!(place("redis://s1"), tcp(26379));
        assert_eq!(place("redis://s1:6379"), tcp(6379));
    }

    #[test]
    fn a_wrong_address_is_refused_without_repeating_it() {
        for (url, error) in [
            ("127.0.0.1:6379", AddressError::Scheme),
            ("http://localhost", AddressError::Scheme),
            ("", AddressError::Scheme),
            ("redis://", AddressError::Unreadable),
            ("redis://:secret@host:port", AddressError::Unreadable),
            ("redis://:secret@host/99999999999999999999", AddressError::Unreadable),
        ] {
            let refused = Address::parse(url).expect_err(url);
            assert_eq!(refused, error, "{url}");
            assert!(!refused.to_string().contains("secret"));
        }
        for url in [
            "redis://:secret@host/zero",
            "redis://host/-1",
            "redis://host:0",
            "redis://host/0?protocol=resp2",
            "rediss://host/0#insecure",
            "redis://secret@host",
        ] {
            let refused = Address::parse(url).expect_err(url);
            assert!(matches!(refused, AddressError::Part(_)), "{url}: {refused:?}");
            assert!(!refused.to_string().contains("secret"));
        }
    }
}
