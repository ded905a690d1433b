//! Metrics of a whole host, whichever worker answers.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use weir_tests::metrics::LOCATION;
use weir_tests::{Client, Conf, Metrics, Nginx, Redis, in_parallel, process, wait_until};

const WITHIN: Duration = Duration::from_secs(10);

/// A location that is limited and answers with the worker's process id.
fn limited(path: &str, call: &str) -> String {
    format!(
        "location {path} {{ access_by_lua_block {{ {call} }} \
         content_by_lua_block {{ ngx.print(ngx.worker.pid()) }} }}"
    )
}

fn access(policy: &str) -> String {
    format!("require(\"resty.weir\").access(\"{policy}\")")
}

fn conf(redis: &Redis) -> Conf {
    Conf::new(&redis.url(), "api = { limit = \"1000000/1h\" }, tight = { limit = \"2/1h\" }")
        .server(LOCATION)
        .server(&limited("/api", &access("api")))
        .server(&limited("/tight", &access("tight")))
}

/// Asks from several connections at once until each worker has answered; how
/// often it asked.
fn ask_every_worker(nginx: &Nginx, path: &str) -> usize {
    let seen = Mutex::new(BTreeSet::new());
    let workers: BTreeSet<u32> = nginx.workers().into_iter().collect();
    let asked = in_parallel(4, |_| {
        let client = Client::without_keepalive(nginx.port());
        let mut asked = 0;
        wait_until("each worker has answered", WITHIN, || {
            asked += 1;
            seen.lock().unwrap().insert(client.get(path).body.parse::<u32>().unwrap());
            seen.lock().unwrap().is_superset(&workers)
        });
        asked
    });
    asked.iter().sum()
}

/// What each worker answers with.
fn of_every_worker(nginx: &Nginx) -> Vec<Metrics> {
    let answers = Mutex::new(Vec::<Metrics>::new());
    let count = nginx.workers().len();
    in_parallel(4, |_| {
        wait_until("each worker has told", WITHIN, || {
            let metrics = Metrics::of(nginx);
            let mut answers = answers.lock().unwrap();
            if answers.iter().all(|known| known.worker != metrics.worker) {
                answers.push(metrics);
            }
            answers.len() == count
        });
    });
    answers.into_inner().unwrap()
}

#[test]
fn every_worker_tells_of_all_of_them() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis).workers(2));
    nginx.wait_for_workers(2);
    let asked = ask_every_worker(&nginx, "/api") as f64;
    let client = nginx.client();
    let tight = [(); 5].map(|()| client.get("/tight").status);
    assert_eq!(tight, [200, 200, 429, 429, 429]);
    let answers = of_every_worker(&nginx);
    assert_ne!(answers[0].worker, answers[1].worker);
    for metrics in &answers {
        assert_eq!(metrics.decisions("api", "allowed"), asked);
        assert_eq!(metrics.decisions("api", "denied"), 0.0);
        assert_eq!(metrics.decisions("tight", "allowed"), 2.0);
        assert_eq!(metrics.decisions("tight", "denied"), 1.0);
        assert_eq!(metrics.decisions("tight", "remembered"), 2.0);
        let decided = ["redis", "remembered"]
            .map(|source| metrics.count("weir_decision_seconds", &format!("source=\"{source}\"")));
        assert_eq!(decided, [asked + 3.0, 2.0]);
        assert_eq!(metrics.count("weir_decision_seconds", "source=\"on_error\""), 0.0);
    }
    nginx.assert_calm_log();
}

