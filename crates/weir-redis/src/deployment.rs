//! Where the decisions are made: one server, a primary that Sentinel names, or a
//! cluster.

use weir_core::ConfigError;
use weir_core::config::{Deployment as Config, RedisConfig};

use crate::access::{Access, Tls};
use crate::address::{Address, Place};
use crate::sentinel::Sentinels;
use crate::server::Server;

/// A deployment, checked; nothing is connected yet.
#[derive(Clone, Debug)]
pub struct Deployment(pub(crate) Kind);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Single(Server),
    Sentinel(Sentinels),
    Cluster {
        /// Where the map of the slots is asked for first.
        seeds: Vec<Place>,
        access: Access,
    },
}

const SENTINEL_PORT: u16 = 26379;
const REDIS_PORT: u16 = 6379;

impl Deployment {
    /// Takes the `redis` table, whose addresses and files it reads. Errors name
    /// the field, and never what may hold a password.
    pub fn new(config: &RedisConfig) -> Result<Self, ConfigError> {
        let kind = match &config.deployment {
            Config::Single { url } => Self::single(config, url.expose())?,
            Config::Sentinel { sentinels, master, user, password } => {
                let places = places("sentinels", sentinels, SENTINEL_PORT)?;
                let access = access(config)?;
                if config.tls.insecure_skip_verify && config.tls.cert_file.is_some() {
                    // The crate leaves it out when it asks a server whether it is
                    // the primary.
                    let problem = "cannot stand beside sentinels and insecure_skip_verify";
                    return Err(wrong("tls.cert_file", problem));
                }
                let password = password.as_ref().map(|password| password.expose());
                let sentinels = Sentinels::new(&places, master, user.as_deref(), password, access)
                    .map_err(|error| wrong("tls", &error.to_string()))?;
                Kind::Sentinel(sentinels)
            }
            Config::Cluster { nodes } => {
                let seeds = places("cluster", nodes, REDIS_PORT)?;
                let access = access(config)?;
                // What is wrong with the certificates is wrong at the start.
                for seed in &seeds {
                    access.server(seed).map_err(|error| wrong("tls", &error.to_string()))?;
                }
                Kind::Cluster { seeds, access }
            }
        };
        Ok(Self(kind))
    }

    fn single(config: &RedisConfig, url: &str) -> Result<Kind, ConfigError> {
        let Address { place, user, password, database } =
            Address::parse(url).map_err(|error| wrong("url", &error.to_string()))?;
        // The configuration has each of them in one place only.
        let access = Access::new(
            config.user.as_deref().or(user.as_deref()),
            config.password.as_ref().map(|password| password.expose()).or(password.as_deref()),
            config.database.map(i64::from).or(database),
            tls(config)?,
        );
        let server = access.server(&place).map_err(|error| wrong("tls", &error.to_string()))?;
        Ok(Kind::Single(server))
    }

    /// What it is called before it is known which servers it has.
    pub(crate) fn name(&self) -> String {
        match &self.0 {
            Kind::Single(server) => server.name().to_owned(),
            Kind::Sentinel(sentinels) => format!("primary {}", sentinels.master()),
            Kind::Cluster { seeds, .. } => {
                let first = seeds.first().map(Place::to_string).unwrap_or_default();
                format!("cluster {first}")
            }
        }
    }
}

fn places(field: &str, urls: &[String], port: u16) -> Result<Vec<Place>, ConfigError> {
    let place = |(index, url): (usize, &String)| {
        Place::parse(url, port)
            .map_err(|error| wrong(&format!("{field}[{}]", index + 1), &error.to_string()))
    };
    urls.iter().enumerate().map(place).collect()
}

fn access(config: &RedisConfig) -> Result<Access, ConfigError> {
    let password = config.password.as_ref().map(|password| password.expose());
    let database = config.database.map(i64::from);
    Ok(Access::new(config.user.as_deref(), password, database, tls(config)?))
}

fn tls(config: &RedisConfig) -> Result<Option<Tls>, ConfigError> {
    config.deployment.is_tls().then(|| Tls::read(&config.tls)).transpose()
}

fn wrong(field: &str, problem: &str) -> ConfigError {
    ConfigError::new(format!("redis.{field}"), problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::config::{Breaker, Tls};

    /// PEM that holds no certificate is found out by nobody but the crate.
    #[test]
    fn certificates_that_cannot_be_used_are_refused_at_the_start() {
        let file = std::env::temp_dir().join(format!("weir-ca-{}.pem", std::process::id()));
        let pem = "-----BEGIN CERTIFICATE-----\nMAAwAA==\n-----END CERTIFICATE-----\n";
        std::fs::write(&file, pem).expect("a file");
        let url = "rediss://redis.test".to_owned();
        let refused = [
            Config::Single { url: weir_core::config::SecretString::new(&url) },
            Config::Cluster { nodes: vec![url] },
        ]
        .map(|deployment| {
            Deployment::new(&RedisConfig {
                deployment,
                user: None,
                password: None,
                database: None,
                tls: Tls { ca_file: Some(file.display().to_string()), ..Tls::default() },
                connections: 1,
                breaker: Breaker::default(),
                timeout: std::time::Duration::from_secs(1),
                queue: 1,
                prefix: "weir".to_owned(),
            })
            .map(|_| ())
        });
        std::fs::remove_file(&file).expect("the file");
        for refused in refused {
            let error = refused.expect_err("an error").to_string();
            assert!(error.starts_with("redis.tls: "), "{error}");
        }
    }
}
