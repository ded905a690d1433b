//! Promise 3: however nginx routes a request, it is charged once under each
//! policy, and never not at all.

use std::time::Duration;

use tempfile::TempDir;
use weir_tests::limited::{OK, access, assert_charges, charged};
use weir_tests::{Answer, Conf, Nginx, Redis};

fn remaining(answer: &Answer) -> (u16, u64) {
    (answer.status, answer.number("RateLimit-Remaining"))
}

#[test]
fn an_internally_redirected_request_is_charged_once() {
    let redis = Redis::start();
    let limited = access("api");
    let files = TempDir::new().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(files.path(), open).unwrap();
    std::fs::write(files.path().join("front.html"), "ok").unwrap();
    let root = files.path().display();
    let fails = |status| format!("content_by_lua_block {{ ngx.exit({status}) }}");
    let conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }")
        .limited("/one", "api")
        .server(&format!("location @named {{ {limited} {OK} }}"))
        .server(&format!("location /tries {{ {limited} try_files /none /one; }}"))
        .server(&format!("location /tries-named {{ {limited} try_files /none @named; }}"))
        .server(&format!("location /index/ {{ {limited} alias {root}/; index none front.html; }}"))
        .server(&format!(
            "location /exec {{ {limited} content_by_lua_block {{ ngx.exec('/one') }} }}"
        ))
        .server(&format!(
            "location /exec-named {{ {limited} content_by_lua_block {{ ngx.exec('@named') }} }}"
        ))
        .server(&format!("location /404 {{ {limited} error_page 404 =200 /one; {} }}", fails(404)))
        .server(&format!(
            "location /404-named {{ {limited} error_page 404 =200 @named; {} }}",
            fails(404)
        ))
        // Nobody listens there.
        .server(&format!(
            "location /502-named {{ {limited} error_page 502 =200 @named; \
             proxy_pass http://127.0.0.1:1; }}"
        ))
        // What an upstream, here the same nginx, asks for.
        .server("location /source { add_header X-Accel-Redirect /one; return 204; }")
        .server(&format!(
            "location /accel {{ {limited} proxy_pass http://127.0.0.1:$server_port/source; }}"
        ))
        // One redirect after another.
        .server(&format!(
            "location /chain {{ {limited} error_page 404 =200 /tries-named; {} }}",
            fails(404)
        ));
    let nginx = Nginx::start(&conf);
    let paths = [
        "/one",
        "/tries",
        "/tries-named",
        "/index/",
        "/exec",
        "/exec-named",
        "/404",
        "/404-named",
        "/502-named",
        "/accel",
        "/chain",
    ];
    assert_charges(&nginx, &redis, &paths.map(|path| (path, 1)));
    for path in paths {
        assert!(nginx.client().get(path).has_limit_headers(), "{path}");
    }
}

/// What was made internal before its first access phase has not been counted.
#[test]
fn a_request_that_is_internal_before_it_is_limited_is_charged() {
    let redis = Redis::start();
    let limited = access("api");
    let conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }")
        .limited("/one", "api")
        .server("location /last { rewrite ^ /one last; }")
        .server(&format!("location /break {{ rewrite ^ /other break; {limited} {OK} }}"))
        .server(&format!(
            "location /uri {{ rewrite_by_lua_block {{ ngx.req.set_uri('/other') }} {limited} {OK} }}"
        ))
        .server(&format!("location @named {{ {limited} {OK} }}"))
        .server("location /return { error_page 418 =200 @named; return 418; }")
        .server("location /front { try_files /none /one; }")
        .server("location /twice { rewrite ^ /last last; }");
    let nginx = Nginx::start(&conf);
    let paths = ["/last", "/break", "/uri", "/return", "/front", "/twice"];
    assert_charges(&nginx, &redis, &paths.map(|path| (path, 1)));
}

/// With `satisfy any` whom another module has let in does not come to `access_by_lua`.
#[test]
fn with_satisfy_any_the_rewrite_phase_counts_everybody() {
    let redis = Redis::start();
    let limited = access("api");
    let any = "satisfy any; allow 127.0.0.1; deny all;";
    let conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }")
        .server(&format!("location /access {{ {any} {limited} {OK} }}"))
        .server(&format!(
            "location /rewrite {{ {any} {} {OK} }}",
            limited.replace("access_by_lua", "rewrite_by_lua")
        ));
    let nginx = Nginx::start(&conf);
    assert_charges(&nginx, &redis, &[("/access", 0), ("/rewrite", 1)]);
}

