//! How every server of a deployment is connected to: user, password, database,
//! TLS.

use std::fs;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisResult, TlsCertificates, TlsMode,
};
use weir_core::ConfigError;
use weir_core::config::Tls as TlsConfig;

use crate::address::Place;
use crate::server::Server;

/// What the servers of a deployment have in common.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) settings: RedisConnectionInfo,
    /// `None` for servers that are spoken to without TLS.
    pub(crate) tls: Option<Tls>,
}

/// How a server proves who it is, and we to it.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) certificates: TlsCertificates,
    pub(crate) mode: TlsMode,
    /// The name that is asked for and verified in place of the host.
    pub(crate) server_name: Option<String>,
}

impl Access {
    pub(crate) fn new(
        user: Option<&str>,
        password: Option<&str>,
        database: Option<i64>,
        tls: Option<Tls>,
    ) -> Self {
        // RESP3, in which the crate tells of a lost connection at once and not
        // only to the next request.
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("weir", env!("CARGO_PKG_VERSION"))
            .set_db(database.unwrap_or(0));
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        Self { settings, tls }
    }

    /// The server at this place. Fails only where the crate finds fault with the
    /// certificates.
    pub(crate) fn server(&self, place: &Place) -> RedisResult<Server> {
        let name = place.to_string();
        let (host, port) = match place {
            Place::Unix(path) => {
                let client = self.client(ConnectionAddr::Unix(path.clone()))?;
                return Ok(Server::new(client, name, None));
            }
            Place::Tcp { host, port } | Place::Tls { host, port } => (host, *port),
        };
        let Some(tls) = &self.tls else {
            let client = self.client(ConnectionAddr::Tcp(host.clone(), port))?;
            return Ok(Server::new(client, name, None));
        };
        let address = ConnectionAddr::TcpTls {
            host: tls.server_name.clone().unwrap_or_else(|| host.clone()),
            port,
            insecure: tls.mode == TlsMode::Insecure,
            tls_params: None,
        };
        let found_at = tls.server_name.is_some().then(|| host.clone());
        let client = Client::build_with_tls(self.info(address)?, tls.certificates.clone())?;
        Ok(Server::new(client, name, found_at))
    }

    fn client(&self, address: ConnectionAddr) -> RedisResult<Client> {
        Client::open(self.info(address)?)
    }

    fn info(&self, address: ConnectionAddr) -> RedisResult<ConnectionInfo> {
        let info = address.into_connection_info()?;
        Ok(info.set_tcp_settings(tcp()).set_redis_settings(self.settings.clone()))
    }
}

/// How a connection over TCP behaves.
pub(crate) fn tcp() -> TcpSettings {
    TcpSettings::default()
        // The crate leaves Nagle's algorithm on: calls in flight would wait for
        // the acknowledgement of the one before.
        .set_nodelay(true)
        .set_keepalive(
            TcpKeepalive::new()
                .with_time(Duration::from_secs(15))
                .with_interval(Duration::from_secs(5))
                .with_retries(3),
        )
        .set_user_timeout(Duration::from_secs(10))
}

impl Tls {
    /// Reads the files that `redis.tls` names.
    pub(crate) fn read(config: &TlsConfig) -> Result<Self, ConfigError> {
        let read = |field: &str, path: &Option<String>| {
            path.as_ref()
                .map(|path| {
                    fs::read(path).map_err(|error| wrong(field, &format!("{path}: {error}")))
                })
                .transpose()
        };
        let root_cert = read("ca_file", &config.ca_file)?;
        let client_cert = read("cert_file", &config.cert_file)?;
        let client_key = read("key_file", &config.key_file)?;
        let client_tls = match (client_cert, client_key) {
            (Some(client_cert), Some(client_key)) => {
                Some(ClientTlsConfig { client_cert, client_key })
            }
            _ => None,
        };
        let tls = Self {
            certificates: TlsCertificates { client_tls, root_cert },
            mode: if config.insecure_skip_verify { TlsMode::Insecure } else { TlsMode::Secure },
            server_name: config.server_name.clone(),
        };
        tls.check(config)?;
        Ok(tls)
    }

    /// The crate reads the files when it connects; what is wrong with them is
    /// wrong at the start.
    fn check(&self, config: &TlsConfig) -> Result<(), ConfigError> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

        let holds_certificates = |field: &str, path: &Option<String>, pem: &[u8]| {
            let path = path.as_deref().unwrap_or_default();
            match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
                Ok(found) if !found.is_empty() => Ok(()),
                Ok(_) => Err(wrong(field, &format!("{path}: holds no certificate in PEM"))),
                Err(error) => Err(wrong(field, &format!("{path}: {error}"))),
            }
        };
        if let Some(pem) = &self.certificates.root_cert {
            holds_certificates("ca_file", &config.ca_file, pem)?;
        }
        if let Some(client) = &self.certificates.client_tls {
            holds_certificates("cert_file", &config.cert_file, &client.client_cert)?;
            if PrivateKeyDer::from_pem_slice(&client.client_key).is_err() {
                let path = config.key_file.as_deref().unwrap_or_default();
                return Err(wrong("key_file", &format!("{path}: holds no private key in PEM")));
            }
            self.check_pair(config)?;
        }
        if let Some(name) = &self.server_name
            && ServerName::try_from(name.as_str()).is_err()
        {
            return Err(wrong("server_name", &format!("{name:?} is not a host name")));
        }
        Ok(())
    }

    /// Whether the private key is that of the certificate.
    fn check_pair(&self, config: &TlsConfig) -> Result<(), ConfigError> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let Some(client) = &self.certificates.client_tls else { return Ok(()) };
        let chain = CertificateDer::pem_slice_iter(&client.client_cert).flatten().collect();
        let Ok(key) = PrivateKeyDer::from_pem_slice(&client.client_key) else { return Ok(()) };
        let client = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_client_auth_cert(chain, key);
        match client {
            Ok(_) => Ok(()),
            Err(error) => {
                let path = config.key_file.as_deref().unwrap_or_default();
                Err(wrong("key_file", &format!("{path}: does not go with cert_file: {error}")))
            }
        }
    }
}

fn wrong(field: &str, problem: &str) -> ConfigError {
    ConfigError::new(format!("redis.tls.{field}"), problem)
}
