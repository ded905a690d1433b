//! Who is one client: addresses, parts, hashed identities, and who is exempt.

use weir_tests::{Conf, Nginx, Redis};

/// An nginx behind a trusted balancer at 127.0.0.1, which says in
/// `X-Forwarded-For` who connects to it.
fn behind_a_balancer(redis: &Redis, policies: &str) -> Nginx {
    let conf = Conf::new(&redis.url(), policies)
        .server("set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; real_ip_recursive on;")
        .limited("/api", "api");
    Nginx::start(&conf)
}

fn status(nginx: &Nginx, forwarded_for: &str) -> u16 {
    nginx.client().get_with("/api", &[("X-Forwarded-For", forwarded_for)]).status
}

fn keys(redis: &Redis) -> Vec<String> {
    let mut keys: Vec<String> = redis.command("KEYS *");
    keys.sort();
    keys
}

/// C22.
#[test]
fn a_customer_who_rotates_through_a_network_is_one_client() {
    let redis = Redis::start();
    let nginx = behind_a_balancer(&redis, "api = { limit = \"5/60s\", on_error = \"closed\" }");
    let passed = (0..100)
        .filter(|i| status(&nginx, &format!("2001:db8:1:2:{i:x}:{i:x}::{i:x}")) == 200)
        .count();
    assert_eq!(passed, 5);
    assert_eq!(keys(&redis), ["weir:{$remote_addr=2001%3Adb8%3A1%3A2%3A%3A/64}:api:log:1m"]);
    assert_eq!(status(&nginx, "2001:db8:1:3::1"), 200, "a second network is another client");
}

#[test]
fn an_ipv4_address_within_ipv6_is_the_ipv4_address() {
    let redis = Redis::start();
    let nginx = behind_a_balancer(&redis, "api = { limit = \"2/1h\" }");
    let seen = ["192.0.2.7", "::ffff:192.0.2.7", "::ffff:c000:207", "192.0.2.8"]
        .map(|address| status(&nginx, address));
    assert_eq!(seen, [200, 200, 429, 200]);
}

#[test]
fn prefixes_are_the_operators_choice_wherever_an_address_stands() {
    let redis = Redis::start();
    let nginx = behind_a_balancer(
        &redis,
        "api = { limit = \"1/1h\", ip = { v4_prefix = 24, v6_prefix = 128 }, \
                 key = { { parts = { \"$arg_a\", \"a-$remote_addr\" } }, \"$binary_remote_addr\" } }",
    );
    let seen = ["192.0.2.7", "192.0.2.200", "192.0.3.7", "2001:db8::1", "2001:db8::2"]
        .map(|address| status(&nginx, address));
    assert_eq!(seen, [200, 429, 200, 200, 200]);
    let with_parts = nginx.client().get_with("/api?a=x", &[("X-Forwarded-For", "192.0.2.9")]);
    assert_eq!(with_parts.status, 200);
    assert_eq!(
        keys(&redis),
        [
            "weir:{$arg_a&a-$remote_addr=x&a-192.0.2.0/24}:api:log:1h",
            "weir:{$binary_remote_addr=192.0.2.0/24}:api:log:1h",
            "weir:{$binary_remote_addr=192.0.3.0/24}:api:log:1h",
            "weir:{$binary_remote_addr=2001%3Adb8%3A%3A1}:api:log:1h",
            "weir:{$binary_remote_addr=2001%3Adb8%3A%3A2}:api:log:1h",
        ]
    );
}

/// The fallback is an address too.
#[test]
fn who_sends_no_key_is_a_network_too() {
    let redis = Redis::start();
    let nginx =
        behind_a_balancer(&redis, "api = { limit = \"1/1h\", key = function() return nil end }");
    assert_eq!(status(&nginx, "2001:db8::1"), 200);
    assert_eq!(status(&nginx, "2001:db8::2"), 429);
}

/// C23: the left-most address is the client's to write.
#[test]
fn only_what_the_balancer_saw_names_a_client() {
    let redis = Redis::start();
    let nginx = behind_a_balancer(&redis, "api = { limit = \"2/1h\" }");
    let seen: Vec<u16> =
        (0..4).map(|n| status(&nginx, &format!("1.1.1.{n}, 203.0.113.9"))).collect();
    assert_eq!(seen, [200, 200, 429, 429]);
    assert_eq!(status(&nginx, "203.0.113.10"), 200, "two clients behind it are two");
    assert_eq!(status(&nginx, "203.0.113.9"), 429);

    // From an address that is not trusted the header says nothing.
    let conf = Conf::new(&redis.url(), "other = { limit = \"2/1h\" }")
        .server("set_real_ip_from 192.0.2.1; real_ip_header X-Forwarded-For;")
        .limited("/api", "other");
    let nginx = Nginx::start(&conf);
    let seen: Vec<u16> = (0..3).map(|n| status(&nginx, &format!("1.1.1.{n}"))).collect();
    assert_eq!(seen, [200, 200, 429]);
}

