//! Real servers for the tests: started on free ports, stopped on drop.
//!
//! From the environment: `NGINX`, the nginx to run (default `nginx`);
//! `LUALIB`, a directory of Lua libraries to look in first (default: Weir as
//! `make test` installed it, then nginx's own path); `REDIS_SERVER`, the Redis
//! to run (default `redis-server`). HTTP/2 is spoken by `nghttp` and `h2load`,
//! metrics are read by `promtool` and `prometheus`; networks are made by `ip` and
//! `iptables`, and need root.

pub mod acl;
pub mod certificates;
pub mod client;
pub mod cluster;
pub mod every_algorithm;
pub mod fake_redis;
pub mod gate;
pub mod http2;
pub mod limited;
pub mod load;
pub mod metrics;
pub mod network;
pub mod nginx;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod redis_server;
pub mod run;
pub mod script;
pub mod sentinel_set;
pub mod subject;
pub mod tap;
pub mod trace;
pub mod traffic;
pub mod turn;
pub mod wire;

pub use certificates::Authority;
pub use client::{Answer, Client};
pub use cluster::Cluster;
pub use http2::{Http2, Stream};
pub use load::{Answers, Load};
pub use metrics::Metrics;
pub use network::Network;
pub use nginx::{Conf, Nginx};
pub use prometheus::Prometheus;
pub use proxy::Proxy;
pub use redis_server::Redis;
pub use run::Run;
pub use sentinel_set::SentinelSet;
pub use traffic::{Asked, Traffic};

use std::time::{Duration, Instant};

/// Whether loops are to go on for long, as `make torture` has them.
pub fn is_torture() -> bool {
    std::env::var_os("WEIR_TORTURE").is_some()
}

/// Waits until `condition` holds; panics after `limit`, naming what was
/// waited for.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    begun.elapsed()
}

/// Runs `work(index)` on `threads` threads that begin together; returns what
/// they return.
pub fn in_parallel<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        let (start, work) = (&start, &work);
        let running: Vec<_> = (0..threads)
            .map(|index| {
                scope.spawn(move || {
                    start.wait();
                    work(index)
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
