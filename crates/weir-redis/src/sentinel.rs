//! Which server Sentinel says is the primary.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{ConnectionAddr, ErrorKind, ProtocolVersion, RedisError, RedisResult};
use tokio::sync::Mutex;

use crate::access::{Access, Tls, tcp};
use crate::address::Place;
use crate::server::Server;

/// The sentinels of a primary, asked through the crate's own client.
#[derive(Clone)]
pub(crate) struct Sentinels {
    client: Arc<Mutex<SentinelClient>>,
    master: String,
    /// How the primary is connected to.
    access: Access,
}

impl std::fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sentinels").field("master", &self.master).finish_non_exhaustive()
    }
}

impl Sentinels {
    /// `user` and `password` are the sentinels' own.
    pub(crate) fn new(
        sentinels: &[Place],
        master: &str,
        user: Option<&str>,
        password: Option<&str>,
        access: Access,
    ) -> RedisResult<Self> {
        let places = sentinels.iter().filter_map(|place| match place {
            Place::Tcp { host, port } => Some(ConnectionAddr::Tcp(host.clone(), *port)),
            Place::Tls { host, port } => Some(ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: false,
                tls_params: None,
            }),
            Place::Unix(_) => None,
        });
        let mut builder = SentinelClientBuilder::new(places, master, SentinelServerType::Master)?
            .set_client_to_redis_protocol(ProtocolVersion::RESP3)
            .set_client_to_redis_tcp_settings(tcp())
            .set_client_to_sentinel_tcp_settings(tcp());
        if let Some(user) = access.settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = access.settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(user) = user {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = password {
            builder = builder.set_client_to_sentinel_password(password);
        }
        if let Some(Tls { certificates, mode, .. }) = &access.tls {
            builder = builder
                .set_client_to_redis_tls_mode(*mode)
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_tls_mode(*mode)
                .set_client_to_sentinel_certificates(certificates.clone());
        }
        let client = Arc::new(Mutex::new(builder.build()?));
        Ok(Self { client, master: master.to_owned(), access })
    }

    /// The name under which the sentinels watch it.
    pub(crate) fn master(&self) -> &str {
        &self.master
    }

    /// The server that is the primary now and says so itself.
    pub(crate) async fn primary(&self) -> RedisResult<Server> {
        let client = self.client.lock().await.async_get_client().await?;
        let place = match client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => Place::Tcp { host: host.clone(), port: *port },
            ConnectionAddr::TcpTls { host, port, .. } => {
                Place::Tls { host: host.clone(), port: *port }
            }
            _ => return Err(RedisError::from((ErrorKind::Client, "no address of a server"))),
        };
        self.access.server(&place)
    }

    /// The name of the server that a sentinel says is the primary; `None` if it
    /// knows none. The server is not asked: it has more to do. `kept` is the
    /// connection to the sentinel.
    pub(crate) async fn named(
        &self,
        kept: &mut Option<MultiplexedConnection>,
    ) -> RedisResult<Option<String>> {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => {
                let client = self.client.lock().await.async_get_sentinel_client().await?;
                client.get_multiplexed_async_connection().await?
            }
        };
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let named: Option<(String, u16)> = question.query_async(&mut connection).await?;
        *kept = Some(connection);
        Ok(named.map(|(host, port)| Place::Tcp { host, port }.to_string()))
    }
}
