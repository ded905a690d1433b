//! Name look-ups, one at a time.
//!
//! A look-up runs in a thread that cannot be interrupted. An attempt to connect
//! that times out leaves it running, and the next attempt waits for the same
//! one: with a look-up of its own for each attempt they would queue, and go on
//! for minutes after the name server is back.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use redis::RedisFuture;
use redis::io::AsyncDNSResolver;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

type Addresses = io::Result<Vec<SocketAddr>>;

/// A resolver that has at most one look-up under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct OneLookup {
    /// The host to look up, whatever host is asked for.
    found_at: Option<Arc<str>>,
    under_way: Arc<Mutex<Option<JoinHandle<Addresses>>>>,
}

impl OneLookup {
    pub(crate) fn new(found_at: Option<String>) -> Self {
        Self { found_at: found_at.map(Arc::from), under_way: Arc::default() }
    }

    #[cfg(test)]
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.under_way, &other.under_way)
    }
}

impl AsyncDNSResolver for OneLookup {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let mut under_way = self.under_way.lock().await;
            let lookup = under_way.get_or_insert_with(|| {
                let host = self.found_at.as_deref().unwrap_or(host).to_owned();
                tokio::spawn(
                    async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) },
                )
            });
            // Dropped here by a timeout, the look-up stays for the next call.
            let found = lookup.await;
            *under_way = None;
            let addresses = found.map_err(io::Error::other)??;
            Ok(Box::new(addresses.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_abandoned_look_up_is_the_next_ones_answer() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let resolver = OneLookup::default();
            let slow = tokio::spawn(async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Ok(vec![SocketAddr::from(([192, 0, 2, 1], 7))])
            });
            *resolver.under_way.lock().await = Some(slow);
            let soon = Duration::from_millis(1);
            let given_up = tokio::time::timeout(soon, resolver.resolve("other", 9)).await;
            assert!(given_up.is_err());
            let found: Vec<_> = resolver.resolve("other", 9).await.expect("it ends").collect();
            assert_eq!(found, [SocketAddr::from(([192, 0, 2, 1], 7))]);
            assert!(resolver.under_way.lock().await.is_none());
        });
    }
}
