//! `on_error = "local"`: where Redis cannot decide this host does, for its part.

use std::time::Duration;

use weir_tests::{Conf, Nginx, Redis, wait_until};

fn conf(redis: &Redis, fields: &str, policies: &str) -> Conf {
    Conf::with_setup(&format!(
        "{{ redis = {{ url = \"{}\", timeout = \"100ms\" }}, {fields} policies = {{ {policies} }} }}",
        redis.url()
    ))
    .stats()
}

/// How many of so many requests pass.
fn passed(nginx: &Nginx, path: &str, requests: usize) -> usize {
    let client = nginx.client();
    let statuses: Vec<u16> = (0..requests).map(|_| client.get(path).status).collect();
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    statuses.iter().filter(|&&status| status == 200).count()
}

fn wait_for_link(nginx: &Nginx, state: &str) {
    wait_until(state, Duration::from_secs(5), || nginx.stat("redis") == state);
}

#[test]
fn while_redis_is_away_this_host_decides_its_part_of_the_limit() {
    let mut redis = Redis::start();
    let policies = "api = { limit = \"40/1h\", on_error = \"local\" }, \
        draft = { limit = \"40/1h\", on_error = \"local\", headers = \"draft-11\" }, \
        burst = { limit = \"8/1h\", algorithm = \"token-bucket\", burst = 20, \
                  on_error = \"local\", local_share = 2 }";
    let conf = conf(&redis, "local_share = 4,", policies)
        .limited("/api", "api")
        .limited("/burst", "burst")
        .limited("/draft", "draft")
        .workers(2);
    let nginx = Nginx::start(&conf);
    nginx.wait_for_workers(2);
    assert_eq!(passed(&nginx, "/api", 5), 5);
    redis.kill();
    wait_until("Redis is lost", Duration::from_secs(5), || {
        nginx.client().get("/api").number("RateLimit-Limit") == 10
    });
    // Nothing of what Redis had counted is known here; both workers count together.
    let admitted: usize = (0..30)
        .filter(|_| weir_tests::Client::without_keepalive(nginx.port()).get("/api").status == 200)
        .count();
    assert!((8..=9).contains(&admitted), "{admitted} and the one or two above are ten");
    let refused = nginx.client().get("/api");
    assert_eq!((refused.status, refused.number("RateLimit-Limit")), (429, 10));
    assert_eq!(refused.number("RateLimit-Remaining"), 0);
    assert!((3_590..=3_600).contains(&refused.number("Retry-After")), "{refused:?}");
    let policy = nginx.client().get("/draft");
    assert_eq!(policy.header("RateLimit-Policy"), Some("\"draft\";q=10;w=3600"));
    assert_eq!(passed(&nginx, "/burst", 30), 10, "a policy's own share of a burst of twenty");

    // And when Redis is back it decides, under the whole limit and what it knows.
    redis.launch();
    wait_until("Redis decides", Duration::from_secs(5), || {
        nginx.client().get("/api").number("RateLimit-Limit") == 40
    });
    // Each worker finds out by itself.
    let mut admitted = 0;
    wait_until("it admits what it has", Duration::from_secs(5), || {
        admitted += passed(&nginx, "/api", 1);
        admitted >= 30
    });
    nginx.assert_calm_log();
}

#[test]
fn whatever_keeps_redis_from_deciding_is_decided_here() {
    let redis = Redis::start();
    let policy = "api = { limit = \"5/1h\", on_error = \"local\" }";
    let check = "local told = require(\"resty.weir\").check(\"api\", { key = ngx.var.arg_k }) \
        ngx.print(told.source, \" \", told.reason, \" \", told.limit, \" \", told.remaining)";
    let nginx = Nginx::start(&conf(&redis, "", policy).content("/check", check));
    let said = |key: &str| nginx.client().get(&format!("/check?k={key}")).body;
    assert_eq!(said("a"), "redis nil 5 4");
    // A foreign value under the key.
    redis.command::<()>("SET weir:{=b}:api:log:1h text");
    assert_eq!(said("b"), "local redis_error 5 4");
    // Nothing comes in time.
    redis.freeze();
    assert_eq!(said("c"), "local timeout 5 4");
    wait_for_link(&nginx, "down");
    assert_eq!(said("c"), "local unreachable 5 3");
    redis.thaw();
    wait_for_link(&nginx, "up");
    wait_until("Redis decides", Duration::from_secs(5), || said("d").starts_with("redis"));
    let counted = |name: &str| nginx.count(&format!("decisions.{name}"));
    assert_eq!(counted("error_local"), 3);
    assert_eq!((counted("error_open"), counted("error_closed")), (0, 0));
    // What the I/O thread tells of is not told again for each policy.
    let lines = nginx.log_lines("no decision for policy");
    assert!(lines.len() == 1 && lines[0].contains("timeout; on_error is local ("), "{lines:?}");
}