#[test]
fn the_waits_are_those_that_clients_were_told() {
    let redis = Redis::start();
    let conf = Conf::new(
        &redis.url(),
        "tight = { limit = \"1/1h\" }, trial = { limit = \"1/1h\", dry_run = true }, \
         checked = { limit = \"1/50s\" }",
    )
    .server(LOCATION)
    .limited("/tight", "tight")
    .limited("/trial", "trial")
    .limited("/never", "tight\", { cost = 2, key = \"somebody\" }) (\"")
    .access("/checked", "require(\"resty.weir\").check(\"checked\")");
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    let told: f64 = [(); 4].map(|()| client.get("/tight")).iter().skip(1).map(wait_of).sum();
    for path in ["/trial", "/trial", "/checked", "/checked"] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    let metrics = Metrics::of(&nginx);
    let bucket = |policy: &str, bound: &str| {
        metrics.value(&format!("weir_wait_seconds_bucket{{policy=\"{policy}\",le=\"{bound}\"}}"))
    };
    assert_eq!((bucket("tight", "900"), bucket("tight", "3600")), (0.0, 3.0));
    assert_eq!(bucket("tight", "+Inf"), 3.0);
    assert_eq!(metrics.value("weir_wait_seconds_sum{policy=\"tight\"}"), told);
    assert_eq!(metrics.decisions("trial", "dry_run_denied"), 1.0);
    assert_eq!(bucket("trial", "+Inf"), 0.0, "a dry run tells nobody to wait");
    assert_eq!((bucket("checked", "30"), bucket("checked", "60")), (0.0, 1.0));
    // What never fits is told no wait.
    let refused = client.get("/never");
    assert_eq!((refused.status, refused.header("Retry-After")), (429, None));
    let metrics = Metrics::of(&nginx);
    assert_eq!(metrics.decisions("tight", "denied"), 2.0);
    assert_eq!(metrics.decisions("tight", "remembered"), 2.0);
    assert_eq!(metrics.count("weir_wait_seconds", "policy=\"tight\""), 3.0);
}

fn wait_of(answer: &weir_tests::Answer) -> f64 {
    answer.number("Retry-After") as f64
}

#[test]
fn a_reload_keeps_what_was_counted_of_the_policies_that_stay() {
    let redis = Redis::start();
    let before = conf(&redis).workers(2);
    let nginx = Nginx::start(&before);
    nginx.wait_for_workers(2);
    let asked = ask_every_worker(&nginx, "/api") as f64;
    nginx.client().get("/tight");
    wait_until("the calls were published", WITHIN, || {
        Metrics::of(&nginx).value("weir_redis_batch_size_sum") >= 1.0
    });
    let mut after = before.clone();
    after.setup = after.setup.replace("tight =", "fresh =");
    nginx.reload_and_wait(&after);
    let metrics = Metrics::of(&nginx);
    assert_eq!(metrics.decisions("api", "allowed"), asked);
    assert_eq!(metrics.decisions("fresh", "allowed"), 0.0);
    let gone = "weir_decisions_total{policy=\"tight\",outcome=\"allowed\"}";
    assert_eq!(metrics.get(gone), None);
    let more = ask_every_worker(&nginx, "/api") as f64;
    assert_eq!(Metrics::of(&nginx).decisions("api", "allowed"), asked + more);
    // The old workers have published the last of what they had sent.
    wait_until("the new ones have published too", WITHIN, || {
        let metrics = Metrics::of(&nginx);
        metrics.value("weir_redis_batch_size_sum") == asked + 1.0 + more
            && metrics.value("weir_workers") == 2.0
    });
}

#[test]
fn the_death_of_a_worker_takes_nothing_back_and_its_gauges_go_with_it() {
    let redis = Redis::start();
    let conf = conf(&redis).workers(2);
    let nginx = Nginx::start(&conf);
    nginx.wait_for_workers(2);
    ask_every_worker(&nginx, "/api");
    wait_until("both workers are counted", WITHIN, || {
        let metrics = Metrics::of(&nginx);
        metrics.value("weir_workers") == 2.0 && metrics.value("weir_redis_up") == 1.0
    });
    let before = Metrics::of(&nginx);
    let old = nginx.workers();
    process::signal(old[0], libc::SIGKILL);
    wait_until("another worker runs", WITHIN, || {
        let workers = nginx.workers();
        workers.len() == 2 && !workers.contains(&old[0])
    });
    wait_until("it is counted, and the dead one is not", WITHIN, || {
        let metrics = Metrics::of(&nginx);
        metrics.value("weir_workers") == 2.0 && metrics.value("weir_redis_up") == 1.0
    });
    for metrics in of_every_worker(&nginx) {
        for (sample, value) in before.counters() {
            assert!(
                metrics.value(sample) >= value,
                "{sample}: {} < {value}",
                metrics.value(sample)
            );
        }
    }
    let more = ask_every_worker(&nginx, "/api") as f64;
    let allowed = |metrics: &Metrics| metrics.decisions("api", "allowed");
    assert_eq!(allowed(&Metrics::of(&nginx)), allowed(&before) + more);
}