#[test]
fn an_internal_redirect_is_charged_where_opts_say_so() {
    let redis = Redis::start();
    let limited = access("api");
    let conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }")
        .access("/counted", "require(\"resty.weir\").access(\"api\", { internal = true })")
        .access("/not", "require(\"resty.weir\").access(\"api\", { internal = false })")
        .server(&format!("location /twice {{ {limited} try_files /none /counted; }}"))
        .server(&format!("location /once {{ {limited} try_files /none /not; }}"));
    let nginx = Nginx::start(&conf);
    assert_charges(&nginx, &redis, &[("/counted", 1), ("/twice", 2), ("/once", 1)]);
}

/// Called twice it counts twice: for two clients, for example.
#[test]
fn each_call_of_the_same_pass_counts() {
    let redis = Redis::start();
    let call = |opts: &str| format!("require(\"resty.weir\").access(\"api\", {opts}) ");
    let conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }")
        .access("/twice", &(call("nil") + &call("nil")))
        .access("/for-two", &(call("{ key = \"a\" }") + &call("{ key = \"b\" }")));
    let nginx = Nginx::start(&conf);
    assert_charges(&nginx, &redis, &[("/twice", 2)]);
    nginx.client().get("/for-two");
    assert_eq!(redis.command::<usize>("DBSIZE"), 3);
}

/// Also where the request is internal already, and in each pass of a redirect
/// the first stands for the first, the second for the second.
#[test]
fn each_call_counts_once_however_the_request_came_there() {
    let redis = Redis::start();
    let two = "access_by_lua_block { local w = require(\"resty.weir\") \
               w.access(\"api\", { key = \"ip\" }) w.access(\"api\", { key = \"user\" }) }";
    let one = "access_by_lua_block { require(\"resty.weir\").access(\"api\", { key = \"ip\" }) }";
    let conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }")
        .server(&format!("location /direct {{ {two} {OK} }}"))
        .server(&format!("location @app {{ {two} {OK} }}"))
        .server("location /tried { try_files /none @app; }")
        .server("location /rewritten { rewrite ^ /direct last; }")
        .server(&format!("location /again {{ {two} try_files /none /direct; }}"))
        .server(&format!("location /one-two {{ {one} try_files /none /direct; }}"))
        .server(&format!(
            "location /replaced {{ access_by_lua_block {{ local w = require(\"resty.weir\") \
             w.access(\"api\", {{ key = \"ip\" }}) ngx.ctx = {{}} \
             w.access(\"api\", {{ key = \"user\" }}) }} {OK} }}"
        ));
    let nginx = Nginx::start(&conf);
    let used =
        |client: &str| -> usize { redis.command(&format!("ZCARD weir:{{={client}}}:api:log:1h")) };
    for (count, path) in ["/direct", "/tried", "/rewritten", "/again", "/one-two", "/replaced"]
        .into_iter()
        .enumerate()
    {
        assert_eq!(nginx.client().get(path).status, 200, "{path}");
        assert_eq!((used("ip"), used("user")), (count + 1, count + 1), "{path}");
    }
}

/// Looks, mistakes and calls that count on purpose do not get in its way.
#[test]
fn what_does_not_count_does_not_shift_what_does() {
    let redis = Redis::start();
    let call = |opts: &str| format!("require(\"resty.weir\").access(\"api\", {opts}) ");
    let pass = |calls: &[&str]| {
        let calls: String = calls.iter().map(|opts| call(opts)).collect();
        format!("access_by_lua_block {{ {calls} }}")
    };
    let (look, one, wrong, internal) =
        ("{ cost = 0 }", "nil", "{ cost = -1 }", "{ internal = true }");
    let cases: [(&str, &[&str], &[&str], usize); 7] = [
        ("/a", &[look, one], &[look, one], 1),
        ("/b", &[one], &[look, one], 1),
        ("/c", &[wrong, one], &[wrong, one], 1),
        ("/d", &[one], &[internal, one], 2),
        ("/e", &[one], &[one, internal], 2),
        ("/f", &[one, one], &[one, one], 2),
        ("/g", &[one], &[one, one], 2),
    ];
    let mut conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }");
    for (path, first, second, _) in cases {
        let name = &path[1..];
        conf = conf
            .server(&format!("location {path} {{ {} try_files /none @{name}; }}", pass(first)))
            .server(&format!("location @{name} {{ {} {OK} }}", pass(second)));
    }
    let nginx = Nginx::start(&conf);
    let expected: Vec<(&str, usize)> = cases.map(|(path, .., units)| (path, units)).to_vec();
    assert_charges(&nginx, &redis, &expected);
}

