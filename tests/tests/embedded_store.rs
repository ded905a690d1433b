//! Limits without Redis: decided in memory that all workers of a host share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_tests::{Conf, Nginx, in_parallel, process, wait_until};

/// A configuration without Redis, with these policies and other fields.
fn conf(policies: &str) -> Conf {
    with("", policies)
}

fn with(fields: &str, policies: &str) -> Conf {
    Conf::with_setup(&format!("{{ {fields} policies = {{ {policies} }} }}")).stats()
}

const ALGORITHMS: [&str; 5] = [
    "limit = \"10/1h\"",
    "limit = \"10/1h\", algorithm = \"compact-log\"",
    "limit = \"10/1h\", algorithm = \"sliding-counter\"",
    "limit = \"10/1h\", algorithm = \"token-bucket\"",
    "limit = \"10/month\", algorithm = \"quota\"",
];

#[test]
fn every_algorithm_counts_over_all_workers() {
    let policies: Vec<String> = ALGORITHMS
        .iter()
        .enumerate()
        .map(|(index, limit)| format!("p{index} = {{ {limit} }}"))
        .collect();
    let mut conf = conf(&policies.join(", ")).workers(3);
    for index in 0..ALGORITHMS.len() {
        conf = conf.limited(&format!("/p{index}"), &format!("p{index}"));
    }
    let nginx = Nginx::start(&conf);
    nginx.wait_for_workers(3);
    for (index, limit) in ALGORITHMS.iter().enumerate() {
        let statuses = in_parallel(8, |_| {
            let client = weir_tests::Client::without_keepalive(nginx.port());
            (0..5).map(|_| client.get(&format!("/p{index}")).status).collect::<Vec<_>>()
        });
        let statuses = statuses.concat();
        let passed = statuses.iter().filter(|&&status| status == 200).count();
        let refused = statuses.iter().filter(|&&status| status == 429).count();
        assert_eq!((passed, refused), (10, 30), "{limit}");
        let refusal = nginx.client().get(&format!("/p{index}"));
        assert_eq!(
            (refusal.number("RateLimit-Limit"), refusal.number("RateLimit-Remaining")),
            (10, 0)
        );
        assert!(refusal.number("Retry-After") > 0, "{refusal:?}");
    }
    assert_eq!((nginx.stat("redis"), nginx.count("memory.entries")), ("none".to_owned(), 5));
    assert_eq!(nginx.count("pumps"), 0, "nothing has to be waited for");
    assert_eq!(nginx.log_lines("limits are this host's alone").len(), 1);
    nginx.assert_calm_log();
}

#[test]
fn several_limits_are_charged_together_or_not_at_all() {
    let policy = "api = { limits = { { limit = \"3/1h\" }, \
                  { limit = \"8/1h\", algorithm = \"token-bucket\" } } }";
    let nginx = Nginx::start(&conf(policy).limited("/api", "api"));
    let client = nginx.client();
    let statuses: Vec<u16> = (0..10).map(|_| client.get("/api").status).collect();
    assert_eq!(statuses.iter().filter(|&&status| status == 200).count(), 3);
    // Seven refusals took nothing from the bucket of eight.
    let look =
        "ngx.print(require(\"resty.weir\").check(\"api\", { cost = 0 }).limits[2].remaining)";
    nginx.reload_and_wait(&conf(policy).content("/look", look));
    assert_eq!(nginx.client().get("/look").body, "5");
}

#[test]
fn a_decision_tells_that_it_is_of_this_host() {
    let conf = conf("api = { limit = \"1/1h\" }")
        .content("/check", "ngx.print(require(\"resty.weir\").check(\"api\").source)")
        .server(
            "location /logged { set $weir_source \"\"; \
             access_by_lua_block { require(\"resty.weir\").access(\"api\", { cost = 0 }) } \
             content_by_lua_block { ngx.print(ngx.var.weir_source) } }",
        );
    let nginx = Nginx::start(&conf);
    assert_eq!(nginx.client().get("/check").body, "memory");
    assert_eq!(nginx.client().get("/logged").body, "memory");
    assert_eq!(nginx.count("decisions.allowed"), 2);
}

