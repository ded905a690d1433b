//! Whom a request counts for.

use weir_tests::{Conf, Nginx, Redis};

/// Statuses of three requests under a limit of 1: whether they share a bucket.
fn statuses(nginx: &Nginx, path: &str, headers: [&[(&str, &str)]; 2]) -> [u16; 2] {
    let client = nginx.client();
    headers.map(|headers| client.get_with(path, headers).status)
}

const APART: [u16; 2] = [200, 200];
const SHARED: [u16; 2] = [200, 429];

fn nginx(redis: &Redis, key: &str) -> Nginx {
    let policies = format!("api = {{ limit = \"1/1h\", key = {key} }}");
    Nginx::start(&Conf::new(&redis.url(), &policies).limited("/", "api"))
}

/// C19.
#[test]
fn an_absent_or_empty_header_counts_for_the_clients_own_address() {
    let redis = Redis::start();
    let nginx = nginx(&redis, "\"$http_x_user\"");
    assert_eq!(statuses(&nginx, "/", [&[("X-User", "a")], &[("X-User", "b")]]), APART);
    assert_eq!(statuses(&nginx, "/", [&[], &[("X-User", "")]]), SHARED);
    let mut keys: Vec<String> = redis.command("KEYS *");
    keys.sort();
    assert_eq!(
        keys,
        [
            "weir:{$http_x_user=a}:api:log:1h",
            "weir:{$http_x_user=b}:api:log:1h",
            "weir:{$remote_addr=127.0.0.1}:api:log:1h",
        ]
    );
}

#[test]
fn a_header_cannot_spend_the_budget_of_an_address() {
    let redis = Redis::start();
    let nginx = nginx(&redis, "{ \"$http_x_user\", \"$remote_addr\" }");
    assert_eq!(statuses(&nginx, "/", [&[("X-User", "127.0.0.1")], &[]]), APART);
}

#[test]
fn the_first_of_a_list_that_is_not_empty_counts() {
    let redis = Redis::start();
    let nginx = nginx(&redis, "{ \"$http_x_a\", \"$http_x_b\" }");
    assert_eq!(statuses(&nginx, "/", [&[("X-A", "1")], &[("X-A", "1"), ("X-B", "2")]]), SHARED);
    assert_eq!(statuses(&nginx, "/", [&[("X-B", "2")], &[("X-B", "3")]]), APART);
}

#[test]
fn text_around_an_empty_variable_is_no_bucket_for_strangers() {
    let redis = Redis::start();
    let nginx = nginx(&redis, "\"tenant-${http_x_a}:$http_x_b\"");
    assert_eq!(statuses(&nginx, "/", [&[("X-A", "1"), ("X-B", "2")], &[("X-A", "1")]]), APART);
    let keys: Vec<String> = redis.command("KEYS *remote_addr*");
    assert_eq!(keys, ["weir:{$remote_addr=127.0.0.1}:api:log:1h"]);
    assert_eq!(nginx.client().get_with("/", &[("X-A", ""), ("X-B", "2")]).status, 429);
    let keys: Vec<String> = redis.command("KEYS *tenant*");
    assert_eq!(keys, ["weir:{tenant-$%7Bhttp_x_a%7D%3A$http_x_b=tenant-1%3A2}:api:log:1h"]);
}

#[test]
fn a_function_gives_the_key_and_an_empty_one_falls_back() {
    let redis = Redis::start();
    let nginx = nginx(&redis, "function() return ngx.var.arg_user end");
    let client = nginx.client();
    assert_eq!(client.get("/?user=a").status, 200);
    assert_eq!(client.get("/?user=a").status, 429);
    assert_eq!(client.get("/?user=b").status, 200);
    assert_eq!(client.get("/").status, 200);
    assert_eq!(client.get("/?user=").status, 429);
    let fallback: u8 = redis.command("EXISTS weir:{$remote_addr=127.0.0.1}:api:log:1h");
    assert_eq!(fallback, 1);
}

