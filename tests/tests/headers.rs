//! The limit headers, in each style, of one policy and of several, beside those
//! of an upstream.

use sfv::{BareItem, List, ListEntry, Parser};
use weir_tests::{Answer, Conf, Nginx, Redis};

/// The members of a header that is a list of strings with parameters (RFC
/// 9651), as `name key=value key=value`.
fn members(answer: &Answer, name: &str) -> Vec<String> {
    let value = answer.header(name).unwrap_or_else(|| panic!("no {name} in {answer:?}"));
    let list: List = Parser::new(value).parse().unwrap_or_else(|error| panic!("{value}: {error}"));
    let member = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list: {value}") };
        let BareItem::String(name) = item.bare_item else { panic!("no string: {value}") };
        let params = item.params.iter().map(|(key, value)| match value {
            BareItem::Integer(number) => format!(" {key}={number}"),
            BareItem::ByteSequence(bytes) => format!(" {key}={}", String::from_utf8_lossy(bytes)),
            other => panic!("{other:?}"),
        });
        format!("{}{}", name.as_str(), params.collect::<String>())
    };
    list.into_iter().map(member).collect()
}

fn start(redis: &Redis, policies: &str, named: &[&str]) -> Nginx {
    let conf = Conf::new(&redis.url(), policies);
    let conf = named.iter().fold(conf, |conf, name| conf.limited(&format!("/{name}"), name));
    Nginx::start(&conf)
}

const ALL: [&str; 8] = [
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "RateLimit-Policy",
    "RateLimit",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
];

/// Which of all limit headers are there.
fn present(answer: &Answer) -> Vec<&'static str> {
    ALL.into_iter().filter(|name| answer.header(name).is_some()).collect()
}

/// S12: hidden on a 200 and on a 429.
#[test]
fn each_style_is_the_headers_it_says_and_no_others() {
    let redis = Redis::start();
    let policies = "default = { limit = \"1/1h\" }, \
                    separate = { limit = \"1/1h\", headers = \"separate\" }, \
                    draft = { limit = \"1/1h\", headers = \"draft-11\" }, \
                    x = { limit = \"1/1h\", headers = \"x\" }, \
                    none = { limit = \"1/1h\", headers = \"none\" }, \
                    both = { limit = \"1/1h\", headers = { \"draft-11\", \"separate\" } }";
    let nginx = start(&redis, policies, &["default", "separate", "draft", "x", "none", "both"]);
    for (path, names) in [
        ("/default", &ALL[..3]),
        ("/separate", &ALL[..3]),
        ("/draft", &ALL[3..5]),
        ("/x", &ALL[5..]),
        ("/none", &[]),
        ("/both", &ALL[..5]),
    ] {
        let passed = nginx.client().get(path);
        assert_eq!((passed.status, present(&passed)), (200, names.to_vec()), "{path}");
        assert_eq!(passed.header("Retry-After"), None);
        let refused = nginx.client().get(path);
        assert_eq!((refused.status, present(&refused)), (429, names.to_vec()), "{path}");
        assert!((3598..=3600).contains(&refused.number("Retry-After")), "{path}");
    }
    let refused = nginx.client().get("/x");
    assert_eq!(refused.number("X-RateLimit-Limit"), 1);
    assert_eq!(refused.number("X-RateLimit-Remaining"), 0);
    assert_eq!(refused.number("X-RateLimit-Reset"), refused.number("Retry-After"));
    nginx.assert_calm_log();
}

