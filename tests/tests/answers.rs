//! What a client sees, and what the operator's Lua sees.

use std::thread::sleep;
use std::time::Duration;

use weir_tests::{Client, Conf, Nginx, Redis, process, turn, wait_until};

#[test]
fn a_client_reads_its_limit_and_a_refusal_in_the_headers() {
    let redis = Redis::start();
    let nginx =
        Nginx::start(&Conf::new(&redis.url(), "api = { limit = \"3/1m\" }").limited("/api", "api"));
    let client = nginx.client();
    for remaining in [2, 1, 0] {
        let answer = client.get("/api");
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
        assert_eq!(answer.number("RateLimit-Limit"), 3);
        assert_eq!(answer.number("RateLimit-Remaining"), remaining);
        assert_eq!(answer.number("RateLimit-Reset"), 60);
        assert_eq!(answer.header("Retry-After"), None);
    }
    for _ in 0..2 {
        let answer = client.get("/api");
        assert_eq!(answer.status, 429);
        assert_eq!(answer.number("RateLimit-Limit"), 3);
        assert_eq!(answer.number("RateLimit-Remaining"), 0);
        let retry_after = answer.number("Retry-After");
        assert!((58..=60).contains(&retry_after), "{retry_after}");
        assert_eq!(answer.number("RateLimit-Reset"), retry_after);
        assert_eq!(answer.header("Content-Type"), Some("application/problem+json"));
        assert_eq!(
            answer.body,
            format!(
                "{{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
                 \"title\":\"Rate limit exceeded\",\"status\":429,\
                 \"violated-policies\":[\"api\"],\"retry_after\":{retry_after}}}\n"
            )
        );
    }
    let head = client.ask("HEAD", "/api", &[]);
    assert_eq!((head.status, head.body.as_str()), (429, ""));
    assert!(head.number("Retry-After") >= 58);
    nginx.assert_calm_log();
}

/// C27: numbers are plain digits from end to end.
#[test]
fn the_largest_limit_is_written_in_plain_digits() {
    let redis = Redis::start();
    let policies =
        "max = { limit = \"9007199254740991/366d\" }, tera = { limit = \"100000000000000/1d\" }";
    let nginx = Nginx::start(
        &Conf::new(&redis.url(), policies).limited("/max", "max").limited("/tera", "tera"),
    );
    let answer = nginx.client().get("/max");
    assert_eq!(answer.header("RateLimit-Limit"), Some("9007199254740991"));
    assert_eq!(answer.header("RateLimit-Remaining"), Some("9007199254740990"));
    assert_eq!(answer.header("RateLimit-Reset"), Some("31622400"));
    let answer = nginx.client().get("/tera");
    assert_eq!(answer.header("RateLimit-Limit"), Some("100000000000000"));
    assert_eq!(answer.header("RateLimit-Remaining"), Some("99999999999999"));
}

/// C13, on the real clock: one that waits as told passes.
#[test]
fn a_client_that_waits_for_retry_after_passes() {
    let redis = Redis::start();
    let nginx = Nginx::start(
        &Conf::new(&redis.url(), "api = { limit = \"2/2s\", on_error = \"closed\" }")
            .limited("/api", "api"),
    );
    let client = nginx.client();
    for _ in 0..3 {
        while client.get("/api").status == 200 {}
        let refused = client.get("/api");
        let retry_after = refused.number("Retry-After");
        assert!((1..=2).contains(&retry_after), "{retry_after}");
        sleep(Duration::from_secs(retry_after));
        assert_eq!(client.get("/api").status, 200);
    }
}

const CHECK: &str = r#"
    local d = require("resty.weir").check("api", ngx.var.arg_k and { key = ngx.var.arg_k })
    ngx.say(tostring(d.allowed), " ", tostring(d.limit), " ", tostring(d.remaining), " ",
        tostring(d.retry_after), " ", tostring(d.reset), " ", d.source)"#;

#[test]
fn check_decides_and_answers_nothing() {
    let redis = Redis::start();
    let nginx = Nginx::start(
        &Conf::new(&redis.url(), "api = { limit = \"1/10s\" }").content("/check", CHECK),
    );
    let client = nginx.client();
    let passed = client.get("/check?k=a");
    assert_eq!(passed.body, "true 1 0 nil 10 redis\n");
    assert!(!passed.has_limit_headers());
    sleep(Duration::from_millis(100));
    let refused = client.get("/check?k=a");
    let fields: Vec<&str> = refused.body.split_whitespace().collect();
    assert_eq!((refused.status, &fields[..3]), (200, &["false", "1", "0"][..]));
    let retry_after: f64 = fields[3].parse().unwrap();
    assert!(retry_after > 9.0 && retry_after <= 9.9, "seconds with their fraction: {retry_after}");
}

