//! What the limiter adds to a request: the same nginx with and without it.
//!
//! Rounds of the contenders are interleaved, so that a noisy machine is noisy
//! for all; medians are printed, and ratios are to be quoted.

use std::process::Command;
use std::time::Duration;

use weir_tests::{Conf, Nginx, Redis, process};

const ROUNDS: usize = 5;
const SECONDS: u32 = 2;
const CONNECTIONS: [u32; 3] = [1, 16, 64];

/// Where limits are decided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Memory,
    Redis,
}

/// The nginx that is asked, a path of it, and what is behind that. The first is what
/// the others are compared with.
const CONTENDERS: [(Store, &str, &str); 9] = [
    (Store::Memory, "/none", "no limiter"),
    (Store::Memory, "/limit_req", "limit_req"),
    (Store::Memory, "/limit_req_denied", "limit_req, refused"),
    (Store::Redis, "/log", "Redis, sliding log"),
    (Store::Redis, "/denied", "Redis, refused (remembered)"),
    (Store::Memory, "/log", "memory, sliding log"),
    (Store::Memory, "/counter", "memory, sliding counter"),
    (Store::Memory, "/bucket", "memory, token bucket"),
    (Store::Memory, "/denied", "memory, refused"),
];

/// As a key, 4,096 clients at random.
const CLIENTS: &str = "map $request_id $client { ~^(?<first>...) $first; }
    limit_req_zone $client zone=many:10m rate=100000r/s;
    limit_req_zone $client zone=none:10m rate=1r/m;
    limit_req_status 429;";

const POLICIES: &str = "
    log     = { key = \"$client\", limit = \"40000/1s\" },
    counter = { key = \"$client\", limit = \"1000000/1s\", algorithm = \"sliding-counter\" },
    bucket  = { key = \"$client\", limit = \"1000000/1s\", algorithm = \"token-bucket\" },
    denied  = { key = \"one\", limit = \"1/1h\" }";

/// One round's figures.
#[derive(Clone, Copy, Default)]
struct Figures {
    per_second: f64,
    median: Duration,
    /// CPU of nginx and of Redis, for each request.
    nginx_cpu: Duration,
    redis_cpu: Duration,
}

fn main() {
    let redis = Redis::start();
    let in_redis = start(&format!("redis = {{ url = \"{}\", timeout = \"5s\" }},", redis.url()));
    let in_memory = start("");
    let nginx = |store| match store {
        Store::Redis => &in_redis,
        Store::Memory => &in_memory,
    };

    println!(
        "{ROUNDS} rounds of {SECONDS} s each, one worker, 4,096 clients; medians, and ratios to \
         no limiter\n"
    );
    println!(
        "{:<12} {:<28} {:>11} {:>6} {:>9} {:>6} {:>12} {:>12}",
        "connections", "", "requests/s", "", "p50", "", "nginx CPU", "Redis CPU"
    );
    for connections in CONNECTIONS {
        let mut rounds = [const { Vec::new() }; CONTENDERS.len()];
        for round in 1..=ROUNDS {
            for (contender, (store, path, name)) in CONTENDERS.iter().enumerate() {
                eprint!("\r{connections} connections, round {round} of {ROUNDS}: {name:<40}");
                redis.command::<()>("FLUSHALL");
                rounds[contender].push(measure(nginx(*store), &redis, path, connections));
            }
        }
        eprint!("\r{:<80}\r", "");
        let base = median(&rounds[0]);
        for ((_, _, name), rounds) in CONTENDERS.iter().zip(&rounds) {
            let figures = median(rounds);
            println!(
                "{connections:<12} {name:<28} {:>11.0} {:>6.2} {:>6} µs {:>6.2} {:>9.1} µs {:>9.1} µs",
                figures.per_second,
                figures.per_second / base.per_second,
                figures.median.as_micros(),
                figures.median.as_secs_f64() / base.median.as_secs_f64(),
                figures.nginx_cpu.as_secs_f64() * 1e6,
                figures.redis_cpu.as_secs_f64() * 1e6,
            );
        }
    }
}

/// An nginx with all paths, and these fields of `setup`.
fn start(fields: &str) -> Nginx {
    let mut conf = Conf::with_setup(&format!("{{ {fields} policies = {{ {POLICIES} }} }}"))
        .access("/none", "")
        .limited("/log", "log")
        .limited("/counter", "counter")
        .limited("/bucket", "bucket")
        .limited("/denied", "denied");
    conf.http = CLIENTS.to_owned();
    for (path, zone) in [("/limit_req", "many burst=1000 nodelay"), ("/limit_req_denied", "none")] {
        conf = conf.server(&format!(
            "location {path} {{ limit_req zone={zone}; access_by_lua_block {{ }} \
             content_by_lua_block {{ ngx.print(\"ok\") }} }}"
        ));
    }
    Nginx::start(&conf)
}

fn measure(nginx: &Nginx, redis: &Redis, path: &str, connections: u32) -> Figures {
    let (worker, server) = (nginx.workers()[0], redis.pid());
    let before = (process::cpu(worker), process::cpu(server));
    let output = Command::new("wrk")
        .args(["--latency", "-t", "1", "-c", &connections.to_string()])
        .args(["-d", &SECONDS.to_string(), &format!("http://127.0.0.1:{}{path}", nginx.port())])
        .output()
        .expect("wrk runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let after = (process::cpu(worker), process::cpu(server));
    let field = |name: &str| -> &str {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(name))
            .unwrap_or_else(|| panic!("no {name:?} in what wrk printed: {text}"))
            .trim()
    };
    let per_second: f64 = field("Requests/sec:").parse().expect("a number");
    let requests = per_second * f64::from(SECONDS);
    Figures {
        per_second,
        median: span(field("50%")),
        nginx_cpu: (after.0 - before.0).div_f64(requests),
        redis_cpu: (after.1 - before.1).div_f64(requests),
    }
}

/// Reads wrk's `123.00us`, `1.23ms` or `1.23s`.
fn span(text: &str) -> Duration {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = text[..text.len() - unit.len()].parse().expect("a number");
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => panic!("{text}"),
    };
    Duration::from_secs_f64(number * seconds)
}

/// The median of each figure by itself.
fn median(rounds: &[Figures]) -> Figures {
    fn middle<T: PartialOrd + Copy>(rounds: &[Figures], figure: impl Fn(&Figures) -> T) -> T {
        let mut values: Vec<T> = rounds.iter().map(figure).collect();
        values.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
        values[values.len() / 2]
    }
    Figures {
        per_second: middle(rounds, |round| round.per_second),
        median: middle(rounds, |round| round.median),
        nginx_cpu: middle(rounds, |round| round.nginx_cpu),
        redis_cpu: middle(rounds, |round| round.redis_cpu),
    }
}
