//! A dry run counts and tells, and refuses nobody; and what access logs say.

use weir_tests::{Answer, Conf, Nginx, Redis};

fn access(names: &[&str]) -> String {
    names.iter().map(|name| format!("require(\"resty.weir\").access(\"{name}\") ")).collect()
}

fn told(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.header("X-Dry-Run"))
}

#[test]
fn a_dry_run_counts_tells_and_refuses_nobody() {
    let redis = Redis::start();
    let policies = "dry = { limit = \"2/1h\", dry_run = true, dry_run_header = \"X-Dry-Run\", \
                            exempt = \"OPTIONS\" }, \
                    quiet = { limit = \"2/1h\", dry_run = true }";
    let conf = Conf::new(&redis.url(), policies)
        .limited("/dry", "dry")
        .limited("/quiet", "quiet")
        .content(
            "/check",
            "local d = require(\"resty.weir\").check(\"dry\") \
             ngx.print(tostring(d.allowed), tostring(d.would_refuse), d.remaining)",
        )
        .stats();
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    for outcome in ["dry=allowed", "dry=allowed", "dry=denied", "dry=denied"] {
        let answer = client.get("/dry");
        assert_eq!(told(&answer), (200, Some(outcome)));
        assert!(!answer.has_limit_headers() && answer.header("Retry-After").is_none());
        let quiet = client.get("/quiet");
        assert_eq!(told(&quiet), (200, None));
        assert!(!quiet.has_limit_headers());
    }
    assert_eq!(told(&client.ask("OPTIONS", "/dry", &[])), (200, None));
    assert_eq!(client.get("/check").body, "truetrue0");
    assert_eq!(redis.command::<usize>("ZCARD weir:{$remote_addr=127.0.0.1}:dry:log:1h"), 2);
    assert_eq!(nginx.count("decisions.allowed"), 4);
    assert_eq!(nginx.count("decisions.dry_run_denied"), 5);
    assert_eq!(nginx.count("decisions.denied"), 0);
    // Once at the first, and then no more often than every ten seconds.
    for policy in ["dry", "quiet"] {
        let lines = nginx.log_lines(&format!("policy {policy} would have refused 1 more"));
        assert_eq!(lines.len(), 1, "{}", nginx.error_log());
    }
}

#[test]
fn a_dry_run_passes_what_nobody_can_decide() {
    let policies = "dry = { limit = \"2/1h\", dry_run = true, dry_run_header = \"X-Dry-Run\", \
                            on_error = \"closed\" }, \
                    wrong = { limit = \"2/1h\", dry_run = true, on_error = \"closed\", \
                              key = function() error(\"no\") end }";
    let conf = Conf::with_timeout("100ms", "redis://127.0.0.1:1/0", policies)
        .limited("/dry", "dry")
        .limited("/wrong", "wrong")
        .content("/check", "ngx.print(tostring(require(\"resty.weir\").check(\"dry\").allowed))")
        .server(
            "location /phase { header_filter_by_lua_block { local weir = require(\"resty.weir\") \
             ngx.header[\"Said\"] = tostring(weir.check(\"dry\").allowed) } \
             content_by_lua_block { ngx.print(1) } }",
        )
        .stats();
    let nginx = Nginx::start(&conf);
    assert_eq!(told(&nginx.client().get("/dry")), (200, Some("dry=error_open")));
    assert_eq!(nginx.client().get("/check").body, "true");
    assert_eq!(nginx.count("decisions.error_open"), 2);
    assert_eq!(nginx.count("decisions.error_closed"), 0);
    assert_eq!(nginx.client().get("/wrong").status, 200);
    assert_eq!(nginx.client().get("/phase").header("Said"), Some("true"), "nothing can wait there");
    assert_eq!(nginx.log_lines("on_error is open (dry run)").len(), 2);
}

#[test]
fn a_dry_run_never_hides_an_enforced_policy() {
    let redis = Redis::start();
    let policies = "real = { limit = \"3/1h\" }, \
                    dry = { limit = \"1/1h\", dry_run = true, dry_run_header = \"X-Dry-Run\" }, \
                    too = { limit = \"9/1h\", dry_run = true, dry_run_header = \"X-Dry-Run\" }";
    let conf = Conf::new(&redis.url(), policies)
        .access("/first", &access(&["dry", "real", "too"]))
        .access("/last", &access(&["real", "dry", "too"]));
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    for (path, remaining, dry) in
        [("/first", 2, "allowed"), ("/last", 1, "denied"), ("/first", 0, "denied")]
    {
        let answer = client.get(path);
        let header = format!("dry={dry}, too=allowed");
        assert_eq!(told(&answer), (200, Some(header.as_str())), "{path}");
        assert_eq!(answer.number("RateLimit-Remaining"), remaining);
        assert_eq!(answer.number("RateLimit-Limit"), 3);
    }
    for path in ["/first", "/last"] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.number("RateLimit-Limit")), (429, 3));
        assert!(answer.body.contains("[\"real\"]"));
    }
}

