//! Subrequests: what they count counts for the client's request, once, and what
//! they are told is theirs.

use std::time::Duration;

use weir_tests::limited::{OK, access, assert_charges, charged};
use weir_tests::{Conf, Nginx, Redis, wait_until};

/// A location that a subrequest can reach: subrequests have no access phase, so
/// this one is limited in its content phase.
fn limited_content(conf: Conf, path: &str, policy: &str, opts: &str) -> Conf {
    conf.content(
        path,
        &format!("require(\"resty.weir\").access(\"{policy}\", {opts}) ngx.print(\"ok\")"),
    )
}

/// However many subrequests wait for the first one's decision, and nobody can
/// say: that is said once, and waited for once.
#[test]
fn subrequests_that_wait_for_one_decision_share_what_comes_of_it() {
    let redis = Redis::start();
    let captures = "local uris = {} for i = 1, 6 do uris[i] = { \"/sub/\" .. ngx.var.arg_p } end \
                    local answers = { ngx.location.capture_multi(uris) } \
                    for i = 1, 6 do ngx.print(answers[i].status, \" \") end";
    let policies =
        "open = { limit = \"100/1h\" }, shut = { limit = \"100/1h\", on_error = \"closed\" }";
    let conf = Conf::with_timeout("300ms", &redis.url(), policies)
        .content("/multi", captures)
        .content("/sub/open", "require(\"resty.weir\").access(\"open\") ngx.print(\"ok\")")
        .content("/sub/shut", "require(\"resty.weir\").access(\"shut\") ngx.print(\"ok\")")
        .stats();
    let nginx = Nginx::start(&conf);
    for (policy, statuses) in [("open", "200 ".repeat(6)), ("shut", "503 ".repeat(6))] {
        wait_until("Redis answers", Duration::from_secs(5), || nginx.stat("redis") == "up");
        redis.freeze();
        let answer = nginx.client().get(&format!("/multi?p={policy}"));
        redis.thaw();
        assert_eq!(answer.body, statuses, "{policy}");
        let asked = ["error_open", "error_closed"].map(|o| nginx.count(&format!("decisions.{o}")));
        assert_eq!(asked, if policy == "open" { [1, 0] } else { [1, 1] });
    }
}

/// The client is told what a subrequest was told for it.
#[test]
fn what_a_subrequest_counted_is_told_where_the_request_is_limited() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }")
        .server(&format!("location /main {{ auth_request /auth; {} {OK} }}", access("api")))
        .content("/auth", "require(\"resty.weir\").access(\"api\")");
    let nginx = Nginx::start(&conf);
    let answer = nginx.client().get("/main");
    assert_eq!((answer.status, answer.number("RateLimit-Remaining")), (200, 99));
}

/// nginx runs no access phase for subrequests: theirs is the client request's.
#[test]
fn a_request_is_charged_once_with_its_auth_request_and_captures() {
    let redis = Redis::start();
    let limited = access("api");
    let capture = "local a = ngx.location.capture('/one') \
                   local b = ngx.location.capture('/in-content') ngx.print(a.body, b.body)";
    let conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }")
        .limited("/one", "api")
        .server(&format!("location = /auth {{ internal; {limited} {OK} }}"))
        .server(&format!("location /main {{ {limited} auth_request /auth; {OK} }}"))
        .server(&format!(
            "location /auth-in-content {{ {limited} auth_request /in-content; {OK} }}"
        ))
        .server(&format!("location /mirror {{ {limited} mirror /in-content; {OK} }}"))
        .server(&format!("location /capture {{ {limited} content_by_lua_block {{ {capture} }} }}"))
        .server(&format!(
            "location /capture-first {{ rewrite_by_lua_block {{ \
             ngx.location.capture('/in-content') }} {limited} {OK} }}"
        ));
    let nginx = Nginx::start(&limited_content(conf, "/in-content", "api", "nil"));
    let paths = ["/main", "/auth-in-content", "/mirror", "/capture", "/capture-first"];
    assert_charges(&nginx, &redis, &paths.map(|path| (path, 1)));
}

/// A refusal in gRPC's own words has the status 200, and by that auth_request would let
/// the client in.
#[test]
fn what_an_auth_request_refuses_is_refused_to_grpc_calls_too() {
    let redis = Redis::start();
    let policies =
        "api = { limit = \"1/1h\" }, closed = { limit = \"1/1h\", on_error = \"closed\" }";
    let capture = "ngx.print(ngx.location.capture('/refuses', { method = ngx.HTTP_POST }).status)";
    let conf = Conf::new(&redis.url(), policies)
        .server(&format!("location /refused {{ auth_request /refuses; {OK} }}"))
        .server(&format!("location /undecided {{ auth_request /cannot; {OK} }}"))
        .content("/captured", capture);
    let conf = limited_content(conf, "/refuses", "api", "nil");
    let nginx = Nginx::start(&limited_content(conf, "/cannot", "closed", "{ cost = -1 }"));
    let client = nginx.client();
    let call = |path: &str| client.ask("POST", path, &[("Content-Type", "application/grpc-web")]);
    assert_eq!(call("/refused").body, "ok");
    for path in ["/refused", "/undecided"] {
        // What nginx makes of any status of an auth_request that it does not know.
        assert_eq!(call(path).status, 500, "{path}");
    }
    assert_eq!(call("/captured").body, "429");
}