#[test]
fn draft_11_has_a_member_for_each_limit() {
    let redis = Redis::start();
    let policies = "one = { limit = \"100/1m\", headers = \"draft-11\" }, \
        many = { headers = \"draft-11\", limits = { \
            { name = \"burst\", limit = \"10/1s\", algorithm = \"token-bucket\", burst = 20 }, \
            { limit = \"3/1h\" }, \
            { limit = \"9007199254740991/day\", algorithm = \"quota\" } } }";
    let nginx = start(&redis, policies, &["one", "many"]);
    let client = nginx.client();
    let one = client.get("/one");
    assert_eq!(one.header("RateLimit-Policy"), Some("\"one\";q=100;w=60"));
    assert_eq!(one.header("RateLimit"), Some("\"one\";r=99;t=60"));

    let many = client.get("/many");
    assert_eq!(
        members(&many, "RateLimit-Policy"),
        ["burst q=20 w=2", "many:log:1h q=3 w=3600", "many:quota:day q=999999999999999 w=86400"]
    );
    let told = members(&many, "RateLimit");
    assert_eq!(told[..2], ["burst r=19 t=1", "many:log:1h r=2 t=3600"]);
    assert!(told[2].starts_with("many:quota:day r=999999999999999 t="), "{told:?}");

    client.get("/many");
    client.get("/many");
    let refused = client.get("/many");
    assert_eq!(refused.status, 429);
    let retry_after = refused.number("Retry-After");
    // Only what refuses tells a time: none is after Retry-After.
    let told = members(&refused, "RateLimit");
    assert_eq!(told[1], format!("many:log:1h r=0 t={retry_after}"));
    assert!(!told[0].contains("t=") && !told[2].contains("t="), "{told:?}");
    assert!(refused.body.contains("\"violated-policies\":[\"many:log:1h\"]"), "{}", refused.body);
}

#[test]
fn the_partition_key_is_told_where_it_is_asked_for() {
    let redis = Redis::start();
    let policies = "pk = { limit = \"5/1h\", headers = \"draft-11\", partition_key = true, \
                           key = \"$arg_k\" }, \
                    parts = { limit = \"5/1h\", headers = \"draft-11\", partition_key = true, \
                              key = { parts = { \"$arg_k\", \"$arg_l\" } } }";
    let nginx = start(&redis, policies, &["pk", "parts"]);
    let answer = nginx.client().get("/pk?k=ali'ce");
    assert_eq!(members(&answer, "RateLimit-Policy"), ["pk q=5 w=3600 pk=ali'ce"]);
    assert_eq!(members(&answer, "RateLimit"), ["pk r=4 t=3600 pk=ali'ce"]);
    let answer = nginx.client().get("/parts?k=a&l=b");
    assert_eq!(members(&answer, "RateLimit"), ["parts r=4 t=3600 pk=a&b"]);
    // Many at once: each is told its own.
    weir_tests::in_parallel(40, |index| {
        let answer = nginx.client().get(&format!("/pk?k=client-{index}"));
        assert_eq!(members(&answer, "RateLimit"), [format!("pk r=4 t=3600 pk=client-{index}")]);
    });
}