#[test]
fn a_request_waits_in_vain_but_once_and_is_decided_here_each_time() {
    let redis = Redis::start();
    let policies = "api = { limit = \"5/1h\", on_error = \"local\" }, \
        other = { limit = \"5/1h\", on_error = \"local\" }, \
        exempt = { limit = \"5/1h\", on_error = \"closed\", exempt = { \"127.0.0.0/8\" } }";
    let lua = "local check = require(\"resty.weir\").check \
        local first = check(\"api\") ngx.update_time() local begun = ngx.now() \
        local told = { first, check(\"other\"), check(\"exempt\"), check(\"api\") } \
        for i = 1, #told do told[i] = told[i].source .. \":\" .. tostring(told[i].reason) end \
        ngx.update_time() \
        ngx.print(table.concat(told, \" \"), \" \", ngx.now() - begun < 0.08)";
    let nginx = Nginx::start(&conf(&redis, "", policies).content("/check", lua));
    wait_for_link(&nginx, "up");
    redis.freeze();
    let told = nginx.client().get("/check").body;
    redis.thaw();
    assert_eq!(told, "local:timeout local:timeout exempt:nil local:timeout true");
}

#[test]
fn what_was_charged_here_is_given_back_here() {
    let redis = Redis::absent();
    let policy = "api = { limit = \"5/1h\", on_error = \"local\", remember_denials = false }";
    let lua =
        "local weir = require(\"resty.weir\") weir.access(\"api\", { cost = 3 }) weir.refund(2)";
    let nginx = Nginx::start(&conf(&redis, "", policy).access("/api", lua));
    wait_for_link(&nginx, "down");
    assert_eq!(passed(&nginx, "/api", 4), 3, "one unit each is left, and three are asked for");
    assert_eq!((nginx.count("settled"), nginx.count("unsettled")), (3, 0));
    let counted = |name: &str| nginx.count(&format!("decisions.{name}"));
    assert_eq!((counted("error_local"), counted("error_local_denied")), (3, 1));
}

#[test]
fn other_policies_and_mistakes_are_decided_as_before() {
    let redis = Redis::absent();
    let policies = "api = { limit = \"1/1h\", on_error = \"local\" }, \
        open = { limit = \"1/1h\" }, closed = { limit = \"1/1h\", on_error = \"closed\" }, \
        dry = { limit = \"1/1h\", on_error = \"local\", dry_run = true, dry_run_header = \"X-Dry\" }";
    let conf = conf(&redis, "", policies)
        .limited("/open", "open")
        .limited("/closed", "closed")
        .limited("/dry", "dry")
        .access("/mistake", "require(\"resty.weir\").access(\"api\", { cost = -1 })");
    let nginx = Nginx::start(&conf);
    wait_for_link(&nginx, "down");
    let client = nginx.client();
    assert_eq!([client.get("/open").status, client.get("/open").status], [200, 200]);
    assert_eq!(client.get("/closed").status, 503);
    let dry: Vec<String> =
        (0..2).map(|_| client.get("/dry").header("X-Dry").unwrap_or_default().to_owned()).collect();
    assert_eq!(dry, ["dry=allowed", "dry=denied"]);
    let mistake = client.get("/mistake");
    assert_eq!((mistake.status, mistake.has_limit_headers()), (200, false));
    let lines = nginx.log_lines("no decision for policy api: bad_cost");
    assert!(lines.len() == 1 && lines[0].contains("the request passes"), "{lines:?}");
    assert!(!lines[0].contains(", bad_cost"), "asked twice: {lines:?}");
}