/// Keys of any bytes are separate, safe, and never in the log as they are.
#[test]
fn keys_of_any_bytes_are_apart_and_never_in_the_log() {
    let redis = Redis::start();
    let policies =
        "open = { limit = \"1/1h\" }, closed = { limit = \"1/1h\", on_error = \"closed\" }";
    let lua = |policy| {
        format!(
            "require(\"resty.weir\").access(\"{policy}\", {{ key = ngx.unescape_uri(ngx.var.arg_k) }})"
        )
    };
    let nginx = Nginx::start(
        &Conf::new(&redis.url(), policies)
            .access("/open", &lua("open"))
            .access("/closed", &lua("closed"))
            .content("/forget", "require(\"resty.weir\").forget_denials()")
            .server("lua_socket_log_errors off;"),
    );
    let client = nginx.client();
    let long = "x".repeat(300);
    let keys = [
        "a%20b",
        "a",
        "b",
        "a%0D%0Ab",
        "a%0D%0Ac",
        "a%00b",
        "a%00c",
        "a%00",
        "a%3Ab",
        "a%3Ab%3Ac",
        "%7Ba%7D",
        "%7Ba%7Db",
        "%7D",
        "%7B%7D",
        "%7Bb%7D",
        "%FF%FE",
        "%FF",
        "%C3%28",
        "a%25",
        "%2520",
        "%20",
        &format!("{long}1"),
        &format!("{long}2"),
        "secret%0Aline%1B%5B31m",
        &format!("{long}{long}1"),
        &format!("{long}{long}2"),
    ];
    for path in ["/open", "/closed"] {
        for key in keys {
            assert_eq!(client.get(&format!("{path}?k={key}")).status, 200, "{key}");
        }
        for key in keys {
            assert_eq!(client.get(&format!("{path}?k={key}")).status, 429, "{key}");
        }
    }
    let stored: Vec<String> = redis.command("KEYS *");
    assert_eq!(stored.len(), 2 * keys.len());
    for key in &stored {
        assert!(key.bytes().all(|byte| byte.is_ascii_graphic()), "{key:?}");
        assert_eq!(key.matches(['{', '}']).count(), 2, "{key:?}");
        assert!(key.len() < 1_600);
    }

    // And when there is something to log about these very requests, none of which is
    // answered from memory.
    assert_eq!(client.get("/forget").status, 200);
    let poisoned: Vec<String> = redis.command("KEYS *secret*");
    for key in &poisoned {
        redis.command::<()>(&format!("DEL {key}"));
        redis.command::<()>(&format!("SET {key} foreign"));
    }
    assert_eq!(poisoned.len(), 2);
    assert_eq!(client.get("/open?k=secret%0Aline%1B%5B31m").status, 200);
    assert_eq!(client.get("/closed?k=secret%0Aline%1B%5B31m").status, 503);
    weir_tests::wait_until("the error is logged", std::time::Duration::from_secs(2), || {
        !nginx.log_lines("WRONGTYPE").is_empty()
    });
    let log = nginx.error_log();
    let ours: Vec<&str> = log.lines().filter(|line| line.contains("weir:")).collect();
    assert!(!ours.is_empty());
    for line in log.lines() {
        assert!(!line.contains('\u{1b}'), "{line:?}");
        assert!(!line.starts_with("line"), "{line:?}");
    }
    nginx.assert_calm_log();
}

/// C20: the same policy on two edges, or after a reload, is one budget; two
/// policies with equal numbers are two.
#[test]
fn budgets_are_shared_by_policy_and_nothing_else() {
    let redis = Redis::start();
    let policies = "r1 = { limit = \"3/1h\" }, r2 = { limit = \"3/1h\" }";
    let conf = Conf::new(&redis.url(), policies).limited("/r1", "r1").limited("/r2", "r2");
    let (a, b) = (Nginx::start(&conf), Nginx::start(&conf));
    assert_eq!(a.client().get("/r1").status, 200);
    assert_eq!(b.client().get("/r1").status, 200);
    a.reload_and_wait(&conf);
    assert_eq!(a.client().get("/r1").number("RateLimit-Remaining"), 0);
    assert_eq!(b.client().get("/r1").status, 429);
    assert_eq!(b.client().get("/r2").number("RateLimit-Remaining"), 2);
    assert_eq!(redis.command::<usize>("DBSIZE"), 2);
}