/// Plain numbers are the tightest policy's, lists have the members of all.
#[test]
fn of_two_policies_a_client_is_told_the_tightest_or_both() {
    let redis = Redis::start();
    let styles = "headers = { \"separate\", \"draft-11\" }";
    let policies = format!(
        "site = {{ limit = \"100/1h\", {styles} }}, login = {{ limit = \"3/1m\", {styles} }}, \
         mid = {{ limit = \"20/1h\", {styles} }}, old = {{ limit = \"50/1h\", headers = \"x\" }}"
    );
    let access = |names: &[&str]| -> String {
        let calls = names.iter().map(|name| format!("require(\"resty.weir\").access(\"{name}\") "));
        calls.collect()
    };
    let conf = Conf::new(&redis.url(), &policies)
        .access("/tight-last", &access(&["site", "login"]))
        .access("/tight-first", &access(&["login", "site"]))
        .access("/mixed", &access(&["old", "site"]))
        .access("/old", &access(&["old", "login"]))
        .access("/three", &access(&["site", "login", "mid"]));
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    let answer = client.get("/tight-last");
    assert_eq!((answer.number("RateLimit-Limit"), answer.number("RateLimit-Remaining")), (3, 2));
    assert_eq!(answer.number("RateLimit-Reset"), 60);
    assert_eq!(members(&answer, "RateLimit"), ["site r=99 t=3600", "login r=2 t=60"]);
    let answer = client.get("/tight-first");
    assert_eq!((answer.number("RateLimit-Limit"), answer.number("RateLimit-Remaining")), (3, 1));
    assert_eq!(answer.number("RateLimit-Reset"), 60);
    assert_eq!(members(&answer, "RateLimit-Policy"), ["login q=3 w=60", "site q=100 w=3600"]);
    let answer = client.get("/mixed");
    assert_eq!(answer.number("X-RateLimit-Remaining"), 49);
    assert_eq!(answer.number("RateLimit-Remaining"), 97);

    let answer = client.get("/three");
    assert_eq!((answer.number("RateLimit-Limit"), answer.number("RateLimit-Remaining")), (3, 0));
    assert_eq!(members(&answer, "RateLimit").len(), 3);

    let refused = client.get("/tight-last");
    assert_eq!(members(&refused, "RateLimit").len(), 1, "the refusal is login's alone");
    assert_eq!((refused.status, refused.number("RateLimit-Limit")), (429, 3));
    let refused = client.get("/old");
    assert_eq!(refused.status, 429);
    assert_eq!(present(&refused), ALL[..5], "the refusal is login's alone");
    assert_eq!(members(&refused, "RateLimit").len(), 1);
    assert!(refused.body.contains("\"violated-policies\":[\"login\"]"));
}

/// Called again, a policy tells its new numbers in the place of the old.
#[test]
fn each_limit_is_told_once() {
    let redis = Redis::start();
    let policies = "api = { limit = \"9/1h\", headers = { \"draft-11\", \"separate\" }, expose = true }, \
                    site = { limit = \"50/1h\", headers = { \"draft-11\", \"separate\" } }";
    let lua = "local w = require(\"resty.weir\") w.access(\"api\") w.access(\"site\") \
               w.access(\"api\", { cost = 2 })";
    let nginx = Nginx::start(&Conf::new(&redis.url(), policies).access("/", lua));
    let answer = nginx.client().get("/");
    assert_eq!(members(&answer, "RateLimit"), ["api r=6 t=3600", "site r=49 t=3600"]);
    assert_eq!(answer.number("RateLimit-Remaining"), 6);
    let exposed = answer.header("Access-Control-Expose-Headers").expect("exposed");
    assert_eq!(exposed.matches("RateLimit-Limit").count(), 1, "{exposed}");
}

/// Of a refusal that an error page of another policy shows.
#[test]
fn an_error_page_tells_of_the_refusal_alone() {
    let redis = Redis::start();
    let style = "headers = { \"draft-11\", \"separate\" }";
    let policies = format!(
        "api = {{ limit = \"5/1h\", error_page = true, {style} }}, page = {{ limit = \"2/1h\", {style} }}"
    );
    let conf = Conf::new(&redis.url(), &policies)
        .server("error_page 429 /page;")
        .access(
            "/api",
            "require(\"resty.weir\").access(\"api\", { cost = tonumber(ngx.var.arg_cost) })",
        )
        .limited("/page", "page");
    let nginx = Nginx::start(&conf);
    for (cost, reset) in [("6", None), ("4", Some(3600)), ("2", Some(3600))] {
        let answer = nginx.client().get(&format!("/api?cost={cost}"));
        assert_eq!(members(&answer, "RateLimit").len(), 1, "{cost}");
        assert_eq!(answer.number("RateLimit-Limit"), 5, "{cost}");
        assert_eq!(answer.header("RateLimit-Reset").is_some(), reset.is_some(), "{cost}");
    }
    assert_eq!(redis.command::<usize>("ZCARD weir:{$remote_addr=127.0.0.1}:page:log:1h"), 2);
    // Unless the page itself is refused.
    let answer = nginx.client().get("/api?cost=2");
    assert_eq!((answer.status, answer.number("RateLimit-Limit")), (429, 2));
    assert!(answer.body.contains("[\"page\"]"), "{answer:?}");
}