#[test]
fn the_parts_of_a_key_are_apart_whatever_they_contain() {
    let redis = Redis::start();
    let nginx = Nginx::start(
        &Conf::new(
            &redis.url(),
            "api = { limit = \"1/1h\", key = { parts = { \"$http_x_a\", \"$http_x_b\" } } }, \
             list = { limit = \"1/1h\", key = function() \
                      return { ngx.var.http_x_a, ngx.var.http_x_b } end }",
        )
        .limited("/api", "api")
        .limited("/list", "list")
        .access(
            "/opts",
            "require(\"resty.weir\").access(\"list\", \
             { key = { ngx.var.http_x_a, ngx.var.http_x_b } })",
        )
        .access("/empty", "require(\"resty.weir\").access(\"list\", { key = {} })")
        .access("/number", "require(\"resty.weir\").access(\"list\", { key = { \"a\", 7 } })"),
    );
    let pairs = [
        ("ab", "c"),
        ("a", "bc"),
        ("a&b", "c"),
        ("a", "b&c"),
        ("a%26b", "c"),
        ("a=", "&"),
        ("a", "=&"),
    ];
    for path in ["/api", "/list"] {
        for expected in [200, 429] {
            for (a, b) in pairs {
                let answer = nginx.client().get_with(path, &[("X-A", a), ("X-B", b)]);
                assert_eq!(answer.status, expected, "{path} {a} {b}");
            }
        }
    }
    // A key given for the request is that of the function.
    assert_eq!(nginx.client().get_with("/opts", &[("X-A", "ab"), ("X-B", "c")]).status, 429);
    // With a part missing the next key is taken, or the address.
    assert_eq!(nginx.client().get_with("/api", &[("X-A", "ab")]).status, 200);
    assert!(keys(&redis).contains(&"weir:{$remote_addr=127.0.0.1}:api:log:1h".to_owned()));
    nginx.client().get_with("/list", &[("X-B", "c")]);
    assert!(keys(&redis).contains(&"weir:{$remote_addr=127.0.0.1}:list:log:1h".to_owned()));
    assert_eq!(nginx.client().get_with("/list", &[("X-A", "a"), ("X-B", "")]).status, 429);
    assert_eq!(nginx.client().get("/empty").status, 429);
    assert_eq!(nginx.client().get("/number").status, 200);
    assert_eq!(
        nginx.log_lines("bad_key: part 2 of the key must be a string, not a number").len(),
        1
    );
    assert!(!keys(&redis).iter().any(|key| key.contains("{=a&}")), "{:?}", keys(&redis));
}

#[test]
fn hashed_identities_are_apart_shared_by_the_secret_and_never_in_the_clear() {
    let redis = Redis::start();
    let setup = |secret: &str| {
        format!(
            "{{ redis = {{ url = \"{}\", timeout = \"5s\" }}, secret = \"{secret}\", policies = {{ \
               api = {{ limit = \"2/1h\", hash_keys = true, \
                        key = {{ \"$http_x_key\", {{ parts = {{ \"$arg_a\", \"$arg_b\" }} }} }} }} }} }}",
            redis.url()
        )
    };
    let conf = |secret| Conf::with_setup(&setup(secret)).limited("/api", "api");
    let (one, two) = ("0123456789abcdef", "0123456789abcdeX");
    let edges = [one, one, two].map(|secret| Nginx::start(&conf(secret)));
    let ask = |edge: &Nginx, key: &str| edge.client().get_with("/api", &[("X-Key", key)]).status;
    assert_eq!(ask(&edges[0], "sk_live_1"), 200);
    assert_eq!(ask(&edges[1], "sk_live_1"), 200, "two edges, one secret");
    assert_eq!(ask(&edges[0], "sk_live_1"), 429, "are one budget");
    assert_eq!(ask(&edges[0], "sk_live_2"), 200, "another key is another client");
    assert_eq!(ask(&edges[2], "sk_live_1"), 200, "another secret is another budget");
    assert_eq!(edges[0].client().get("/api?a=sk_live&b=3").status, 200);
    assert_eq!(edges[0].client().get("/api").status, 200);

    // With something to log about these very keys, on an edge that has not heard of a
    // refusal.
    for key in keys(&redis) {
        redis.command::<()>(&format!("DEL {key}"));
        redis.command::<()>(&format!("SET {key} foreign"));
    }
    ask(&edges[1], "sk_live_1");
    weir_tests::wait_until("the error is logged", std::time::Duration::from_secs(2), || {
        !edges[1].log_lines("WRONGTYPE").is_empty()
    });
    for key in keys(&redis) {
        assert!(key.contains("=~hmac-") || key.contains("=~hmac2-"), "{key}");
        assert!(!key.contains("sk_live") && !key.contains("127.0.0.1"), "{key}");
    }
    assert!(!edges[1].error_log().contains("sk_live"));
    assert!(!edges[1].error_log().contains(one));
}

