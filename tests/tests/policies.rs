//! What an operator writes about limits, through nginx: algorithms, several
//! limits, plans, costs and buckets.

use std::time::{Duration, Instant};

use weir_tests::{Answer, Client, Conf, Nginx, Redis, in_parallel};

/// A location that calls `access` with what the query says.
fn open_to_queries(conf: Conf, path: &str, policy: &str) -> Conf {
    conf.access(
        path,
        &format!(
            "require('resty.weir').access('{policy}', {{ key = ngx.var.arg_k, \
             plan = ngx.var.arg_plan, cost = tonumber(ngx.var.arg_cost) }})"
        ),
    )
}

fn told(answer: &Answer) -> (u16, u64, u64) {
    let number = |header| answer.number(header);
    (answer.status, number("RateLimit-Limit"), number("RateLimit-Remaining"))
}

/// An nginx with such a location for each of these policies.
fn open_each(redis: &Redis, policies: &str, names: &[&str]) -> Nginx {
    let conf = Conf::new(&redis.url(), policies);
    let open = |conf, name: &&str| open_to_queries(conf, &format!("/{name}"), name);
    Nginx::start(&names.iter().fold(conf, open))
}

#[test]
fn each_algorithm_limits_and_tells_its_wait() {
    let redis = Redis::start();
    let policies = "
        log     = { limit = '5/1h' },
        ring    = { limit = '5/1h', algorithm = 'compact-log' },
        counter = { limit = '5/1h', algorithm = 'sliding-counter' },
        bucket  = { limit = '5/1h', algorithm = 'token-bucket' },
        burst   = { limit = '1/1h', algorithm = 'token-bucket', burst = 5 },
        quota   = { limit = '5/month', algorithm = 'quota' },";
    let waits = [
        ("log", 3_590..=3_600),
        ("ring", 3_590..=3_600),
        // To the end of this hour, and into the next one.
        ("counter", 1..=7_200),
        ("bucket", 710..=720),
        ("burst", 3_590..=3_600),
        ("quota", 1..=31 * 86_400),
    ];
    let conf = waits.iter().fold(Conf::new(&redis.url(), policies), |conf, (name, _)| {
        conf.limited(&format!("/{name}"), name)
    });
    let nginx = Nginx::start(&conf);
    for (name, wait) in waits {
        let path = format!("/{name}");
        for remaining in (0..5).rev() {
            assert_eq!(told(&nginx.client().get(&path)), (200, 5, remaining), "{name}");
        }
        let refused = nginx.client().get(&path);
        assert_eq!(told(&refused), (429, 5, 0), "{name}");
        let retry_after = refused.number("Retry-After");
        assert!(wait.contains(&retry_after), "{name}: {retry_after}");
        assert_eq!(refused.number("RateLimit-Reset"), retry_after, "{name}");
    }
    nginx.assert_calm_log();
}

#[test]
fn several_limits_are_one_decision_and_the_tightest_is_told() {
    let redis = Redis::start();
    let policies = "public = { limits = {
        { limit = '5/1h' },
        { limit = '1/1h', algorithm = 'token-bucket', burst = 3 },
        { limit = '4/month', algorithm = 'quota' },
    } }";
    let check = r#"
        local d = require("resty.weir").check("public", { key = ngx.var.arg_k, cost = 0 })
        local out = { d.name .. " " .. d.limit .. "/" .. d.remaining }
        for i, one in ipairs(d.limits) do
            out[i + 1] = one.name .. " " .. one.limit .. "/" .. one.remaining .. "/" .. tostring(one.retry_after) ..
                "/" .. (one.reset > 0 and "later" or "now")
        end
        ngx.say(table.concat(out, ", "))"#;
    let conf = open_to_queries(Conf::new(&redis.url(), policies), "/public", "public")
        .content("/check", check);
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    let listed = || client.get("/check?k=a").body.trim().to_owned();

    let named = |bucket: &str, log: &str, quota: &str| {
        format!(
            "public:bucket:1h {}, public:log:1h {log}, public:bucket:1h {bucket}, \
             public:quota:month {quota}",
            bucket.split("/nil").next().expect("numbers")
        )
    };
    assert_eq!(listed(), named("3/3/nil/now", "5/5/nil/now", "4/4/nil/now"));
    assert_eq!(told(&client.get("/public?k=a")), (200, 3, 2));
    let calls = || redis.calls("evalsha") + redis.calls("eval");
    let before = calls();
    assert_eq!(told(&client.get("/public?k=a&cost=2")), (200, 3, 0));
    assert_eq!(calls() - before, 1, "one script call");
    assert_eq!(listed(), named("3/0/nil/later", "5/2/nil/later", "4/1/nil/later"));

    // The bucket refuses, and the others are left as they were.
    let refused = client.get("/public?k=a");
    assert_eq!(told(&refused), (429, 3, 0));
    assert!((3_590..=3_600).contains(&refused.number("Retry-After")));
    assert_eq!(listed(), named("3/0/nil/later", "5/2/nil/later", "4/1/nil/later"));

    // More than the first can ever hold: no wait is told.
    let refused = client.get("/public?k=b&cost=4");
    assert_eq!((told(&refused), refused.header("Retry-After")), ((429, 3, 3), None));
    assert_eq!(
        refused.body,
        "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
         \"title\":\"Rate limit exceeded\",\"status\":429,\
         \"violated-policies\":[\"public:bucket:1h\"]}\n"
    );
    nginx.assert_calm_log();
}