fn upstream(port: u16) -> String {
    format!(
        "server {{ listen 127.0.0.1:{port}; location / {{ content_by_lua_block {{ \
           ngx.status = tonumber(ngx.var.arg_status) or 200 \
           local h = ngx.header \
           h[\"RateLimit-Limit\"] = \"7\" h[\"ratelimit-reset\"] = \"7\" \
           h[\"RateLimit\"] = '\"up\";r=7' h[\"RateLimit-Policy\"] = '\"up\";q=7' \
           h[\"X-RateLimit-Used\"] = \"7\" h[\"X-Rate-Limit-Limit\"] = \"7\" h[\"X-Rate-Limit\"] = \"7\" \
           h[\"Rate-Limit-Limit\"] = \"7\" \
           h[\"X-RateLimit-Dry-Run\"] = \"up\" \
           h[\"X-RateLimited-By\"] = \"upstream\" h[\"X-Other\"] = {{ \"a\", \"b\" }} \
           h[\"Retry-After\"] = ngx.var.arg_after \
           ngx.print(\"up\") }} }} }}"
    )
}

#[test]
fn beside_an_upstreams_limit_headers_one_set_is_seen() {
    let redis = Redis::start();
    let port = weir_tests::process::free_port();
    let access =
        |name| format!("access_by_lua_block {{ require(\"resty.weir\").access(\"{name}\") }}");
    let proxy = format!("proxy_pass http://127.0.0.1:{port};");
    let mut conf = Conf::new(
        &redis.url(),
        "api = { limit = \"9/1h\" }, none = { limit = \"9/1h\", headers = \"none\" }, \
         dry = { limit = \"9/1h\", dry_run = true, dry_run_header = \"X-RateLimit-Dry-Run\" }, \
         free = { limit = \"9/1h\", exempt = \"127.0.0.1\" }",
    )
    .server("header_filter_by_lua_block { require(\"resty.weir\").header_filter() }")
    .server(&format!("location / {{ {proxy} }}"));
    for name in ["api", "none", "dry", "free"] {
        conf = conf.server(&format!("location /{name} {{ {} {proxy} }}", access(name)));
    }
    conf = conf.server(&format!(
        "location /beside {{ access_by_lua_block {{ local w = require(\"resty.weir\") \
         w.access(\"dry\") w.access(\"api\") }} {proxy} }}"
    ));
    conf.http = upstream(port);
    let nginx = Nginx::start(&conf);
    let client = nginx.client();

    let answer = client.get("/api");
    assert_eq!(answer.body, "up");
    let all = |name: &str| answer.headers.get_all(name).iter().count();
    assert_eq!((all("RateLimit-Limit"), all("RateLimit-Remaining")), (1, 1));
    assert_eq!((answer.number("RateLimit-Limit"), answer.number("RateLimit-Reset")), (9, 3600));
    assert_eq!(present(&answer), ALL[..3]);
    for gone in ["X-RateLimit-Used", "X-Rate-Limit-Limit", "X-Rate-Limit", "Rate-Limit-Limit"] {
        assert_eq!(answer.header(gone), None);
    }
    assert_eq!(answer.header("X-RateLimited-By"), Some("upstream"));
    assert_eq!(all("X-Other"), 2);

    // Where this edge tells nothing, the upstream's own is all there is.
    for path in ["/", "/none", "/dry", "/free"] {
        let answer = client.get(path);
        assert_eq!(answer.header("RateLimit-Limit"), Some("7"), "{path}");
        assert_eq!(answer.header("X-RateLimit-Used"), Some("7"), "{path}");
    }
    let dry = client.get("/dry");
    let told: Vec<_> = dry.headers.get_all("X-RateLimit-Dry-Run").iter().collect();
    assert_eq!(told, ["dry=allowed"]);

    let answer = client.get("/beside");
    assert_eq!(answer.header("X-RateLimit-Dry-Run"), Some("dry=allowed"));
    assert_eq!((answer.number("RateLimit-Limit"), present(&answer)), (9, ALL[..3].to_vec()));

    // An upstream's own 429 and 503 keep their Retry-After.
    for status in [429, 503] {
        let answer = client.get(&format!("/api?status={status}&after=77"));
        assert_eq!((answer.status, answer.header("Retry-After")), (status, Some("77")));
        assert_eq!(answer.number("RateLimit-Limit"), 9);
    }
    nginx.assert_calm_log();
}

