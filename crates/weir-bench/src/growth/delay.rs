//! A Redis further away: what the limiter adds to a request beyond the way there and
//! back.
//!
//! The suite's proxy makes the distance. What it really is, with the proxy's own
//! threads in it, is measured through the same proxy: by `PING`, from a client that
//! does nothing else.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use weir_tests::{Conf, Nginx, Proxy, Redis};

use super::report::Distance;
use super::{Options, progress};
use crate::conf;
use crate::measure::{self, Figures};
use crate::summary::Spread;
use crate::wrk::Load;

const CLIENTS: u32 = 1_000;
const PINGS: usize = 200;

/// No limiter, and what is limited.
const PATHS: [(&str, &str); 3] =
    [("/none", ""), ("/log", "sliding-log"), ("/bucket", "token-bucket")];

const POLICIES: &str = "
    log    = { key = \"$http_x_client\", limit = \"1000000/500ms\" },
    bucket = { key = \"$http_x_client\", limit = \"1000000/500ms\", algorithm = \"token-bucket\" }";

/// One for each distance, number of connections and algorithm.
pub fn measure(options: &Options) -> Result<Vec<Distance>> {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port());
    let conf = Conf::new(&proxy.url(), POLICIES)
        .access("/none", "")
        .limited("/log", "log")
        .limited("/bucket", "bucket");
    let nginx = Nginx::start(&conf);
    let mut ping = Ping::through(&proxy)?;
    let mut distances = Vec::new();
    for &delay_ms in &options.delays_ms {
        proxy.set_round_trip(Duration::from_millis(delay_ms));
        for &connections in &options.connections {
            redis.command::<()>("FLUSHALL SYNC");
            let load = Load { connections, threads: 1, seconds: options.seconds, clients: CLIENTS };
            let mut away = Vec::new();
            let mut rounds = PATHS.map(|_| Vec::<Figures>::new());
            // The first round is not counted: the limiter learns how far it is.
            for round in 0..=options.delay_rounds {
                progress(&format!("Redis {delay_ms} ms away, {connections} connections"));
                let away_us = ping.median_us()?;
                for ((path, _), rounds) in PATHS.iter().zip(&mut rounds) {
                    let (figures, all_passed) =
                        measure::measure(&nginx, &redis, &load, path, false)?;
                    all_passed?;
                    if round > 0 {
                        rounds.push(figures);
                    }
                }
                if round > 0 {
                    away.push(away_us);
                }
            }
            let [none, limited @ ..] = &rounds;
            for ((_, name), limited) in PATHS[1..].iter().zip(limited) {
                let beside = |figure: fn(&Figures, &Figures, f64) -> f64| {
                    let all = limited.iter().zip(none).zip(&away);
                    Spread::of(all.map(|((with, without), away)| figure(with, without, *away)))
                };
                distances.push(Distance {
                    series: (*name).to_owned(),
                    delay_ms,
                    connections,
                    away_us: beside(|_, _, away| away),
                    none_us: beside(|_, without, _| without.p50_us),
                    limited_us: beside(|with, _, _| with.p50_us),
                    beyond_us: beside(|with, without, away| with.p50_us - without.p50_us - away),
                    cpu_us: beside(|with, without, _| {
                        with.worker_us + with.redis_us - without.worker_us
                    }),
                    script_calls: beside(|with, _, _| with.script_calls),
                });
            }
        }
    }
    if let Some(line) = conf::complaint(&nginx.error_log()) {
        bail!("nginx complains: {line}");
    }
    Ok(distances)
}

/// How long the way to Redis and back takes.
struct Ping(redis::Connection);

impl Ping {
    fn through(proxy: &Proxy) -> Result<Self> {
        Ok(Self(redis::Client::open(proxy.url())?.get_connection()?))
    }

    fn median_us(&mut self) -> Result<f64> {
        let mut times = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let begun = Instant::now();
            redis::cmd("PING").query::<()>(&mut self.0)?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        Ok(Spread::of(times).median)
    }
}