#[test]
fn a_redis_that_is_away_shows_and_so_does_its_return() {
    let mut redis = Redis::start();
    let conf = Conf::with_timeout(
        "300ms",
        &redis.url(),
        "api = { limit = \"1000000/1h\" }, login = { limit = \"9/1h\", on_error = \"closed\" }",
    )
    .server(LOCATION)
    .limited("/api", "api")
    .limited("/login", "login")
    .workers(2);
    let nginx = Nginx::start(&conf);
    nginx.wait_for_workers(2);
    let gauges = |metrics: &Metrics| {
        ["weir_redis_up", "weir_redis_servers_away"].map(|gauge| metrics.value(gauge))
    };
    let show = |expected: [f64; 2]| {
        wait_until(&format!("up and away are {expected:?}"), WITHIN, || {
            gauges(&Metrics::of(&nginx)) == expected
        });
    };
    show([1.0, 0.0]);
    assert_eq!(Metrics::of(&nginx).value("weir_redis_connects_total"), 2.0);
    redis.kill();
    show([0.0, 2.0]);
    for (path, status) in [("/api", 200), ("/login", 503), ("/login", 503)] {
        assert_eq!(nginx.client().get(path).status, status);
    }
    let metrics = Metrics::of(&nginx);
    assert_eq!(metrics.decisions("api", "error_open"), 1.0);
    assert_eq!(metrics.decisions("login", "error_closed"), 2.0);
    assert_eq!(metrics.errors("unreachable"), 3.0);
    assert_eq!(metrics.count("weir_decision_seconds", "source=\"on_error\""), 3.0);
    assert!(metrics.value("weir_redis_breaker_opened_total") >= 2.0);
    assert!(metrics.value("weir_redis_failed_attempts_total") >= 2.0);
    redis.launch();
    show([1.0, 0.0]);
    assert_eq!(Metrics::of(&nginx).value("weir_redis_connects_total"), 4.0);
}

#[test]
fn what_waits_for_redis_shows_and_leaves_in_batches_that_are_counted_by_size() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis));
    assert_eq!(nginx.client().get("/api").status, 200);
    redis.freeze();
    // More than can be under way at once.
    let asked = 300;
    std::thread::scope(|scope| {
        for _ in 0..asked {
            scope.spawn(|| assert_eq!(nginx.client().get("/api").status, 200));
        }
        wait_until("some of them wait in the queue", Duration::from_secs(4), || {
            Metrics::of(&nginx).value("weir_queue_length") >= 1.0
        });
        redis.thaw();
    });
    wait_until("all of them were published", WITHIN, || {
        Metrics::of(&nginx).value("weir_redis_batch_size_sum") == f64::from(asked) + 1.0
    });
    let metrics = Metrics::of(&nginx);
    let calls = metrics.value("weir_redis_batches_total");
    assert_eq!(metrics.value("weir_redis_batch_size_count"), calls);
    let up_to =
        |size: &str| metrics.value(&format!("weir_redis_batch_size_bucket{{le=\"{size}\"}}"));
    assert!(up_to("1") < calls, "{}", metrics.text);
    assert_eq!((up_to("128"), up_to("+Inf")), (calls, calls));
    wait_until("none waits any more", WITHIN, || {
        Metrics::of(&nginx).value("weir_queue_length") == 0.0
    });
    let decided = metrics.count("weir_decision_seconds", "source=\"redis\"");
    assert_eq!(decided, f64::from(asked) + 1.0);
}