/// Of a refusal that an error_page fetches from an upstream the headers are
/// the refusal's.
#[test]
fn a_fetched_error_page_does_not_change_what_the_refusal_tells() {
    let redis = Redis::start();
    let port = weir_tests::process::free_port();
    let mut conf = Conf::new(&redis.url(), "api = { limit = \"1/1h\", error_page = true }")
        .server("header_filter_by_lua_block { require(\"resty.weir\").header_filter() }")
        .server(&format!("location @sorry {{ proxy_pass http://127.0.0.1:{port}; }}"))
        .server("error_page 429 @sorry;")
        .limited("/api", "api");
    conf.http = upstream(port);
    let nginx = Nginx::start(&conf);
    nginx.client().get("/api?after=1");
    let refused = nginx.client().get("/api?after=1");
    assert_eq!((refused.status, refused.body.as_str()), (429, "up"));
    assert_eq!(refused.number("RateLimit-Limit"), 1);
    assert!(refused.number("Retry-After") > 3_000, "{refused:?}");
    assert_eq!(refused.headers.get_all("Retry-After").iter().count(), 1);
}

/// C40: browsers hide headers from scripts of other origins.
#[test]
fn headers_are_exposed_to_scripts_where_it_is_asked_for() {
    let redis = Redis::start();
    let cors = "add_header Access-Control-Allow-Origin \"*\" always; \
                add_header Access-Control-Expose-Headers X-Own always;";
    let policies = "api = { limit = \"1/1h\", expose = true, headers = { \"draft-11\", \"x\" } }, \
                    site = { limit = \"9/1h\", expose = true }, \
                    same = { limit = \"9/1h\", expose = true }, quiet = { limit = \"9/1h\" }, \
                    closed = { limit = \"9/1h\", expose = true, key = function() error(\"no\") end, \
                               on_error = \"closed\" }";
    let twice =
        "local w = require(\"resty.weir\") w.access(\"site\") w.access(\"same\") w.access(\"api\")";
    let conf = Conf::new(&redis.url(), policies)
        .server(cors)
        .limited("/api", "api")
        .limited("/quiet", "quiet")
        .limited("/closed", "closed")
        .access("/twice", twice);
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    let exposed = |answer: &Answer| -> Vec<String> {
        let values = answer.headers.get_all("Access-Control-Expose-Headers").iter();
        let names = values.flat_map(|value| value.to_str().unwrap().split(", "));
        names.map(str::to_owned).collect()
    };
    let api = [
        "Retry-After",
        "RateLimit-Policy",
        "RateLimit",
        "X-RateLimit-Limit",
        "X-RateLimit-Remaining",
        "X-RateLimit-Reset",
        "X-Own",
    ];
    for status in [200, 429] {
        let answer = client.get("/api");
        assert_eq!((answer.status, exposed(&answer)), (status, api.map(str::to_owned).into()));
        assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("*"));
    }
    assert_eq!(exposed(&client.get("/quiet")), ["X-Own"]);
    let closed = client.get("/closed");
    assert_eq!(closed.status, 503);
    assert!(exposed(&closed).contains(&"Retry-After".to_owned()));
    assert_eq!(closed.header("Access-Control-Allow-Origin"), Some("*"));
    let both = exposed(&client.get("/twice"));
    for name in ["RateLimit-Limit", "RateLimit-Policy", "X-Own"] {
        assert_eq!(both.iter().filter(|exposed| *exposed == name).count(), 1, "{both:?}");
    }
}
