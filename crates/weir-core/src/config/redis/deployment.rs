//! Which servers there are.

use crate::ConfigError;
use crate::config::fields::Fields;
use crate::config::secret::{self, ReadSecret, SecretString};

/// The servers, as they are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deployment {
    /// One server.
    Single {
        /// Its address: `redis://`, `rediss://` or `unix://`. May hold a password.
        url: SecretString,
    },
    /// The primary that sentinels name.
    Sentinel {
        /// Their addresses, at least one: all `redis://` or all `rediss://`, which
        /// then also holds for the servers that they name. Neither a user nor a
        /// password nor a database is in them.
        sentinels: Vec<String>,
        /// The primary's name, as the sentinels know it.
        master: String,
        /// The ACL user at the sentinels, never without a password.
        user: Option<String>,
        /// The password at the sentinels.
        password: Option<SecretString>,
    },
    /// A Redis Cluster.
    Cluster {
        /// Addresses of any of its nodes, at least one, as for sentinels.
        nodes: Vec<String>,
    },
}

impl Deployment {
    /// Whether it is reached by TLS.
    pub fn is_tls(&self) -> bool {
        match self {
            Self::Single { url } => is_tls(url.expose()),
            Self::Sentinel { sentinels: addresses, .. } | Self::Cluster { nodes: addresses } => {
                addresses.first().is_some_and(|address| is_tls(address))
            }
        }
    }

    /// What stands in the address does not stand beside it once more.
    pub(super) fn check_login_and_database(
        &self,
        fields: &Fields,
        user: bool,
        password: bool,
        database: bool,
    ) -> Result<(), ConfigError> {
        match self {
            Self::Single { url } => {
                let parts = Parts::of(url.expose());
                let named = [("user", user), ("password", password)];
                if let Some((field, _)) = named.iter().find(|(_, is_there)| *is_there)
                    && parts.has_login
                {
                    let problem = "cannot stand beside a url that has a user or a password";
                    return Err(fields.wrong(field, problem));
                }
                if database && parts.has_database {
                    return Err(fields.wrong("database", "cannot stand beside a url that has one"));
                }
            }
            Self::Sentinel { .. } => {}
            Self::Cluster { .. } if database => {
                let problem = "cannot stand beside cluster, which has database 0 alone";
                return Err(fields.wrong("database", problem));
            }
            Self::Cluster { .. } => {}
        }
        Ok(())
    }
}

pub(super) fn read(fields: &mut Fields, read: ReadSecret) -> Result<Deployment, ConfigError> {
    let ways = ["url", "sentinels", "cluster"].map(|way| (way, fields.has(way)));
    let mut ways = ways.into_iter().filter(|(_, is_there)| *is_there).map(|(way, _)| way);
    let Some(way) = ways.next() else {
        let wanted = "a string like \"redis://127.0.0.1:6379/0\", where there is neither \
                      sentinels nor cluster";
        return Err(fields.missing("url", wanted));
    };
    if let Some(other) = ways.next() {
        return Err(fields.wrong(other, format!("cannot stand beside {way}")));
    }
    let of_sentinels = ["master", "sentinel_user", "sentinel_password"];
    if way != "sentinels"
        && let Some(field) = of_sentinels.into_iter().find(|field| fields.has(field))
    {
        return Err(fields.wrong(field, "is for sentinels alone"));
    }
    match way {
        "sentinels" => sentinel(fields, read),
        "cluster" => {
            let wanted = "a list of addresses, as { \"redis://10.0.0.1:6379\" }";
            Ok(Deployment::Cluster { nodes: addresses(fields, "cluster", wanted)? })
        }
        _ => match secret::read(fields, "url", read)? {
            Some(url) => Ok(Deployment::Single { url }),
            None => Err(fields.missing("url", "an address")),
        },
    }
}

fn sentinel(fields: &mut Fields, read: ReadSecret) -> Result<Deployment, ConfigError> {
    let wanted = "a list of addresses, as { \"redis://10.0.0.1:26379\" }";
    let sentinels = addresses(fields, "sentinels", wanted)?;
    let Some(master) = fields.string("master")? else {
        let wanted = "the name that the sentinels have for the primary, as \"mymaster\"";
        return Err(fields.missing("master", wanted));
    };
    if master.is_empty() {
        return Err(fields.wrong("master", "is empty"));
    }
    let user = fields.string("sentinel_user")?;
    let password = secret::read(fields, "sentinel_password", read)?;
    super::check_login(fields, ["sentinel_user", "sentinel_password"], &user, &password)?;
    Ok(Deployment::Sentinel { sentinels, master, user, password })
}

/// Addresses of one kind, of which none has what all share.
fn addresses(
    fields: &mut Fields,
    field: &'static str,
    wanted: &str,
) -> Result<Vec<String>, ConfigError> {
    let addresses = fields.strings(field, wanted)?;
    for (index, address) in addresses.iter().enumerate() {
        let wrong = |problem: String| fields.wrong(&format!("{field}[{}]", index + 1), problem);
        if !address.starts_with("redis://") && !is_tls(address) {
            return Err(wrong("must begin with redis:// or rediss://".to_owned()));
        }
        // Anywhere: a password may have a "/" in it that should be a "%2F".
        if address.contains('@') {
            let own = match field {
                "sentinels" => "sentinel_user and sentinel_password",
                _ => "user and password",
            };
            return Err(wrong(format!("must have no user or password; they are {own}")));
        }
        if Parts::of(address).has_database {
            return Err(wrong("must have no database".to_owned()));
        }
        if is_tls(address) != is_tls(&addresses[0]) {
            let problem = format!("must begin as {field}[1] does: TLS and plain are never mixed");
            return Err(wrong(problem));
        }
    }
    Ok(addresses)
}

fn is_tls(address: &str) -> bool {
    address.starts_with("rediss://")
}

/// What an address has, as far as that decides about other fields.
struct Parts {
    has_login: bool,
    has_database: bool,
}

impl Parts {
    fn of(address: &str) -> Self {
        let (scheme, rest) = address.split_once("://").unwrap_or_default();
        let (rest, _) = rest.split_once('#').unwrap_or((rest, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if scheme.ends_with("unix") {
            // Of a socket it is the query that has them: `?user=me&pass=..&db=1`.
            let has = |name| query.split('&').any(|pair| pair.split('=').next() == Some(name));
            return Self { has_login: has("user") || has("pass"), has_database: has("db") };
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        Self { has_login: authority.contains('@'), has_database: !path.is_empty() }
    }
}