/// Two policies on one request's way: it waits for an answer that does not come
/// but once.
#[test]
fn a_request_waits_in_vain_but_once() {
    let redis = Redis::start();
    let names = ["a", "b", "c"];
    let policies: Vec<String> =
        names.iter().map(|name| format!("{name} = {{ limit = \"9/1h\" }}")).collect();
    let calls: String =
        names.iter().map(|name| format!("require(\"resty.weir\").access(\"{name}\") ")).collect();
    let conf = Conf::with_timeout("1s", &redis.url(), &policies.join(", "))
        .access("/three", &calls)
        .stats();
    let nginx = Nginx::start(&conf);
    assert_eq!(nginx.client().get("/three").status, 200);
    redis.freeze();
    let answer = nginx.client().get("/three");
    redis.thaw();
    assert_eq!(answer.status, 200);
    assert_eq!(nginx.count("errors.timeout"), 3);
    assert!(answer.elapsed < Duration::from_millis(1_900), "{:?}", answer.elapsed);
}

/// Two policies are two budgets, on whichever side of a redirect they stand.
#[test]
fn every_policy_on_a_requests_way_counts_it_once() {
    let redis = Redis::start();
    let (site, login) = (access("site"), access("login"));
    let conf = Conf::new(&redis.url(), "site = { limit = \"99/1h\" }, login = { limit = \"3/1h\" }")
        .server(&format!("location /s/ {{ {site} try_files /none @login; }}"))
        .server(&format!("location /x/ {{ {site} content_by_lua_block {{ ngx.exec(\"@login\") }} }}"))
        .server(&format!(
            "location @login {{ {login} error_page 404 =200 @again; content_by_lua_block {{ ngx.exit(404) }} }}"
        ))
        .server(&format!("location @again {{ {login} {OK} }}"))
        .stats();
    let nginx = Nginx::start(&conf);
    let statuses: Vec<u16> = ["/s/", "/x/", "/s/", "/x/", "/s/"]
        .iter()
        .map(|path| nginx.client().get(path).status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!((charged(&redis, "site"), charged(&redis, "login")), (5, 3));
    assert_eq!(nginx.count("decisions.internal"), 3);
}

/// The page of a refusal is not refused in turn.
#[test]
fn a_refused_request_is_asked_about_once_on_its_way_to_its_error_page() {
    let redis = Redis::start();
    let limited = access("api");
    let conf = Conf::new(&redis.url(), "api = { limit = \"1/1h\", error_page = true }")
        .server(&format!("location /one {{ {limited} error_page 429 @page; {OK} }}"))
        .server(&format!(
            "location @page {{ {limited} content_by_lua_block {{ ngx.print(\"page\") }} }}"
        ))
        .stats();
    let nginx = Nginx::start(&conf);
    assert_eq!(remaining(&nginx.client().get("/one")), (200, 0));
    let refused = nginx.client().get("/one");
    assert_eq!((refused.status, refused.body.as_str()), (429, "page"));
    assert!(refused.number("Retry-After") > 3_590);
    assert_eq!(nginx.count("decisions.denied"), 1);
    assert_eq!(nginx.count("decisions.internal"), 1);
}

/// What is not a charge does not stand for one: a look, and a call that was
/// mistaken.
#[test]
fn a_look_or_a_mistake_does_not_count_for_the_request() {
    let redis = Redis::start();
    let first = |path, opts| {
        format!(
            "location {path} {{ access_by_lua_block {{ \
             require(\"resty.weir\").access(\"api\", {opts}) }} try_files /none /charge; }}"
        )
    };
    let conf = Conf::new(&redis.url(), "api = { limit = \"9/1h\" }")
        .limited("/charge", "api")
        .server(&first("/look", "{ cost = 0 }"))
        .server(&first("/unknown", "{ csot = 1 }"))
        .server(&first("/negative", "{ cost = -1 }"))
        .server(&first("/key", "{ key = 7 }"))
        .server(&first("/text", "\"alice\""));
    let nginx = Nginx::start(&conf);
    let paths = ["/look", "/unknown", "/negative", "/key", "/text", "/look"];
    for (path, left) in paths.into_iter().zip((0..9).rev()) {
        assert_eq!(remaining(&nginx.client().get(path)), (200, left), "{path}");
    }
    nginx.assert_calm_log();
}

/// A look or a mistake behind the charge does not undo it either.
#[test]
fn a_charge_stands_when_a_look_or_a_mistake_follows_it() {
    let redis = Redis::start();
    let limited = access("api");
    let again = |path, opts| {
        format!(
            "location {path} {{ access_by_lua_block {{ \
             require(\"resty.weir\").access(\"api\", {opts}) }} try_files /none /last; }}"
        )
    };
    let conf = Conf::new(&redis.url(), "api = { limit = \"100/1h\" }")
        .limited("/last", "api")
        .server(&again("/look-in", "{ cost = 0, internal = true }"))
        .server(&again("/mistake-in", "{ cost = -1, internal = true }"))
        .server(&format!("location /look {{ {limited} try_files /none /look-in; }}"))
        .server(&format!("location /mistake {{ {limited} try_files /none /mistake-in; }}"));
    let nginx = Nginx::start(&conf);
    assert_charges(&nginx, &redis, &[("/look", 1), ("/mistake", 1)]);
}