/// Of several tries at the upstream the last one is what the client got.
#[test]
fn an_upstream_that_refuses_what_was_let_through_is_counted_under_each_policy_on_the_way() {
    let redis = Redis::start();
    let port = process::free_port();
    let policies = "api = { limit = \"100/1h\" }, user = { limit = \"100/1h\" }, \
         trial = { limit = \"1/1h\", dry_run = true }, \
         tight = { limit = \"1/1h\", error_page = true }";
    let refusing = "content_by_lua_block { ngx.exit(429) }";
    let both = format!("{} {}", access("api"), access("user"));
    let twice = format!("{0} {0}", access("user"));
    let proxied = |path: &str, call: &str, to: &str| {
        format!(
            "location {path} {{ access_by_lua_block {{ {call} }} proxy_pass http://{to}; \
             proxy_next_upstream error http_502 http_429; }}"
        )
    };
    let mut conf = Conf::new(&redis.url(), policies)
        .server(LOCATION)
        .server(&format!("listen 127.0.0.1:{port}; location /refusing {{ {refusing} }}"))
        .server(&format!("location /turns {{ content_by_lua_block {{ {TURNS} }} }}"))
        .server("log_by_lua_block { require(\"resty.weir\").log() }")
        .server(&proxied("/both", &both, "one/refusing"))
        .server(&proxied("/twice", &twice, "one/refusing"))
        .server(&proxied("/after-another", &access("user"), "dead_first/refusing"))
        .server(&proxied("/better-luck", &access("user"), "two/turns"))
        .server(&proxied("/unlimited", "", "one/refusing"))
        .server(&proxied("/trial", &access("trial"), "one/refusing"))
        .server(&format!(
            "location /tight {{ access_by_lua_block {{ {} {} }} \
             error_page 429 /sorry; proxy_pass http://one/plain; }}",
            access("user"),
            access("tight")
        ))
        .server(&proxied("/sorry", "", "one/refusing"));
    let (dead, live) = (process::free_port(), format!("server 127.0.0.1:{port} max_fails=0;"));
    conf.http = format!(
        "upstream one {{ {live} }} upstream two {{ {live} {live} }} \
         upstream dead_first {{ server 127.0.0.1:{dead} max_fails=0; {live} }}"
    );
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    for (path, status, counted) in [
        ("/both", 429, ["api", "user"].as_slice()),
        ("/twice", 429, &["user"]),
        ("/after-another", 429, &["user"]),
        ("/better-luck", 200, &[]),
        ("/unlimited", 429, &[]),
        ("/trial", 429, &["trial"]),
        // Of this one the dry run would have refused it.
        ("/trial", 429, &[]),
        ("/tight", 200, &[]),
        // Refused here; it is the page in its place that is refused there.
        ("/tight", 429, &[]),
    ] {
        let of_each = || {
            let metrics = Metrics::of(&nginx);
            ["api", "user", "trial", "tight"].map(|policy| {
                metrics.value(&format!("weir_upstream_429_total{{policy=\"{policy}\"}}"))
            })
        };
        let before = of_each();
        assert_eq!(client.get(path).status, status, "{path}");
        let is_in = |policy| f64::from(u8::from(counted.contains(&policy)));
        let expected = ["api", "user", "trial", "tight"].map(is_in);
        // The log phase comes after the answer.
        let grown = || {
            let now = of_each();
            std::array::from_fn(|index| now[index] - before[index])
        };
        wait_until(&format!("{path} is counted"), WITHIN, || grown() == expected);
    }
    nginx.assert_calm_log();
}

/// 429, 200, 429 ...
const TURNS: &str = "package.loaded.turn = not package.loaded.turn \
     if package.loaded.turn then return ngx.exit(429) end ngx.print(\"ok\")";

#[test]
fn requests_without_a_decision_are_counted_by_the_reason() {
    let redis = Redis::start();
    let conf = Conf::with_timeout("300ms", &redis.url(), "api = { limit = \"1000/1h\" }")
        .server(LOCATION)
        .limited("/api", "api")
        .limited("/cost", "api\", { cost = -1 }) (\"")
        .limited("/options", "api\", { coast = 1 }) (\"")
        .limited("/key", "api\", { key = 7 }) (\"")
        .server(
            "location /phase { header_filter_by_lua_block { \
             require(\"resty.weir\").check(\"api\") } content_by_lua_block { ngx.print(1) } }",
        );
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    for (path, reason) in [
        ("/cost", "bad_cost"),
        ("/options", "bad_options"),
        ("/key", "bad_key"),
        ("/phase", "bad_phase"),
    ] {
        client.get(path);
        assert_eq!(Metrics::of(&nginx).errors(reason), 1.0, "{reason}");
    }
    redis.command::<()>("SET weir:{$remote_addr=127.0.0.1}:api:log:1h foreign");
    assert_eq!(client.get("/api").status, 200);
    redis.freeze();
    assert_eq!(client.get("/api").status, 200);
    redis.thaw();
    let metrics = Metrics::of(&nginx);
    assert_eq!((metrics.errors("redis_error"), metrics.errors("timeout")), (1.0, 1.0));
    assert_eq!(metrics.errors("other"), 0.0);
    assert_eq!(metrics.decisions("api", "error_open"), 6.0);
    // One waited for its 300 ms, and no other for a tenth of them.
    let up_to = |bound: &str| {
        let of = "weir_decision_seconds_bucket{source=\"on_error\"";
        metrics.value(&format!("{of},le=\"{bound}\"}}"))
    };
    assert_eq!((up_to("0.2"), up_to("+Inf")), (4.0, 5.0), "{}", metrics.text);
}