#[test]
fn who_is_exempt_touches_nothing_and_is_told_nothing() {
    let redis = Redis::start();
    let policies = "api = { limit = \"1/1h\", on_error = \"closed\", \
                            exempt = { \"10.0.0.0/8\", \"2001:db8::/32\", \"OPTIONS\", \
                                       function() return ngx.var.arg_free == \"yes\" end } }";
    let conf = Conf::new(&redis.url(), policies)
        .server("set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For;")
        .limited("/api", "api")
        .content(
            "/check",
            "local d = require(\"resty.weir\").check(\"api\") \
             ngx.print(tostring(d.allowed), \" \", d.source, \" \", tostring(d.limit))",
        )
        .stats();
    let nginx = Nginx::start(&conf);
    let ask = |method: &str, path: &str, from: &str| {
        nginx.client().ask(method, path, &[("X-Forwarded-For", from)])
    };
    let exempt = [
        ("GET", "/api", "10.9.8.7"),
        ("GET", "/api", "::ffff:10.9.8.7"),
        ("POST", "/api", "2001:db8:ffff::1"),
        ("OPTIONS", "/api", "192.0.2.7"),
        ("GET", "/api?free=yes", "192.0.2.7"),
    ];
    for (method, path, from) in exempt {
        for _ in 0..2 {
            let answer = ask(method, path, from);
            assert_eq!(
                (answer.status, answer.has_limit_headers()),
                (200, false),
                "{method} {from}"
            );
        }
    }
    assert_eq!(ask("GET", "/check", "10.9.8.7").body, "true exempt nil");
    assert_eq!(redis.command::<usize>("DBSIZE"), 0);
    assert_eq!((nginx.count("decisions.exempt"), nginx.count("batched")), (11, 0));

    // Everybody else is counted; HEAD counts like GET.
    assert_eq!(ask("HEAD", "/api", "11.0.0.1").status, 200);
    assert_eq!(ask("GET", "/api?free=no", "11.0.0.1").status, 429);
    nginx.assert_calm_log();
}

/// What was exempt on its way is counted where it is not.
#[test]
fn an_exempt_location_exempts_no_other() {
    let redis = Redis::start();
    let policies = "api = { limit = \"1/1h\", \
                            exempt = function() return ngx.var.uri == \"/free\" end }";
    let access = "access_by_lua_block { require(\"resty.weir\").access(\"api\") }";
    let conf = Conf::new(&redis.url(), policies)
        .server(&format!("location /free {{ {access} try_files /none /paid; }}"))
        .limited("/paid", "api");
    let nginx = Nginx::start(&conf);
    assert_eq!(nginx.client().get("/free").status, 200);
    assert_eq!(nginx.client().get("/free").status, 429);
}

/// A fault in the operator's function is a failure like any other.
#[test]
fn an_exempt_function_that_raises_exempts_nobody() {
    let redis = Redis::start();
    let policy = |on_error| {
        format!(
            "{on_error} = {{ limit = \"1/1h\", on_error = \"{on_error}\", \
             exempt = function() error(\"no\") end }}"
        )
    };
    let conf = Conf::new(&redis.url(), &format!("{}, {}", policy("open"), policy("closed")))
        .limited("/open", "open")
        .limited("/closed", "closed");
    let nginx = Nginx::start(&conf);
    assert_eq!(nginx.client().get("/open").status, 200);
    assert_eq!(nginx.client().get("/closed").status, 503);
    let raised = "no decision for policy closed: bad_exempt: the exempt function raised: ";
    assert_eq!(nginx.log_lines(raised).len(), 1);
}
