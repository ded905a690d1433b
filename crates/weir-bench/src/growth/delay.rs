//! A Redis further away: what the limiter adds to a request beyond the way there and
//! back, and what the glue adds there.
//!
//! The suite's proxy makes the distance. What it really is, with the proxy's own
//! threads in it, is measured through the same proxy: by `PING`, from a client that
//! does nothing else.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use weir_tests::{Nginx, Proxy, Redis, process};

use super::Bench;
use super::report::{Distance, Place};
use crate::conf::{self, Watched};
use crate::contenders::{self, BASE, Contender, GLUE_BY_SHA};
use crate::measure::{self, Figures};
use crate::summary::Spread;
use crate::wrk::Load;

const CLIENTS: u32 = 1_000;
pub const PINGS: usize = 200;

/// No limiter, what is limited by hand, and what Weir limits: from the same worker,
/// through the same proxy. The glue has a connection for each request under way.
pub const CONTENDERS: [&str; 4] = [BASE, GLUE_BY_SHA, "sliding-log", "token-bucket"];

/// One for each distance, number of connections and limiter.
pub fn measure(bench: &mut Bench<'_>, faults: &mut Vec<String>) -> Result<Vec<Distance>> {
    let Bench { redis, settings, .. } = *bench;
    let proxy = Proxy::to(redis.port());
    let contenders =
        CONTENDERS.map(|id| contenders::find(id).expect("it is one of all contenders"));
    let conf = conf::over_redis(contenders.into_iter(), ("127.0.0.1", proxy.port()));
    let mut nginx = Watched::new(Nginx::start(&conf));
    let mut ping = Ping::through(&proxy)?;
    let mut distances = Vec::new();
    for &delay_ms in &settings.delays_ms {
        proxy.set_round_trip(Duration::from_millis(delay_ms));
        for &connections in &settings.connections {
            let at = Place { delay_ms, connections };
            let seconds = settings.seconds;
            let load = Load { connections, threads: 1, seconds, clients: CLIENTS };
            let mut away = Vec::new();
            let mut rounds = CONTENDERS.map(|_| Vec::<Round>::new());
            // The first round is not counted: the limiter learns how far it is, and the
            // glue connects.
            for round in 0..=settings.delay_rounds {
                bench.progress.goes_on(&at.to_string());
                let away_us = ping.median_us()?;
                for (contender, rounds) in contenders.iter().zip(&mut rounds) {
                    let (measured, right) = one_round(&nginx, redis, &load, contender)
                        .with_context(|| format!("{}, {at}", contender.name))?;
                    if let Err(fault) = nginx.must_be_calm().and(right) {
                        let fault = format!("{}, {at}, round {round}: {fault:#}", contender.name);
                        bench.progress.says(&fault);
                        faults.push(fault);
                    }
                    if round > 0 {
                        rounds.push(measured);
                    }
                }
                if round > 0 {
                    away.push(away_us);
                }
            }
            let [none, limited @ ..] = &rounds;
            let limited = contenders[1..].iter().zip(limited);
            distances.extend(limited.map(|(of, limited)| distance(of, at, limited, none, &away)));
        }
    }
    Ok(distances)
}

/// What was measured of a contender, and the proxy's CPU for each request.
struct Round {
    figures: Figures,
    proxy_us: f64,
}

fn one_round(
    nginx: &Watched,
    redis: &Redis,
    load: &Load,
    contender: &Contender,
) -> Result<(Round, Result<()>)> {
    redis.command::<()>("FLUSHALL SYNC");
    conf::ask_first(nginx, contender, load.clients)?;
    // The proxy is all that this process does meanwhile.
    let cpu = || process::cpu(std::process::id());
    let before = cpu();
    let (figures, right) = measure::measure(nginx, redis, load, &contender.path(), false)?;
    let requests = figures.rate * f64::from(load.seconds);
    let proxy_us = (cpu() - before).as_secs_f64() * 1e6 / requests;
    Ok((Round { figures, proxy_us }, right))
}

/// What the rounds come to, each compared with those that ran beside it.
fn distance(
    contender: &Contender,
    place: Place,
    limited: &[Round],
    none: &[Round],
    away: &[f64],
) -> Distance {
    let over = |figure: fn(&Round) -> f64| Spread::of(limited.iter().map(figure));
    let beside = |figure: fn(&Figures, &Figures, f64) -> f64| {
        let all = limited.iter().zip(none).zip(away);
        Spread::of(
            all.map(|((with, without), away)| figure(&with.figures, &without.figures, *away)),
        )
    };
    Distance {
        id: contender.id,
        name: contender.name,
        place,
        away_us: beside(|_, _, away| away),
        none_us: beside(|_, without, _| without.p50_us),
        limited_us: over(|with| with.figures.p50_us),
        beyond_us: beside(|with, without, away| with.p50_us - without.p50_us - away),
        cpu_us: beside(|with, without, _| with.worker_us + with.redis_us - without.worker_us),
        script_calls: over(|with| with.figures.script_calls),
        proxy_us: over(|with| with.proxy_us),
    }
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