#[test]
fn metrics_tell_of_the_memory_and_of_no_redis() {
    let conf = conf("api = { limit = \"2/1h\" }")
        .limited("/api", "api")
        .content("/metrics", "require(\"resty.weir\").metrics()")
        .workers(2);
    let nginx = Nginx::start(&conf);
    nginx.wait_for_workers(2);
    (0..5).for_each(|_| _ = weir_tests::Client::without_keepalive(nginx.port()).get("/api"));
    let text = nginx.client().get("/metrics").body;
    for line in [
        "weir_decisions_total{policy=\"api\",outcome=\"allowed\"} 2",
        "weir_decisions_total{policy=\"api\",outcome=\"denied\"} 3",
        "weir_decision_seconds_count{source=\"memory\"} 5",
        "weir_wait_seconds_count{policy=\"api\"} 3",
        "weir_memory_size_bytes 33554432",
        "weir_memory_used_bytes 128",
        "weir_memory_entries 1",
        "weir_memory_evictions_total{reason=\"least_recently_used\"} 0",
    ] {
        assert!(text.lines().any(|told| told == line), "{line}: {text}");
    }
    for absent in ["weir_redis", "weir_workers", "weir_queue"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
}

#[test]
fn charges_and_refunds_are_settled_at_once() {
    let weir = "local weir = require(\"resty.weir\")";
    let conf = conf("api = { limit = \"10/1h\" }, login = { limit = \"2/1h\", charge = { 401 } }")
        .access("/api", &format!("{weir} weir.access(\"api\", {{ cost = 4 }}) weir.refund(3)"))
        .access("/more", &format!("{weir} weir.access(\"api\") weir.charge(20)"))
        .server("log_by_lua_block { require(\"resty.weir\").log() }")
        .server(
            "location /login { access_by_lua_block { require(\"resty.weir\").access(\"login\") } \
             content_by_lua_block { ngx.status = tonumber(ngx.var.arg_s) ngx.print(\"ok\") } }",
        );
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    for remaining in [6, 5, 4] {
        assert_eq!(client.get("/api").number("RateLimit-Remaining"), remaining);
    }
    assert_eq!(client.get("/more").number("RateLimit-Remaining"), 6);
    assert_eq!(client.get("/api").status, 429, "twenty more were charged");
    let login = |status| client.get(&format!("/login?s={status}")).status;
    assert!((0..5).all(|_| login(200) == 200), "what passes is given back");
    assert_eq!([login(401), login(401), login(401)], [401, 401, 429]);
    wait_until("all is settled", Duration::from_secs(5), || nginx.count("settled") == 9);
    assert_eq!(nginx.count("unsettled"), 0);
    nginx.assert_calm_log();
}

#[test]
fn a_reload_under_load_keeps_the_state_and_is_exact() {
    let conf = conf("api = { limit = \"2000/1h\" }").limited("/api", "api").workers(2);
    let nginx = Nginx::start(&conf);
    nginx.wait_for_workers(2);
    let done = AtomicBool::new(false);
    let passed = std::thread::scope(|scope| {
        let reloading = scope.spawn(|| {
            for _ in 0..5 {
                nginx.reload_and_wait(&conf);
            }
            done.store(true, Ordering::Relaxed);
        });
        let passed = in_parallel(4, |_| {
            let client = weir_tests::Client::without_keepalive(nginx.port());
            let mut passed = 0;
            let mut refused = 0;
            while !done.load(Ordering::Relaxed) || refused == 0 {
                match client.get("/api").status {
                    200 => passed += 1,
                    429 => refused += 1,
                    other => panic!("status {other}"),
                }
            }
            passed
        });
        reloading.join().unwrap();
        passed
    });
    assert_eq!(passed.into_iter().sum::<usize>(), 2_000);
    assert_eq!(nginx.client().get("/api").status, 429);
    nginx.assert_calm_log();
}

#[test]
fn a_memory_of_another_size_begins_anew_and_the_log_says_so() {
    let policies = "api = { limit = \"1/1h\" }";
    let sized = |size: &str| {
        with(&format!("memory = {{ size = \"{size}\" }},"), policies).limited("/api", "api")
    };
    let nginx = Nginx::start(&sized("2m"));
    let status = || nginx.client().get("/api").status;
    assert_eq!((status(), status()), (200, 429));
    nginx.reload_and_wait(&sized("2m"));
    assert_eq!(status(), 429, "the same size");
    assert_eq!(nginx.log_lines("the new memory is empty").len(), 0);
    nginx.reload_and_wait(&sized("4m"));
    assert_eq!((status(), status()), (200, 429));
    let lines = nginx.log_lines("memory.size is 4194304 bytes and was 2097152");
    assert_eq!(lines.len(), 1, "{}", nginx.error_log());
    assert_eq!(nginx.count("memory.size"), 4 << 20);
    // A reload that fails takes nothing away, wherever it fails.
    let mut failing = sized("2m");
    failing.setup.push_str(") error(\"on purpose\"");
    nginx.reload(&failing);
    wait_until("it has failed", Duration::from_secs(5), || {
        nginx.log_lines("on purpose").len() == 1
    });
    nginx.reload_and_wait(&sized("4m"));
    assert_eq!(status(), 429);
    nginx.reload(&with("memory = { size = \"8x\" },", policies).limited("/api", "api"));
    wait_until("it is refused", Duration::from_secs(5), || {
        nginx.log_lines("memory.size: \"8x\": expected a whole number").len() == 1
    });
    assert_eq!(status(), 429);
}

#[test]
fn two_nginx_instances_share_nothing() {
    let conf = conf("api = { limit = \"1/1h\" }").limited("/api", "api");
    let (one, other) = (Nginx::start(&conf), Nginx::start(&conf));
    for nginx in [&one, &other] {
        let client = nginx.client();
        assert_eq!((client.get("/api").status, client.get("/api").status), (200, 429));
    }
}

#[test]
fn two_hundred_workers_die_and_nothing_is_lost_but_what_they_were_writing() {
    const DEATHS: usize = 200;
    let nginx = Nginx::start(
        &conf(
            "api = { limit = \"500/1h\" }, all = { limit = \"1000000000/1h\", \
               algorithm = \"sliding-counter\" }",
        )
        .access("/api", "require(\"resty.weir\").access(\"api\", { key = \"one\" })")
        .limited("/all", "all")
        .workers(3),
    );
    nginx.wait_for_workers(3);
    let done = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            for _ in 0..DEATHS {
                let workers = nginx.workers();
                let victim = workers[fastrand::usize(..workers.len())];
                process::signal(victim, libc::SIGKILL);
                wait_until("another takes its place", Duration::from_secs(10), || {
                    let workers = nginx.workers();
                    workers.len() == 3 && !workers.contains(&victim)
                });
            }
            done.store(true, Ordering::Relaxed);
        });
        let counts = in_parallel(6, |index| {
            let client = weir_tests::Client::without_keepalive(nginx.port());
            let (mut passed, mut refused, mut unanswered) = (0, 0, 0);
            while !done.load(Ordering::Relaxed) {
                // Whoever is with the dying worker gets no answer.
                let path = if index == 5 { "/all" } else { "/api" };
                match client.try_ask("GET", path, &[]).map(|answer| answer.status) {
                    Ok(200) => passed += usize::from(index != 5),
                    Ok(429) => refused += 1,
                    Ok(other) => panic!("status {other}"),
                    Err(_) => unanswered += usize::from(index != 5),
                }
            }
            (passed, refused, unanswered)
        });
        killing.join().unwrap();
        counts
    });
    let sum = |of: fn(&(usize, usize, usize)) -> usize| counts.iter().map(of).sum::<usize>();
    let (passed, refused, unanswered) = (sum(|c| c.0), sum(|c| c.1), sum(|c| c.2));
    // Each reset of the one record, if there was any, admits a limit anew; and what
    // was admitted by a worker that died may have had no answer.
    let resets = nginx.count("memory.resets") as usize;
    println!("{passed} passed, {refused} refused, {unanswered} unanswered, {resets} resets");
    assert!(passed <= 500 * (1 + resets));
    assert!(passed + unanswered >= 500);
    assert!(refused > 100 && resets <= DEATHS);
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    for (conf, message) in [
        (
            with("memory = { size = \"1m\" },", "api = { limit = \"100000/1h\" }"),
            "memory.size: a client of policies.api can have 100000 units in logs, and this memory",
        ),
        (
            with("", "api = { limits = { { limit = \"40000/1h\" }, { limit = \"40000/2h\" } } }"),
            "memory.size: a client of policies.api can have 80000 units in logs, and this memory",
        ),
        (
            with("store = \"redis\",", "api = { limit = \"1/1h\" }"),
            "redis: missing; it must be a table, since store is",
        ),
        (
            with(
                "redis = { url = \"redis://127.0.0.1:1\" }, memory = { size = \"1m\" },",
                "api = { limit = \"100000/1h\", on_error = \"local\" }",
            ),
            "memory.size: a client of policies.api can have 100000 units in logs",
        ),
        (
            with("memory = { size = \"64g\" }, local_share = 0,", "api = { limit = \"1/1h\" }"),
            "local_share: 0: must be a whole number from 1 to 10000",
        ),
    ] {
        let log = Nginx::refuse(&conf);
        assert!(log.contains(message), "{message}: {log}");
    }
    // Where Redis decides, a log may be as long as it likes.
    let redis = "redis = { url = \"redis://127.0.0.1:1\" }, memory = { size = \"1m\" },";
    drop(Nginx::start(&with(redis, "api = { limit = \"100000/1h\" }")));
}
