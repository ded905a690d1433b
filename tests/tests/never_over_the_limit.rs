//! Promise 1: no window holds more than the limit, whoever races for the last
//! place.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Commands;
use weir_tests::{Client, Conf, Nginx, Redis, in_parallel};

const CLIENTS: usize = 50;

/// What a limiter of two commands does under the same race: the control that
/// shows that the race is one.
#[test]
fn a_limiter_of_two_commands_admits_more_than_its_limit() {
    let redis = Redis::start();
    let limit = 20;
    let overrun = (0..5).any(|run| {
        let key = format!("naive-{run}");
        let admitted = AtomicUsize::new(0);
        in_parallel(CLIENTS, |_| {
            let mut connection = redis.connect();
            for _ in 0..4 {
                let count: Option<usize> = connection.get(&key).unwrap();
                if count.unwrap_or(0) < limit {
                    let _: usize = connection.incr(&key, 1).unwrap();
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        admitted.into_inner() > limit
    });
    assert!(overrun, "50 clients never raced; the next test would prove nothing");
}

#[test]
fn two_nginx_with_two_workers_each_admit_exactly_the_limit() {
    let redis = Redis::start();
    let limits = [1, 7, 20, 100];
    let policies: String =
        limits.iter().map(|limit| format!("p{limit} = {{ limit = \"{limit}/1h\" }},")).collect();
    let conf = limits.iter().fold(Conf::new(&redis.url(), &policies).workers(2), |conf, limit| {
        let lua =
            format!("require(\"resty.weir\").access(\"p{limit}\", {{ key = ngx.var.arg_k }})");
        conf.access(&format!("/{limit}"), &lua)
    });
    let edges = [Nginx::start(&conf), Nginx::start(&conf)];
    edges.iter().for_each(|edge| edge.wait_for_workers(2));
    for run in 0..3 {
        for limit in limits {
            let path = format!("/{limit}?k=run-{run}");
            let statuses = in_parallel(CLIENTS, |index| {
                // A connection for each request spreads them over the workers.
                let client = Client::without_keepalive(edges[index % 2].port());
                let ask = || {
                    let answer = client.get(&path);
                    // Whoever was not woken would wait for the next heartbeat.
                    assert!(answer.elapsed < Duration::from_millis(1_500), "{answer:?}");
                    answer.status
                };
                (0..4).map(|_| ask()).collect::<Vec<_>>()
            });
            let statuses = statuses.concat();
            let passed = statuses.iter().filter(|&&status| status == 200).count();
            let refused = statuses.iter().filter(|&&status| status == 429).count();
            assert_eq!((passed, refused), (limit, 4 * CLIENTS - limit), "limit {limit}, run {run}");
        }
    }
    edges.iter().for_each(Nginx::assert_calm_log);
}

/// C01: what counts is the request's arrival, however long its answer takes.
#[test]
fn requests_to_a_slow_upstream_count_when_they_come() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), "api = { limit = \"5/1h\" }").server(
        "location /slow { access_by_lua_block { require(\"resty.weir\").access(\"api\") } \
         content_by_lua_block { ngx.sleep(0.3) ngx.print(\"ok\") } }",
    );
    let nginx = Nginx::start(&conf);
    let statuses = in_parallel(100, |_| Client::new(nginx.port()).get("/slow").status);
    assert_eq!(statuses.iter().filter(|&&status| status == 200).count(), 5);
    assert_eq!(statuses.iter().filter(|&&status| status == 429).count(), 95);
}
