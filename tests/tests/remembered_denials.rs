//! A refusal that Redis gave is repeated on this host until its wait is over.

use std::time::{Duration, Instant};

use weir_tests::{Client, Conf, Nginx, Redis, wait_until};

fn conf(redis: &Redis, fields: &str, policies: &str) -> Conf {
    Conf::with_setup(&format!(
        "{{ redis = {{ url = \"{}\", timeout = \"5s\" }}, {fields} policies = {{ {policies} }} }}",
        redis.url()
    ))
    .stats()
}

fn calls(redis: &Redis) -> u64 {
    redis.calls("evalsha")
}

/// Asked with the arguments of the request: `k`, `cost`, `plan`.
const ASK: &str = "local arg = ngx.req.get_uri_args() \
    require(\"resty.weir\").access(\"api\", \
        { key = arg.k or \"client\", cost = tonumber(arg.cost), plan = arg.plan })";

#[test]
fn a_client_that_hammers_costs_at_most_one_command_a_wait() {
    let redis = Redis::start();
    let conf = conf(&redis, "", "api = { limit = \"1/1s\" }").limited("/api", "api").workers(2);
    let nginx = Nginx::start(&conf);
    nginx.wait_for_workers(2);
    // One client, on a connection of its own for each request, so that both workers
    // are asked.
    let client = Client::without_keepalive(nginx.port());
    let before = calls(&redis);
    let begun = Instant::now();
    let (mut passed, mut refused) = (0, 0);
    while begun.elapsed() < Duration::from_secs(5) {
        match client.get("/api").status {
            200 => passed += 1,
            429 => refused += 1,
            other => panic!("status {other}"),
        }
    }
    let asked = calls(&redis) - before;
    // Each that passed was asked for, and behind each one refusal that told a wait.
    assert!((4..=6).contains(&passed), "{passed} passed");
    assert!(asked <= 2 * passed, "{asked} commands for {passed} waits");
    assert!(refused > 100 * asked, "{refused} were refused with {asked} commands");
    nginx.assert_calm_log();
}

#[test]
fn the_wait_counts_down_and_the_first_request_behind_it_passes() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis, "", "api = { limit = \"1/2s\" }").content(
        "/check",
        "local told = require(\"resty.weir\").check(\"api\") \
         ngx.print(told.source, \" \", told.retry_after or 0)",
    ));
    let said = || {
        let body = nginx.client().get("/check").body;
        let (source, wait) = body.split_once(' ').expect("a source and a wait");
        (source.to_owned(), wait.parse::<f64>().expect("seconds"))
    };
    assert_eq!(said(), ("redis".to_owned(), 0.0));
    let (source, first) = said();
    let told = Instant::now();
    assert_eq!(source, "redis");
    let before = calls(&redis);
    let mut last = first;
    while told.elapsed() < Duration::from_millis(1_500) {
        let (source, wait) = said();
        assert!(source == "remembered" && wait < last, "{source}: {wait} after {last}");
        last = wait;
    }
    assert_eq!(calls(&redis), before);
    let left = first - told.elapsed().as_secs_f64();
    assert!((left - last).abs() < 0.1, "{last} s were told, and {left} s were left");
    let wait = wait_until("it passes", Duration::from_secs(5), || said().0 == "redis");
    assert_eq!(calls(&redis), before + 1, "the first that was asked again passed");
    assert!(wait.as_secs_f64() + 0.1 > left);
}