#[test]
fn stats_count_the_decisions_of_this_worker() {
    let redis = Redis::start();
    let nginx = Nginx::start(
        &Conf::new(&redis.url(), "api = { limit = \"2/1h\" }").limited("/api", "api").stats(),
    );
    for _ in 0..5 {
        nginx.client().get("/api");
    }
    assert_eq!(nginx.count("decisions.allowed"), 2);
    assert_eq!(nginx.count("decisions.denied"), 1);
    assert_eq!(nginx.count("decisions.remembered"), 2);
    assert_eq!(nginx.count("decisions.error_open"), 0);
    assert_eq!(nginx.count("waiting"), 0);
    assert_eq!(nginx.count("queued"), 0);
    assert_eq!(nginx.count("batched"), 3);
    assert_eq!(nginx.count("connects"), 1);
    assert!(nginx.count("wakeups") >= 3);
    assert_eq!(nginx.stat("redis"), "up");
}

/// Promise 3: all that queues up leaves as one call.
#[test]
fn many_requests_share_a_call() {
    let redis = Redis::start();
    let nginx = Nginx::start(
        &Conf::with_timeout(
            "30s",
            &redis.url(),
            "api = { limit = \"1000000/1h\", on_error = \"closed\" }",
        )
        .limited("/api", "api")
        .stats(),
    );
    // How many calls may be under way depends on the shortest round trip seen.
    for _ in 0..50 {
        nginx.client().get("/api");
    }
    let calls = || (nginx.count("batches"), nginx.count("batched"));
    let before = calls();
    redis.freeze();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asking: Vec<_> =
            (0..200).map(|_| scope.spawn(|| nginx.client().get("/api").status)).collect();
        wait_until("all wait", Duration::from_secs(20), || nginx.count("waiting") == 200);
        redis.thaw();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // However slow the machine is, no more than 32 calls were under way at once.
    assert!(statuses.iter().all(|&status| status == 200));
    let (batches, batched) = (calls().0 - before.0, calls().1 - before.1);
    assert_eq!(batched, 200);
    assert!(batched > 2 * batches, "{batched} requests left in {batches} calls");
}

/// check() waits where nginx lets it, timers included; elsewhere it fails by
/// policy without charging, and access() is refused.
#[test]
fn where_nothing_can_be_waited_for_nothing_is_charged() {
    let redis = Redis::start();
    let check = |key| format!("require(\"resty.weir\").check(\"api\", {{ key = \"{key}\" }})");
    let conf = Conf::new(&redis.url(), "api = { limit = \"9/1h\", on_error = \"closed\" }")
        .content("/timer", &format!("ngx.timer.at(0, function() {} end)", check("timer")))
        .content(
            "/keyless",
            "ngx.timer.at(0, function() require(\"resty.weir\").check(\"api\") end)",
        )
        .server(&format!("location /log {{ log_by_lua_block {{ {} }} return 204; }}", check("log")))
        .server(
            "location /filter { header_filter_by_lua_block { \
             ngx.header.said = select(2, pcall(require(\"resty.weir\").access, \"api\")) } \
             content_by_lua_block { ngx.print(\"ok\") } }",
        )
        .stats();
    let nginx = Nginx::start(&conf);
    nginx.client().get("/timer");
    wait_until("the timer has counted", Duration::from_secs(2), || {
        redis.command::<usize>("DBSIZE") == 1
    });
    nginx.client().get("/keyless");
    wait_until("the mistake is told", Duration::from_secs(2), || {
        nginx.log_lines("bad_key: a timer has no request: it needs opts.key").len() == 1
    });
    nginx.client().get("/log");
    let said = nginx.client().get("/filter");
    assert!(
        said.header("said")
            .is_some_and(|text| text.contains("access() cannot answer in header_filter")),
        "{said:?}"
    );
    assert_eq!(nginx.count("errors.bad_phase"), 1);
    assert_eq!(nginx.log_lines("bad_phase: nothing can be waited for in log").len(), 1);
    let keys: Vec<String> = redis.command("KEYS *");
    assert_eq!(keys, ["weir:{=timer}:api:log:1h"]);
}