#[test]
fn a_plan_has_its_own_numbers_and_keeps_what_was_used() {
    let redis = Redis::start();
    let policies = "tiers = { limit = '6/1h', plans = { gold = '600/1h', silver = '60/60m' } },
        untiered = { limit = '6/1h' }";
    let conf = open_to_queries(Conf::new(&redis.url(), policies), "/tiers", "tiers");
    let conf = open_to_queries(conf, "/untiered", "untiered");
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    let of = |plan: &str| told(&client.get(&format!("/tiers?k=a{plan}")));

    assert_eq!(of(""), (200, 6, 5));
    assert_eq!(of("&plan=gold"), (200, 600, 598));
    assert_eq!(of("&plan=silver&cost=7"), (200, 60, 51));
    // Whoever invents a plan has the policy's own limit.
    assert_eq!(of("&plan=platinum"), (429, 6, 0));
    assert_eq!(of("&plan="), (429, 6, 0));
    assert_eq!(of(""), (429, 6, 0));
    assert_eq!(of("&plan=gold"), (200, 600, 590));
    assert_eq!(told(&client.get("/untiered?k=a&plan=gold")), (200, 6, 5));
    assert_eq!(redis.command::<usize>("DBSIZE"), 2);
    nginx.assert_calm_log();
}

/// C26.
#[test]
fn a_cost_is_charged_whole_or_not_at_all() {
    let redis = Redis::start();
    let policies = "
        log     = { limit = '10/1h' },
        ring    = { limit = '10/1h', algorithm = 'compact-log' },
        counter = { limit = '10/1h', algorithm = 'sliding-counter' },
        bucket  = { limit = '10/1h', algorithm = 'token-bucket' },
        quota   = { limit = '10/month', algorithm = 'quota' },";
    let names = ["log", "ring", "counter", "bucket", "quota"];
    let nginx = open_each(&redis, policies, &names);
    let client = nginx.client();
    for name in names {
        let of = |cost: &str| client.get(&format!("/{name}?k=a&cost={cost}"));
        assert_eq!(told(&of("8")), (200, 10, 2), "{name}");
        assert_eq!(told(&of("5")), (429, 10, 2), "{name}");
        let never = of("11");
        assert_eq!((told(&never), never.header("Retry-After")), ((429, 10, 2), None), "{name}");
        assert_eq!(told(&of("9007199254740991")), (429, 10, 2), "{name}");
        assert_eq!(told(&of("0")), (200, 10, 2), "{name}");
        assert_eq!(told(&of("2")), (200, 10, 0), "{name}");
        assert_eq!(told(&of("0")), (200, 10, 0), "{name}");
    }
    nginx.assert_calm_log();
}

/// C25, C26: a caller's mistake is the policy's to decide, told once, never a
/// 500, and it gains nothing.
/// More than any limit can be is more than this one.
#[test]
fn a_cost_above_all_limits_never_fits() {
    let redis = Redis::start();
    let policies = "open = { limit = \"5/1h\", algorithm = \"token-bucket\" }";
    for cost in ["2^53", "1e99", "1/0"] {
        let access = format!("require('resty.weir').access('open', {{ cost = {cost} }})");
        let nginx = Nginx::start(&Conf::new(&redis.url(), policies).access("/", &access));
        let refused = nginx.client().get("/");
        assert_eq!((refused.status, refused.header("Retry-After")), (429, None), "{cost}");
    }
    assert_eq!(redis.command::<usize>("DBSIZE"), 0);
}

