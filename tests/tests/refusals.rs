//! The answers that Weir gives itself: a 429, and what a closed policy answers
//! while nobody can say.

use weir_tests::{Answer, Conf, Nginx, Redis};

/// Nobody listens there.
const NO_REDIS: &str = "redis://127.0.0.1:1/0";

fn with_accept(nginx: &Nginx, path: &str, accept: &str) -> Answer {
    nginx.client().get_with(path, &[("Accept", accept)])
}

#[test]
fn the_body_is_problem_json_unless_something_else_is_wanted_more() {
    let redis = Redis::start();
    let nginx =
        Nginx::start(&Conf::new(&redis.url(), "api = { limit = \"1/1h\" }").limited("/", "api"));
    nginx.client().get("/");
    for (accept, media) in [
        ("*/*", "application/problem+json"),
        ("application/json, text/plain, */*", "application/problem+json"),
        ("image/png", "application/problem+json"),
        (";;,=\"", "application/problem+json"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8"),
        ("text/plain", "text/plain; charset=utf-8"),
    ] {
        let answer = with_accept(&nginx, "/", accept);
        assert_eq!((answer.status, answer.header("Content-Type")), (429, Some(media)), "{accept}");
        let length = answer.number("Content-Length") as usize;
        assert_eq!(length, answer.body.len());
        assert!(answer.body.contains("Rate limit exceeded"), "{}", answer.body);
    }
    let seconds = nginx.client().get("/").number("Retry-After");
    let text = with_accept(&nginx, "/", "text/plain").body;
    assert!(
        [seconds, seconds - 1]
            .map(|s| format!("Rate limit exceeded. Try again in {s} seconds.\n"))
            .contains(&text),
        "{text}"
    );
    nginx.assert_calm_log();
}

#[test]
fn while_nobody_can_say_a_closed_policy_tells_of_reduced_capacity() {
    let policies = "shut = { limit = \"1/1h\", on_error = \"closed\" }, \
                    other = { limit = \"1/1h\", on_error = \"closed\", error_status = 500 }";
    let conf = Conf::with_timeout("100ms", NO_REDIS, policies)
        .limited("/shut", "shut")
        .limited("/other", "other");
    let nginx = Nginx::start(&conf);
    let answer = nginx.client().get("/shut");
    assert_eq!((answer.status, answer.header("Retry-After")), (503, Some("1")));
    assert_eq!(answer.header("Content-Type"), Some("application/problem+json"));
    assert_eq!(
        answer.body,
        "{\"type\":\"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity\",\
         \"title\":\"Temporarily unavailable\",\"status\":503,\"retry_after\":1}\n"
    );
    assert!(!answer.has_limit_headers());
    let other = nginx.client().get("/other");
    assert!(other.status == 500 && other.body.contains("\"status\":500"), "{other:?}");
    let html = with_accept(&nginx, "/shut", "text/html").body;
    assert!(html.contains("503 Temporarily unavailable"), "{html}");
}

/// What another policy told before is not told with it.
#[test]
fn a_failure_tells_of_no_limit() {
    let redis = Redis::start();
    let policies = "site = { limit = \"9/1h\", headers = { \"draft-11\", \"separate\" } }, \
                    shut = { limit = \"1/1h\", on_error = \"closed\", \
                             key = function() error(\"no\") end }";
    let both = "local w = require(\"resty.weir\") w.access(\"site\") w.access(\"shut\")";
    let nginx = Nginx::start(&Conf::new(&redis.url(), policies).access("/", both));
    let answer = nginx.client().get("/");
    assert_eq!((answer.status, answer.has_limit_headers()), (503, false), "{answer:?}");
}

/// Neither for as long as the upstream that sent the request on said of its own answer, nor
/// as a cache keeps errors of which nothing is said.
#[test]
fn no_cache_answers_others_with_a_refusal() {
    let redis = Redis::start();
    let key = "key = \"$http_x_client\"";
    let policies = format!(
        "files = {{ limit = \"1/1h\", {key} }}, \
         page = {{ limit = \"1/1h\", {key}, error_page = true }}, \
         shut = {{ limit = \"1/1h\", on_error = \"closed\", error_status = 404, \
                  key = function() error(\"no\") end }}"
    );
    // The upstream is the same nginx.
    let up = "proxy_pass http://127.0.0.1:$server_port";
    let mut conf = Conf::new(&redis.url(), &policies)
        .limited("/files", "files")
        .limited("/page", "page")
        .limited("/shut", "shut")
        .server(&format!("location /sent-on/ {{ {up}/source$uri; }}"))
        .server(&format!("location /kept/ {{ proxy_cache kept; {up}/sent-on$uri; }}"))
        .server(
            "location ~ ^/source/sent-on/(kept/)?(?<policy>.*) { \
             add_header X-Accel-Redirect /$policy; \
             add_header Cache-Control max-age=60; return 204; }",
        )
        .server(&format!(
            "location ~ ^/errors/(?<limited>.*) {{ proxy_cache kept; proxy_cache_valid any 1m; \
             {up}/$limited; }}"
        ));
    conf.http = "proxy_cache_path kept keys_zone=kept:1m;".into();
    let nginx = Nginx::start(&conf);
    let status =
        |client: &str, path: &str| nginx.client().get_with(path, &[("X-Client", client)]).status;
    for policy in ["files", "page"] {
        let (kept, errors) = (format!("/kept/{policy}"), format!("/errors/{policy}"));
        assert_eq!(status("spent", &format!("/{policy}")), 200);
        assert_eq!([status("spent", &kept), status("one", &kept)], [429, 200], "{policy}");
        assert_eq!([status("spent", &errors), status("two", &errors)], [429, 200], "{policy}");
    }
    let shut = nginx.client().get("/shut");
    assert_eq!((shut.status, shut.header("Cache-Control")), (404, Some("no-store")));
}

/// A mistake in its Lua is not made again in the error page that it led to.
#[test]
fn a_mistake_does_not_go_round_in_circles() {
    let redis = Redis::start();
    let policies = "shut = { limit = \"1/1h\", on_error = \"closed\", error_page = true, \
                             key = function() error(\"no\") end }";
    let conf = Conf::new(&redis.url(), policies)
        .server("recursive_error_pages on; error_page 503 /error;")
        .limited("/api", "shut")
        .limited("/error", "shut");
    let nginx = Nginx::start(&conf);
    let answer = nginx.client().get("/api");
    assert_eq!((answer.status, answer.body.as_str()), (503, "ok"), "{}", nginx.error_log());
    nginx.assert_calm_log();
}

#[test]
fn an_operators_own_body_takes_the_place_of_ours() {
    let redis = Redis::start();
    let own = "body = { type = \"application/json\", text = '{\"error\":\"slow\"}' }, \
               error_body = { type = \"text/plain\", text = \"later\" }";
    let policies = format!(
        "api = {{ limit = \"1/1h\", {own} }}, \
         fault = {{ limit = \"1/1h\", {own}, on_error = \"closed\", \
                    key = function() error(\"no\") end }}"
    );
    let nginx = Nginx::start(
        &Conf::new(&redis.url(), &policies).limited("/api", "api").limited("/fault", "fault"),
    );
    nginx.client().get("/api");
    // Whatever is asked for.
    let refused = with_accept(&nginx, "/api", "text/html");
    assert_eq!((refused.status, refused.body.as_str()), (429, "{\"error\":\"slow\"}"));
    assert_eq!(refused.header("Content-Type"), Some("application/json"));
    assert!(refused.number("Retry-After") > 3_000);
    assert_eq!(refused.number("RateLimit-Limit"), 1);
    let closed = nginx.client().get("/fault");
    assert_eq!((closed.status, closed.body.as_str()), (503, "later"));
    assert_eq!(closed.header("Content-Type"), Some("text/plain"));
}

/// With `error_page = true` nginx has the last word: its pages, its status, and
/// still our headers.
#[test]
fn error_page_answers_where_it_is_given_the_word() {
    let redis = Redis::start();
    let policies = "api = { limit = \"1/1h\", error_page = true }, \
                    bare = { limit = \"1/1h\", error_page = true }, \
                    shut = { limit = \"1/1h\", error_page = true, on_error = \"closed\", \
                             error_status = 502, key = function() error(\"no\") end }";
    let access =
        |name| format!("access_by_lua_block {{ require(\"resty.weir\").access(\"{name}\") }}");
    let (api, ok) = (access("api"), "content_by_lua_block { ngx.print(\"ok\") }");
    let conf = Conf::new(&redis.url(), policies)
        .server("add_header X-Always yes always;")
        .server(&format!("location /page {{ error_page 429 /sorry.html; {api} {ok} }}"))
        .server(&format!("location /named {{ error_page 429 @sorry; {api} {ok} }}"))
        .server(&format!("location /other {{ error_page 429 =503 @sorry; {api} {ok} }}"))
        .server(&format!("location /bare {{ {} {ok} }}", access("bare")))
        .server(&format!("location /shut {{ error_page 502 @down; {} {ok} }}", access("shut")))
        // Where the access phase runs again.
        .server(&format!(
            "location = /sorry.html {{ internal; {api} content_by_lua_block {{ ngx.print(\"page\") }} }}"
        ))
        .server(&format!("location @sorry {{ {api} content_by_lua_block {{ ngx.print(\"named\") }} }}"));
    let conf = conf.server("location @down { content_by_lua_block { ngx.print(\"down\") } }");
    let nginx = Nginx::start(&conf);
    assert_eq!(nginx.client().get("/page").status, 200);
    for (path, status, body) in
        [("/page", 429, "page"), ("/named", 429, "named"), ("/other", 503, "named")]
    {
        let refused = nginx.client().get(path);
        assert_eq!((refused.status, refused.body.as_str()), (status, body), "{path}");
        assert!(refused.number("Retry-After") > 3_000, "{path}");
        assert_eq!(refused.number("RateLimit-Remaining"), 0, "{path}");
        assert_eq!(refused.header("X-Always"), Some("yes"), "{path}");
    }
    nginx.client().get("/bare");
    let bare = nginx.client().get("/bare");
    assert_eq!((bare.status, bare.header("Content-Type")), (429, Some("text/html")));
    assert!(bare.body.contains("429 Too Many Requests") && bare.number("Retry-After") > 3_000);
    let shut = nginx.client().get("/shut");
    assert_eq!((shut.status, shut.body.as_str()), (502, "down"));
    assert_eq!(shut.header("Retry-After"), Some("1"));
    let used: usize = redis.command("ZCARD weir:{$remote_addr=127.0.0.1}:api:log:1h");
    assert_eq!(used, 1, "pages count nothing");
}