#[test]
fn what_differs_from_the_refusal_is_asked() {
    let redis = Redis::start();
    let policies = "api = { limit = \"3/1h\", plans = { gold = \"4/1h\" } }, \
                    other = { limit = \"5/1h\" }";
    let conf = conf(&redis, "", policies)
        .access("/api", ASK)
        .access("/other", "require(\"resty.weir\").access(\"other\", { key = \"client\" })");
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    let status = |query: &str| client.get(&format!("/api?{query}")).status;
    assert_eq!([status("cost=2"), status("cost=2"), status("cost=2")], [200, 429, 429]);
    assert_eq!(nginx.count("decisions.remembered"), 1);
    assert_eq!(status("cost=1"), 200, "a smaller cost");
    assert_eq!(status("cost=1"), 429);
    assert_eq!(status("cost=1&plan=gold"), 200, "another plan");
    assert_eq!(status("cost=1&k=another"), 200, "another client");
    assert_eq!(client.get("/other").status, 200, "another policy");
    assert_eq!(status("cost=0"), 200, "a look");
    assert_eq!((status("cost=2"), status("cost=1")), (429, 429));
    assert_eq!(nginx.count("decisions.remembered"), 3);

    // The same limits after a reload, and a raised one.
    nginx.reload_and_wait(&conf);
    assert_eq!(nginx.client().get("/api?cost=1").status, 429);
    assert_eq!(nginx.count("decisions.remembered"), 1, "it is remembered over a reload");
    let mut raised = conf;
    raised.setup = raised.setup.replace("\"3/1h\"", "\"5/1h\"");
    nginx.reload_and_wait(&raised);
    assert_eq!(nginx.client().get("/api?cost=1").status, 200);
}

#[test]
fn what_is_given_back_on_this_host_is_noticed_by_all_its_workers() {
    let redis = Redis::start();
    let lua = "local weir = require(\"resty.weir\") \
        weir.access(\"api\", { key = \"client\", cost = 1 }) \
        ngx.sleep(tonumber(ngx.var.arg_hold) or 0) \
        if ngx.var.arg_back then weir.refund(1) end";
    // Whatever other policies do.
    let policies = "a = { limit = \"1/1h\", remember_denials = false }, \
                    api = { limit = \"2/1h\" }, b = { limit = \"1/1h\", remember_denials = false }";
    let conf = conf(&redis, "", policies).access("/api", lua).workers(2);
    let nginx = Nginx::start(&conf);
    nginx.wait_for_workers(2);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| nginx.client().get("/api?hold=0.5&back=1").status);
        wait_until("it is charged", Duration::from_secs(5), || {
            redis.command::<u64>("ZCARD weir:{=client}:api:log:1h") == 1
        });
        let again = || Client::without_keepalive(nginx.port()).get("/api").status;
        assert_eq!(again(), 200);
        assert!((0..20).all(|_| again() == 429));
        assert_eq!(held.join().unwrap(), 200);
        wait_until("what was given back is free", Duration::from_secs(2), || again() == 200);
    });
    nginx.assert_calm_log();
}

#[test]
fn what_is_given_back_is_asked_for_again_from_when_it_is_sent() {
    let redis = Redis::start();
    let lua = "local weir = require(\"resty.weir\") \
        local function say() local told = weir.check(\"api\") \
            ngx.print(told.source, \":\", told.allowed, \" \") end \
        say() say() say() weir.refund(1) say()";
    let conf = conf(&redis, "", "api = { limit = \"1/1h\" }").content("/check", lua);
    let nginx = Nginx::start(&conf);
    let told = nginx.client().get("/check").body;
    assert_eq!(told, "redis:true redis:false remembered:false redis:true ");
}

#[test]
fn whoever_lets_a_client_in_by_hand_can_have_its_denials_forgotten() {
    let redis = Redis::start();
    let conf = conf(&redis, "", "api = { limit = \"1/1h\" }")
        .access("/api", ASK)
        .content("/forget", "require(\"resty.weir\").forget_denials()")
        .workers(2);
    let nginx = Nginx::start(&conf);
    nginx.wait_for_workers(2);
    let status = || Client::without_keepalive(nginx.port()).get("/api").status;
    assert_eq!((status(), status()), (200, 429));
    redis.command::<()>("FLUSHALL");
    assert!((0..20).all(|_| status() == 429), "this host does not hear of it");
    assert_eq!(nginx.client().get("/forget").status, 200);
    assert_eq!((status(), status()), (200, 429));
}

