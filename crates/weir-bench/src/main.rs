//! What the limiter adds to a request, in CPU and in time, side by side with what
//! would be run instead: docs/bench.md.

mod conf;
mod contenders;
mod measure;
mod wrk;

use anyhow::Result;
use weir_tests::Redis;

fn main() -> Result<()> {
    let redis = Redis::start();
    let contenders: Vec<_> = contenders::all().iter().collect();
    let servers = conf::Servers::start(&contenders, &redis, 1);
    let load = wrk::Load { connections: 16, threads: 1, seconds: 1, clients: 1000 };
    for contender in contenders {
        redis.command::<()>("FLUSHALL SYNC");
        let nginx = servers.of(contender);
        conf::ask_first(nginx, contender, load.clients)?;
        let path = format!("/{}", contender.id);
        let refused = contender.expected.is_refusal();
        let figures = measure::measure(nginx, &redis, &load, &path, refused)?;
        println!("{}: {figures:?}", contender.name);
    }
    servers.must_be_calm()
}