const CAPTURES: &str = "
    local a = ngx.location.capture('/in')
    local b = ngx.location.capture('/in')
    ngx.header.waits = a.header['Retry-After']
    ngx.print(a.status, ' ', b.status)";

const CAPTURE_MULTI: &str = "
    local a, b = ngx.location.capture_multi { { '/in' }, { '/in' } }
    ngx.header.waits = b.header['Retry-After']
    ngx.print(a.status, ' ', b.status)";

/// A server whose `/twice` and `/multi` capture `/in`, limited in its content
/// phase, two times each.
fn capturing(redis: &Redis, policy: &str, opts: &str) -> Nginx {
    let mut conf = Conf::new(&redis.url(), policy);
    conf.http = "header_filter_by_lua_block { require(\"resty.weir\").header_filter() }".to_owned();
    let conf = conf.content("/twice", CAPTURES).content("/multi", CAPTURE_MULTI).stats();
    Nginx::start(&limited_content(conf, "/in", "api", opts))
}

/// S01: a limiter in a subrequest holds nobody up.
#[test]
fn subrequests_that_are_limited_finish_at_once_and_are_one_unit() {
    let redis = Redis::start();
    for (opts, units) in [("nil", 1), ("{ internal = true }", 2)] {
        let nginx = capturing(&redis, "api = { limit = \"100/1h\" }", opts);
        for path in ["/twice", "/multi"] {
            let before = charged(&redis, "api");
            let answer = nginx.client().get(path);
            assert_eq!((answer.status, answer.body.as_str()), (200, "200 200"), "{path} {opts}");
            // Far from the timeout of 5 s, on a busy machine too.
            assert!(answer.elapsed < Duration::from_secs(2), "{path} {opts}: {answer:?}");
            assert_eq!(charged(&redis, "api") - before, units, "{path} {opts}");
        }
        assert_eq!(nginx.count("waiting"), 0);
        nginx.assert_calm_log();
    }
}

/// Each of a request's subrequests is refused, and the request itself goes on.
#[test]
fn a_refusal_in_a_subrequest_is_the_subrequests() {
    let redis = Redis::start();
    for opts in ["nil", "{ internal = true }"] {
        let nginx = capturing(&redis, "api = { limit = \"1/1h\" }", opts);
        nginx.client().get("/in");
        assert_eq!(charged(&redis, "api"), 1);
        for path in ["/twice", "/multi"] {
            let answer = nginx.client().get(path);
            assert_eq!((answer.status, answer.body.as_str()), (200, "429 429"), "{path} {opts}");
            assert!(answer.number("waits") > 3_590, "{path}");
            assert_eq!(answer.header("Retry-After"), None, "{path}");
            assert!(!answer.has_limit_headers(), "{path}");
        }
        nginx.assert_calm_log();
    }
}

/// Of many that wait for the first one's decision each goes on at once.
#[test]
fn many_subrequests_wait_for_one_decision_and_no_longer() {
    let redis = Redis::start();
    let captures = "local uris = {} for i = 1, 20 do uris[i] = { \"/sub\" } end \
                    local answers = { ngx.location.capture_multi(uris) } \
                    for i = 1, 20 do ngx.print(answers[i].status, \" \") end";
    let conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }").content("/multi", captures);
    let nginx = Nginx::start(&limited_content(conf, "/sub", "api", "nil"));
    let answer = nginx.client().get("/multi");
    assert_eq!((answer.body, charged(&redis, "api")), ("200 ".repeat(20), 1));
    // Far from the timeout of 5 s, on a busy machine too.
    assert!(answer.elapsed < Duration::from_secs(2), "{:?}", answer.elapsed);
}

/// A subrequest that is given its parent's ngx.ctx is still a subrequest.
#[test]
fn a_shared_ctx_does_not_make_a_subrequest_the_request() {
    let redis = Redis::start();
    let policies = "api = { limit = \"100/1h\" }, one = { limit = \"1/1h\" }";
    let capture = |path| {
        format!(
            "content_by_lua_block {{ local answer = ngx.location.capture(\"{path}\", \
             {{ ctx = ngx.ctx }}) ngx.print(\"ok \", answer.status) }}"
        )
    };
    let conf = Conf::new(&redis.url(), policies)
        .server(&format!("location /same {{ {} {} }}", access("api"), capture("/api")))
        .server(&format!("location /other {{ {} {} }}", access("api"), capture("/one")));
    let conf = limited_content(conf, "/api", "api", "nil");
    let nginx = Nginx::start(&limited_content(conf, "/one", "one", "nil"));
    assert_charges(&nginx, &redis, &[("/same", 1)]);
    for status in ["200", "429"] {
        let answer = nginx.client().get("/other");
        assert_eq!(answer.body, format!("ok {status}"));
        assert_eq!((answer.number("RateLimit-Limit"), answer.header("Retry-After")), (100, None));
    }
}