/// What is asked in one turn of nginx's event loop is one call, whatever the I/O thread
/// does meanwhile; what comes alone is not held back for it.
#[test]
fn what_is_asked_in_one_turn_is_one_call() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), "api = { limit = \"1000000/1h\" }").limited("/api", "api");
    let nginx = Nginx::start(&turn::with_turn(conf).stats());
    turn::ask(&nginx);
    turn::assert_shared(&nginx, 50);
    let calls = || (nginx.count("batches"), nginx.count("batched"));
    let before = calls();
    for _ in 0..50 {
        nginx.client().get("/api");
    }
    assert_eq!((calls().0 - before.0, calls().1 - before.1), (50, 50));
}

/// In a turn that is slow, what is asked later takes along what was asked before: that
/// is not held back until the turn's end.
#[test]
fn in_a_slow_turn_what_was_asked_early_does_not_wait_for_the_end() {
    let redis = Redis::start();
    let slow = "
        local weir = require('resty.weir')
        local clock = require('resty.weir.calls').clock
        local before = weir.stats().batched
        local function ask()
            return ngx.thread.spawn(weir.check, 'api')
        end
        -- In the turn still.
        local function wait_for(count)
            local stop = clock() + 5
            while weir.stats().batched - before < count and clock() < stop do end
            return weir.stats().batched - before
        end
        -- The first leaves at once: nobody else has asked.
        local threads = { ask(), ask() }
        ngx.print(wait_for(1), ' ')
        local late = clock() + 0.002
        while clock() < late do end
        threads[3] = ask()
        ngx.print(wait_for(2), ' ')
        for i = 1, 3 do
            local _, decision = ngx.thread.wait(threads[i])
            ngx.print(decision.source, ' ')
        end
        ngx.print(weir.stats().batched - before)";
    let nginx = Nginx::start(
        &Conf::new(&redis.url(), "api = { limit = \"1000000/1h\" }")
            .content("/slow", slow)
            .content("/one", "require('resty.weir').check('api')")
            .stats(),
    );
    wait_until("there is a connection", Duration::from_secs(5), || nginx.stat("redis") == "up");
    for _ in 0..20 {
        // Until it is forgotten that a turn asked for several, not even the first leaves.
        for _ in 0..20 {
            nginx.client().get("/one");
        }
        assert_eq!(nginx.client().get("/slow").body, "1 2 redis redis redis 3");
    }
    nginx.assert_calm_log();
}

/// Somebody blocks the worker for longer than a decision may take, in the turn in which
/// others have asked: that is not Redis's fault, and on_error is not for it.
#[test]
fn a_turn_that_blocks_is_not_taken_for_a_redis_that_does_not_answer() {
    let redis = Redis::start();
    let policies = "api = { limit = \"1000000/1h\", on_error = \"closed\" }";
    let block = "local stop = require('resty.weir.calls').clock() + 0.25 \
                 while require('resty.weir.calls').clock() < stop do end ngx.print('ok')";
    let nginx = Nginx::start(
        &Conf::with_timeout("100ms", &redis.url(), policies)
            .limited("/api", "api")
            .content("/block", block)
            .stats(),
    );
    let worker = nginx.workers()[0];
    for _ in 0..5 {
        // Each with a connection, so that what follows is one turn's.
        let clients: Vec<Client> = (0..9).map(|_| nginx.client()).collect();
        clients.iter().for_each(|client| assert_eq!(client.get("/plain").status, 200));
        let before = nginx.count("decisions.allowed");
        process::signal(worker, libc::SIGSTOP);
        let statuses = std::thread::scope(|scope| {
            let (last, others) = clients.split_last().unwrap();
            let asking: Vec<_> =
                others.iter().map(|client| scope.spawn(|| client.get("/api").status)).collect();
            sleep(Duration::from_millis(50));
            let blocking = scope.spawn(|| last.get("/block").status);
            sleep(Duration::from_millis(50));
            process::signal(worker, libc::SIGCONT);
            assert_eq!(blocking.join().unwrap(), 200);
            asking.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<u16>>()
        });
        assert_eq!(statuses, [200; 8]);
        assert_eq!(nginx.count("decisions.allowed"), before + 8);
    }
    nginx.assert_calm_log();
}