const DECLARED: &str = "set $weir_policy \"\"; set $weir_outcome \"\"; \
                        set $weir_remaining \"\"; set $weir_source \"\";";

/// What the access log says of each request, in their order.
fn logged(nginx: &Nginx, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    weir_tests::wait_until("all are logged", std::time::Duration::from_secs(5), || {
        let log = nginx.file("access.log");
        lines = log.lines().map(str::to_owned).collect();
        lines.len() >= count
    });
    lines
}

const FORMAT: &str =
    "log_format weir \"$uri $weir_policy|$weir_outcome|$weir_remaining|$weir_source\";";

#[test]
fn access_logs_tell_what_was_decided() {
    let redis = Redis::start();
    let policies = "real = { limit = \"2/1h\" }, wide = { limit = \"9/1h\" }, \
                    dry = { limit = \"1/1h\", dry_run = true }, \
                    free = { limit = \"1/1h\", exempt = \"127.0.0.1\" }, \
                    open = { limit = \"1/1h\", key = function() error(\"no\") end }, \
                    shut = { limit = \"1/1h\", key = function() error(\"no\") end, \
                             on_error = \"closed\" }";
    let mut conf = Conf::new(&redis.url(), policies)
        .server(DECLARED)
        .server("access_log access.log weir;")
        .server("log_by_lua_block { require(\"resty.weir\").log() }")
        .access("/both", &access(&["wide", "real", "dry"]))
        .access("/dry", &access(&["dry"]))
        .access("/free", &access(&["free"]))
        .access("/open", &access(&["wide", "open"]))
        .access("/shut", &access(&["shut"]))
        .server(&format!(
            "location /routed {{ access_by_lua_block {{ {} }} try_files /none /both; }}",
            access(&["wide"])
        ))
        .server(&format!(
            "location /lost {{ access_by_lua_block {{ {} }} try_files /none @end; }}",
            access(&["wide"])
        ))
        .access("/tight-first", &access(&["real", "wide"]))
        .server(&format!(
            "location /again {{ access_by_lua_block {{ {} }} try_files /none /wide; }}",
            access(&["wide"])
        ))
        .access("/wide", &access(&["wide"]))
        .server(&format!(
            "location /captured {{ access_by_lua_block {{ {} }} content_by_lua_block {{ \
             ngx.location.capture(\"/sub\") ngx.print(\"ok\") }} }}",
            access(&["wide"])
        ))
        .content("/sub", &access(&["real"]))
        .server(&format!(
            "location /away {{ access_by_lua_block {{ {} }} try_files /none /bare; }}",
            access(&["wide"])
        ))
        .server("location /bare { content_by_lua_block { ngx.print(\"ok\") } }")
        .server("location @end { content_by_lua_block { ngx.print(\"ok\") } }");
    conf.http = FORMAT.to_owned();
    let nginx = Nginx::start(&conf);
    for path in [
        "/tight-first",
        "/both",
        "/both",
        "/dry",
        "/free",
        "/open",
        "/shut",
        "/routed",
        "/again",
        "/away",
        "/captured",
        "/lost",
    ] {
        nginx.client().get(path);
    }
    let lines: Vec<String> =
        logged(&nginx, 13).into_iter().filter(|line| !line.starts_with("/plain")).collect();
    assert_eq!(
        lines,
        [
            "/tight-first real|allowed|1|redis",
            "/both real|allowed|0|redis",
            "/both real|denied|0|redis",
            "/dry dry|dry_run_denied|0|redis",
            "/free free|exempt||exempt",
            "/open open|error_open||on_error",
            "/shut shut|error_closed||on_error",
            "/both real|denied|0|remembered",
            // What `set` has emptied on the way is there again.
            "/wide wide|allowed|3|redis",
            "/bare wide|allowed|2|redis",
            // A subrequest's refusal is not the request's.
            "/captured wide|allowed|1|redis",
            "/lost wide|allowed|0|redis",
        ]
    );
    nginx.assert_calm_log();
}

/// Any of them, or none, may be declared.
#[test]
fn variables_that_are_not_declared_are_not_missed() {
    let redis = Redis::start();
    let mut conf = Conf::new(&redis.url(), "api = { limit = \"2/1h\" }")
        .server("set $weir_remaining \"\"; access_log access.log weir;")
        .limited("/api", "api")
        .server(&format!(
            "location /again {{ access_by_lua_block {{ {} }} try_files /none /api; }}",
            access(&["api"])
        ));
    conf.http = "log_format weir \"$uri $weir_remaining\";".to_owned();
    let nginx = Nginx::start(&conf);
    nginx.client().get("/api");
    nginx.client().get("/again");
    let lines = logged(&nginx, 3);
    assert_eq!(lines[1..], ["/api 1", "/api 0"]);
    assert_eq!(nginx.log_lines("weir_"), Vec::<String>::new());
}