/// Another host may be about to give back what its client was refused for here.
#[test]
fn under_a_charge_list_a_refusal_is_remembered_for_a_second() {
    let redis = Redis::start();
    let policies = "login = { limit = \"1/1h\", charge = { 401 } }";
    let conf = conf(&redis, "", policies)
        .server("log_by_lua_block { require(\"resty.weir\").log() }")
        .server(
            "location /login { access_by_lua_block { require(\"resty.weir\").access(\"login\") } \
             content_by_lua_block { ngx.sleep(tonumber(ngx.var.arg_hold)) ngx.print(\"ok\") } }",
        );
    let (here, there) = (Nginx::start(&conf), Nginx::start(&conf));
    std::thread::scope(|scope| {
        let held = scope.spawn(|| there.client().get("/login?hold=0.5").status);
        wait_until("it is charged there", Duration::from_secs(5), || {
            redis.command::<u64>("DBSIZE") == 1
        });
        let login = || here.client().get("/login?hold=0").status;
        assert_eq!((login(), login()), (429, 429));
        assert_eq!(here.count("decisions.remembered"), 1);
        assert_eq!(held.join().unwrap(), 200);
        wait_until("the user gets in here", Duration::from_secs(3), || login() == 200);
    });
}

#[test]
fn it_can_be_turned_off() {
    let redis = Redis::start();
    let policies = "api = { limit = \"1/1h\" }, on = { limit = \"1/1h\", remember_denials = true }";
    let conf = conf(&redis, "remember_denials = false,", policies)
        .limited("/api", "api")
        .limited("/on", "on")
        .content("/check", "ngx.print(require(\"resty.weir\").check(\"api\").limits[1].limit)");
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    for (path, commands) in [("/api", 10), ("/on", 2)] {
        let before = calls(&redis);
        let statuses: Vec<u16> = (0..10).map(|_| client.get(path).status).collect();
        assert_eq!(statuses.iter().filter(|&&status| status == 429).count(), 9);
        assert_eq!(calls(&redis) - before, commands, "{path}");
    }
    assert_eq!(client.get("/check").body, "1");
}

#[test]
fn a_refusal_is_repeated_while_redis_is_away() {
    let mut redis = Redis::start();
    let policies = "api = { limit = \"1/1h\", on_error = \"open\" }";
    let nginx = Nginx::start(&conf(&redis, "", policies).access("/api", ASK));
    let client = nginx.client();
    assert_eq!((client.get("/api").status, client.get("/api").status), (200, 429));
    redis.kill();
    wait_until("Redis is lost", Duration::from_secs(5), || nginx.stat("redis") == "down");
    let refused = client.get("/api");
    assert_eq!((refused.status, refused.number("RateLimit-Limit")), (429, 1));
    assert_eq!(client.get("/api?k=another").status, 200, "nobody knows");
}

/// A request waits for Redis in vain but once: for what is known here it need not.
#[test]
fn behind_a_policy_that_waited_in_vain_the_others_know_what_needs_no_redis() {
    let redis = Redis::start();
    let setup = format!(
        "{{ redis = {{ url = \"{}\", timeout = \"100ms\", breaker = {{ failures = 1000 }} }}, \
         policies = {{ first = {{ limit = \"9/1h\" }}, second = {{ limit = \"1/1h\" }}, \
         office = {{ limit = \"1/1h\", on_error = \"closed\", exempt = \"127.0.0.1\" }} }} }}",
        redis.url()
    );
    let both = |second: &str| {
        format!(
            "local access = require(\"resty.weir\").access access(\"first\") access(\"{second}\")"
        )
    };
    let conf = Conf::with_setup(&setup)
        .stats()
        .limited("/second", "second")
        .access("/both", &both("second"))
        .access("/office", &both("office"));
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    assert_eq!((client.get("/second").status, client.get("/second").status), (200, 429));
    redis.freeze();
    assert_eq!(client.get("/both").status, 429, "it is remembered");
    assert_eq!(client.get("/office").status, 200, "it is exempt");
    assert_eq!((nginx.count("decisions.exempt"), nginx.count("errors.timeout")), (1, 2));
}

