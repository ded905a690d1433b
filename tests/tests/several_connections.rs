//! Connections that are lost, refused or useless cost no more than they have to,
//! and never a storm of attempts.

use std::time::{Duration, Instant};

use weir_tests::{Conf, Nginx, Redis, in_parallel, wait_until};

fn conf(redis: &Redis, options: &str) -> Conf {
    Conf::with_setup(&format!(
        "{{ redis = {{ url = \"{}\", {options} }}, \
         policies = {{ api = {{ limit = \"1000000/1h\" }} }} }}",
        redis.url()
    ))
    .limited("/api", "api")
    .stats()
}

/// A connection that decides says nothing about whether Redis takes another one.
#[test]
fn a_second_connection_that_is_refused_is_not_tried_all_the_time() {
    let redis = Redis::start();
    // Of which the test has one.
    let mut admin = redis.connect();
    redis::cmd("CONFIG").arg(&["SET", "maxclients", "2"]).exec(&mut admin).unwrap();
    let nginx = Nginx::start(&conf(&redis, "timeout = \"1s\", connections = 2"));
    let client = nginx.client();
    wait_until("it decides", Duration::from_secs(5), || client.get("/api").has_limit_headers());
    wait_until("the second is refused", Duration::from_secs(5), || {
        client.get("/api");
        nginx.count("failed_attempts") > 0
    });
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        assert!(client.get("/api").has_limit_headers());
    }
    // Pauses of 50, 100, 200, 400 ms and 1 s.
    let attempts = nginx.count("failed_attempts");
    assert!(attempts <= 10, "{attempts} attempts in about a second");
}

/// However many connections there are: what ends them together has happened once.
#[test]
fn all_connections_lost_together_are_one_failure() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis, "timeout = \"1s\", connections = 4"));
    wait_until("all are there", Duration::from_secs(10), || {
        nginx.client().get("/api");
        nginx.count("connects") == 4
    });
    redis.freeze();
    let answers = in_parallel(4, |_| nginx.client().get("/api"));
    redis.thaw();
    assert!(answers.iter().all(|answer| !answer.has_limit_headers()), "{answers:?}");
    wait_until("limits are back", Duration::from_secs(1), || {
        nginx.client().get("/api").has_limit_headers()
    });
    assert_eq!(nginx.count("breaker_opened"), 0, "{}", nginx.error_log());
}