#[test]
fn a_wrong_cost_or_plan_is_left_to_on_error() {
    let redis = Redis::start();
    let policies =
        "open = { limit = '1/1h' }, closed = { limit = '20000/1h', on_error = 'closed' }";
    let wrong = [
        ("{ cost = -1 }", "the cost must be a whole number from 0 to 9007199254740991, not -1"),
        ("{ cost = 1.5 }", "the cost must be a whole number from 0 to 9007199254740991, not 1.5"),
        ("{ cost = 0/0 }", "the cost must be a whole number from 0 to 9007199254740991, not NaN"),
        ("{ cost = '5' }", "the cost must be a number, not a string"),
        ("{ cost = {} }", "the cost must be a number, not a table"),
        ("{ plan = 5 }", "opts.plan must be a string or nil, not a number"),
        ("{ colour = 1 }", "opts has an unknown field colour"),
        ("setmetatable({}, { __index = error })", "opts must be a plain table"),
        ("'5'", "opts must be a table, not a string"),
    ];
    for (opts, message) in wrong {
        let lua = |policy| format!("require('resty.weir').access('{policy}', {opts})");
        let nginx = Nginx::start(
            &Conf::new(&redis.url(), policies)
                .access("/open", &lua("open"))
                .access("/closed", &lua("closed"))
                .stats(),
        );
        let reason = if opts.contains("cost") { "bad_cost" } else { "bad_options" };
        for _ in 0..3 {
            let closed = nginx.client().get("/closed");
            assert_eq!((closed.status, closed.header("Retry-After")), (503, Some("1")), "{opts}");
        }
        let told = nginx.log_lines(message);
        assert_eq!(told.len(), 1, "{opts}: {}", nginx.error_log());
        assert!(told[0].contains(&format!("policy closed: {reason}: ")), "{}", told[0]);
        assert_eq!(nginx.count(&format!("errors.{reason}")), 3);
        let open = nginx.client().get("/open");
        assert_eq!((open.status, open.has_limit_headers()), (200, false), "{opts}");
        nginx.assert_calm_log();
    }
    assert_eq!(redis.command::<usize>("DBSIZE"), 0, "and nothing was charged");
}

/// What no time makes room for is refused, told no time, and told to the
/// operator.
#[test]
fn a_cost_that_never_fits_is_refused_whatever_on_error_says() {
    let redis = Redis::start();
    let policies = "
        bucket = { limit = '10/1h', algorithm = 'token-bucket', burst = 4 },
        log = { limit = '1000000/1h' },
        several = { limits = {
            { limit = '20000/1h' }, { limit = '15000/day', algorithm = 'quota' },
        } },";
    let dear = [("bucket", 5), ("log", 10_001), ("log", 2_000_000), ("several", 16_000)];
    let names = ["bucket", "log", "several"];
    let nginx = open_each(&redis, policies, &names);
    for (name, cost) in dear {
        let refused = nginx.client().get(&format!("/{name}?k=a&cost={cost}"));
        assert_eq!((refused.status, refused.number("RateLimit-Remaining") > 0), (429, true));
        assert_eq!(refused.header("Retry-After"), None, "{name}");
        assert_eq!(refused.header("RateLimit-Reset"), None, "{name}");
    }
    for (name, cost) in [("bucket", 5), ("log", 10_001), ("several", 16_000)] {
        let message = format!("policy {name} can never admit a cost of {cost}; such requests");
        assert_eq!(nginx.log_lines(&message).len(), 1, "{}", nginx.error_log());
    }
    assert_eq!(redis.command::<usize>("DBSIZE"), 0);
    nginx.assert_calm_log();
}

/// What one call cannot take leaves as the next: nothing is lost, and no call
/// holds the server for longer than it must.
#[test]
fn dear_requests_leave_one_by_one() {
    let redis = Redis::start();
    let policies = "dear = { limit = '1000000/1h' }, cheap = { limit = '1000/1h' }";
    let conf = open_to_queries(Conf::new(&redis.url(), policies), "/dear", "dear");
    let conf = open_to_queries(conf, "/cheap", "cheap").stats();
    let nginx = Nginx::start(&conf);
    let answers = in_parallel(40, |index| {
        let path = if index % 2 == 0 { "/dear?k=a&cost=5000" } else { "/cheap?k=a" };
        told(&nginx.client().get(path))
    });
    assert!(answers.iter().all(|(status, ..)| *status == 200), "{answers:?}");
    assert_eq!(told(&nginx.client().get("/dear?k=a&cost=0")), (200, 1_000_000, 900_000));
    assert_eq!(told(&nginx.client().get("/cheap?k=a&cost=0")), (200, 1_000, 980));
    assert_eq!(nginx.count("batched"), 42);
    // Each dear one has a call of its own, or shares it with cheap ones only.
    assert!(nginx.count("batches") >= 22, "{} calls", nginx.count("batches"));
}

