//! A Redis server, and how a connection to it comes about.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisResult};

use crate::error::{self, Code, Remedy};
use crate::lookup::OneLookup;
use crate::script;

/// A server by its address; nothing is connected yet.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    client: Client,
    name: String,
    lookup: OneLookup,
}

impl Server {
    /// `name` is for log lines; `found_at` the host that is connected to, where
    /// it is not the one that the client names to the server.
    pub(crate) fn new(client: Client, name: String, found_at: Option<String>) -> Self {
        Self { client, name, lookup: OneLookup::new(found_at) }
    }

    /// Its address without user and password.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    #[cfg(test)]
    pub(crate) fn shares_lookups(&self, other: &Self) -> bool {
        self.lookup.is_same_as(&other.lookup)
    }

    /// Connects. `lost` is called once when the connection ends later. Takes as
    /// long as it takes: bounded by the caller.
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
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Connects, brings the script along, and sees whether the server may write:
    /// one that takes connections and cannot decide, as one that has become a
    /// replica or reads its data set, is no use. There is nothing at `probe_key`,
    /// and so nothing is deleted.
    pub(crate) async fn connect_to_write(
        &self,
        probe_key: &str,
        lost: impl Fn() + Send + Sync + 'static,
    ) -> RedisResult<MultiplexedConnection> {
        let mut connection = self.connect(lost).await?;
        let mut first = redis::pipe();
        first.add_command(script::load()).cmd("UNLINK").arg(probe_key);
        let replies = connection.send_packed_commands(&first, 0, 2).await?;
        let mut replies = replies.into_iter().map(error::of_value);
        if let Some(loaded) = replies.next() {
            loaded?;
        }
        if let Some(Err(refusal)) = replies.next() {
            match Code::of(&error::words(&refusal)).remedy() {
                // It answers; what it says to each request is for the log.
                Remedy::GiveUp | Remedy::BringScript | Remedy::TryAgain | Remedy::Redirect => {}
                Remedy::Relocate | Remedy::Wait => return Err(refusal),
            }
        }
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, server};

    /// What it says to a write is what it will say to requests; what is against one
    /// command or key alone is for the log.
    #[test]
    fn a_server_that_cannot_decide_is_not_connected_to() {
        for (load, unlink, refused) in [
            ("+OK", ":0", None),
            ("+OK", "-READONLY a replica", Some("READONLY a replica")),
            ("+OK", "-MASTERDOWN it is", Some("MASTERDOWN it is")),
            ("+OK", "-LOADING the data set", Some("LOADING the data set")),
            ("-LOADING the data set", ":0", Some("LOADING the data set")),
            ("-NOPERM no", ":0", Some("NOPERM no")),
            ("+OK", "-NOPERM no", None),
            ("+OK", "-OOM no", None),
            ("+OK", "-MOVED 7 10.0.0.1:1", None),
            ("+OK", "-CLUSTERDOWN it is", None),
        ] {
            let connected = run(async {
                let (server, _) = server(load, unlink);
                server.connect_to_write("weir:{probe}:probe", || {}).await.map(drop)
            });
            let said = connected.as_ref().err().map(error::words);
            assert_eq!(said.as_deref(), refused, "{load}, {unlink}");
        }
    }
}