#[test]
fn a_cost_that_never_fits_is_not_remembered() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis, "", "api = { limit = \"1/1h\" }").access("/api", ASK));
    let before = calls(&redis);
    let client = nginx.client();
    for _ in 0..5 {
        let refused = client.get("/api?cost=2");
        assert_eq!((refused.status, refused.header("Retry-After")), (429, None));
    }
    assert_eq!(calls(&redis) - before, 5);
}

#[test]
fn what_another_redis_or_prefix_has_refused_is_not_refused_in_this_one() {
    let (redis, another) = (Redis::start(), Redis::start());
    let conf = conf(&redis, "", "api = { limit = \"1/1h\" }").limited("/api", "api");
    let nginx = Nginx::start(&conf);
    let status = || nginx.client().get("/api").status;
    assert_eq!((status(), status(), status()), (200, 429, 429));
    let url = format!("url = \"{}\"", redis.url());
    for (what, with) in [
        ("prefix", format!("{url}, prefix = \"another\"")),
        ("database", url.replace("/0", "/1")),
        ("server", format!("url = \"{}\"", another.url())),
    ] {
        assert_ne!(url, with);
        nginx.reload_and_wait(&Conf { setup: conf.setup.replace(&url, &with), ..conf.clone() });
        assert_eq!(status(), 200, "another {what}");
        nginx.reload_and_wait(&conf);
        assert_eq!(status(), 429, "the first one");
        assert_eq!(nginx.count("decisions.remembered"), 1, "of the {what} before");
    }
}

/// A client may be about to be given back what it took of the same budget elsewhere.
#[test]
fn a_refusal_of_a_budget_with_a_charge_list_is_remembered_for_a_second() {
    let redis = Redis::start();
    let policies = "api = { limit = \"1/1h\", bucket = \"one\" }, \
                    login = { limit = \"1/1h\", bucket = \"one\", charge = { 401 } }";
    let conf = conf(&redis, "", policies).limited("/api", "api").limited("/login", "login");
    let nginx = Nginx::start(&conf);
    let status = |path| nginx.client().get(path).status;
    for path in ["/login", "/api"] {
        assert_eq!((status("/api"), status("/api"), status("/api")), (200, 429, 429));
        redis.command::<()>("FLUSHALL");
        wait_until(path, Duration::from_secs(3), || status(path) == 200);
        redis.command::<()>("FLUSHALL");
        wait_until("nothing is remembered", Duration::from_secs(3), || {
            redis.command::<u64>("DBSIZE") == 0 && status("/api") == 200
        });
        redis.command::<()>("FLUSHALL");
    }
}

/// Whoever charges a token bucket refills it, at a rate of its own.
#[test]
fn a_faster_plan_ends_the_denial_of_a_slower_one() {
    let redis = Redis::start();
    let policies = "api = { limit = \"1/1h\", algorithm = \"token-bucket\", burst = 2, \
                    plans = { gold = { limit = \"36000/1h\", burst = 2 } } }";
    let nginx = Nginx::start(&conf(&redis, "", policies).access("/api", ASK));
    let client = nginx.client();
    let ask = |query: &str| client.get(&format!("/api?{query}"));
    assert_eq!([ask("").status, ask("").status, ask("").status], [200, 200, 429]);
    wait_until("gold has refilled it", Duration::from_secs(5), || {
        ask("plan=gold&cost=0").number("RateLimit-Remaining") == 2
    });
    assert_eq!(ask("plan=gold").status, 200);
    wait_until("a token is left", Duration::from_secs(3), || ask("").status == 200);
}