/// C20: equal numbers are no common budget; a common bucket is.
#[test]
fn policies_share_a_budget_only_by_bucket() {
    let redis = Redis::start();
    let policies = "
        a = { limit = '9/1h' }, b = { limit = '9/1h' },
        c = { limit = '9/1h', bucket = 'a' }, d = { limit = '5/1h', bucket = 'a' },
        e = { limit = '9/2h', bucket = 'a' },";
    let names = ["a", "b", "c", "d", "e"];
    let conf = names.iter().fold(Conf::new(&redis.url(), policies), |conf, name| {
        conf.limited(&format!("/{name}"), name)
    });
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    let of = |name: &str| told(&client.get(&format!("/{name}")));
    assert_eq!(of("a"), (200, 9, 8));
    assert_eq!(of("b"), (200, 9, 8));
    assert_eq!(of("c"), (200, 9, 8));
    // The same budget, each against its own number.
    assert_eq!(of("d"), (200, 5, 3));
    assert_eq!(of("c"), (200, 9, 6));
    assert_eq!(of("e"), (200, 9, 8));
    let mut keys: Vec<String> = redis.command("KEYS *");
    keys.sort();
    let expected = ["@a:log:1h", "@a:log:2h", "a:log:1h", "b:log:1h"]
        .map(|suffix| format!("weir:{{$remote_addr=127.0.0.1}}:{suffix}"));
    assert_eq!(keys, expected);
}

/// C01: what counts is the way in, however slow the upstream.
#[test]
fn a_slow_upstream_lets_nothing_more_through() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), "five = { limit = '5/1h' }, one = { limit = '1/1h' }");
    let slow = "content_by_lua_block { ngx.sleep(0.3) ngx.print('ok') }";
    let conf = ["five", "one"].iter().fold(conf, |conf, name| {
        let access = format!("access_by_lua_block {{ require('resty.weir').access('{name}') }}");
        conf.server(&format!("location /{name} {{ {access} {slow} }}"))
    });
    let nginx = Nginx::start(&conf);
    for (path, limit, requests) in [("/five", 5, 100), ("/one", 1, 2)] {
        let statuses = in_parallel(requests, |_| nginx.client().get(path).status);
        assert_eq!(statuses.iter().filter(|&&status| status == 200).count(), limit);
        assert_eq!(statuses.iter().filter(|&&status| status == 429).count(), requests - limit);
    }
}

/// C02, C04: two gateways with two workers each, twenty clients that hammer;
/// what passes is the burst and what was refilled, and nearly all of it.
#[test]
fn a_bucket_keeps_its_rate_whoever_offers_how_much() {
    let redis = Redis::start();
    let policies = "
        slow = { limit = '1/1s', algorithm = 'token-bucket', burst = 1 },
        fast = { limit = '3000/1s', algorithm = 'token-bucket', burst = 5 },";
    let conf = Conf::new(&redis.url(), policies)
        .limited("/slow", "slow")
        .limited("/fast", "fast")
        .workers(2);
    let edges = [Nginx::start(&conf), Nginx::start(&conf)];
    edges.iter().for_each(|edge| edge.wait_for_workers(2));

    for (path, limit, burst) in [("/slow", 1.0, 1.0), ("/fast", 3_000.0, 5.0)] {
        let begun = Instant::now();
        let counts = in_parallel(20, |index| {
            let client = Client::new(edges[index % 2].port());
            let (mut passed, mut offered) = (0, 0);
            while begun.elapsed() < Duration::from_secs(3) {
                passed += u32::from(client.get(path).status == 200);
                offered += 1;
            }
            (f64::from(passed), f64::from(offered))
        });
        let passed: f64 = counts.iter().map(|(passed, _)| passed).sum();
        let offered: f64 = counts.iter().map(|(_, offered)| offered).sum();
        let most = burst + limit * begun.elapsed().as_secs_f64();
        assert!(passed <= most, "{path}: {passed} of {most}");
        // A pause of the machine costs what it would have refilled.
        assert!(passed * 2.0 >= most.min(offered / 3.0), "{path}: {passed} of {most}, {offered}");
    }
    edges.iter().for_each(Nginx::assert_calm_log);
}
