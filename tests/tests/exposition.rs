//! The text of `metrics()`: its forms, and what is not in it.

use std::time::Duration;

use weir_tests::metrics::{LOCATION, assert_promtool_accepts};
use weir_tests::{Conf, Metrics, Nginx, Redis, wait_until};

const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn conf(redis: &Redis) -> Conf {
    let policies = "api = { limit = \"3/1h\", key = \"$http_x_api_key\" }, \
         [\"a.b-c_1\"] = { limit = \"3/1h\", exempt = \"OPTIONS\" }, \
         trial = { limit = \"1/1h\", dry_run = true }";
    Conf::new(&redis.url(), policies)
        .server(LOCATION)
        .limited("/api", "api")
        .limited("/other", "a.b-c_1")
        .limited("/trial", "trial")
        .limited("/bad", "api\", { cost = -1 }) (\"")
}

#[test]
fn each_gets_the_form_that_it_asks_for() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis));
    let client = nginx.client();
    assert_eq!(client.get("/api").status, 200);
    for (accept, form) in [
        ("*/*", PLAIN),
        ("text/plain", PLAIN),
        ("application/openmetrics-text", OPEN_METRICS),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", OPEN_METRICS),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4", PLAIN),
        ("application/openmetrics-text;q=0", PLAIN),
        ("nonsense", PLAIN),
    ] {
        let answer = client.get_with("/metrics", &[("Accept", accept)]);
        assert_eq!((answer.status, answer.header("Content-Type")), (200, Some(form)), "{accept}");
        let is_open = form == OPEN_METRICS;
        assert_eq!(answer.body.ends_with("\n# EOF\n"), is_open, "{accept}");
        let counter = if is_open { "weir_decisions" } else { "weir_decisions_total" };
        assert!(answer.body.contains(&format!("# TYPE {counter} counter\n")), "{accept}");
        let sample = "weir_decisions_total{policy=\"api\",outcome=\"allowed\"} 1\n";
        assert!(answer.body.contains(sample), "{}", answer.body);
    }
}

#[test]
fn promtool_finds_nothing_wrong_with_it_empty_or_full() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis));
    let empty = Metrics::of(&nginx);
    assert_eq!(empty.decisions("a.b-c_1", "allowed"), 0.0);
    assert_promtool_accepts(&empty.text);
    let client = nginx.client();
    for path in ["/api", "/other", "/trial", "/bad"] {
        (0..5).for_each(|_| drop(client.get(path)));
    }
    client.ask("OPTIONS", "/other", &[]);
    wait_until("what Redis was asked is published", Duration::from_secs(10), || {
        Metrics::of(&nginx).value("weir_redis_batches_total") == 10.0
    });
    let full = Metrics::of(&nginx);
    for (policy, outcome, count) in [
        ("api", "allowed", 3.0),
        ("api", "denied", 1.0),
        ("api", "remembered", 1.0),
        ("api", "error_open", 5.0),
        ("a.b-c_1", "exempt", 1.0),
        ("trial", "dry_run_denied", 4.0),
    ] {
        assert_eq!(full.decisions(policy, outcome), count, "{policy} {outcome}");
    }
    assert_promtool_accepts(&full.text);
}

#[test]
fn nobody_is_named_in_it() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis));
    let client = nginx.client();
    for _ in 0..5 {
        client.get_with("/api", &[("X-Api-Key", "key-of-somebody")]);
        client.get("/other");
    }
    let metrics = Metrics::of(&nginx);
    assert_eq!(metrics.decisions("api", "denied") + metrics.decisions("api", "remembered"), 2.0);
    for identity in ["somebody", "127.0.0.1", "remote_addr", "x_api_key"] {
        assert!(!metrics.text.contains(identity), "{identity} in {}", metrics.text);
    }
}

#[test]
fn elsewhere_than_in_a_content_handler_it_is_a_mistake() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis).access("/early", "require(\"resty.weir\").metrics()"));
    assert_eq!(nginx.client().get("/early").status, 500);
    let lines = nginx.log_lines("metrics() belongs in content_by_lua");
    assert_eq!(lines.len(), 1, "{}", nginx.error_log());
    assert!(lines[0].contains("access_by_lua"), "it names the place of the mistake: {lines:?}");
}
