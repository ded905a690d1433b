//! Promise 7: a failure of Redis is what the policy says, no later than the
//! deadline, and limits are back soon after Redis.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_tests::fake_redis::FakeRedis;
use weir_tests::{Answer, Conf, Nginx, Redis, in_parallel, wait_until};

/// The timeout of 100 ms, and what the issue allows on top.
const DEADLINE: Duration = Duration::from_millis(150);

/// What needs no decision does not wait for one.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Limits are back within this time of Redis.
const RECOVERY: Duration = Duration::from_secs(2);

fn conf(url: &str) -> Conf {
    let policies = "api = { limit = \"1000000/1h\" }, \
                    login = { limit = \"1000000/1h\", on_error = \"closed\" }, \
                    shop = { limit = \"1000000/1h\", on_error = \"closed\", error_status = 500 }";
    Conf::with_timeout("100ms", url, policies)
        .limited("/api", "api")
        .limited("/login", "login")
        .limited("/shop", "shop")
        .stats()
}

fn assert_open(answer: &Answer) {
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
    assert!(!answer.has_limit_headers(), "{answer:?}");
}

fn assert_closed(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status);
    assert_eq!(answer.header("Retry-After"), Some("1"));
    assert_eq!(answer.header("Content-Type"), Some("application/problem+json"));
    assert!(!answer.has_limit_headers(), "{answer:?}");
}

/// All but a few answers within this time: a machine that others use may stall
/// any single one, but not one in ten.
fn assert_within(limit: Duration, mut elapsed: Vec<Duration>) {
    elapsed.sort();
    let most = elapsed[elapsed.len() * 9 / 10];
    assert!(most <= limit, "one in ten took {most:?} or more, of {}", elapsed.len());
}

/// Asks all policies from several clients at once for `span`, and meanwhile a
/// location without a limit, which must not notice.
fn assert_failure_policy_for(nginx: &Nginx, span: Duration) {
    let end = Instant::now() + span;
    let elapsed = in_parallel(5, |index| {
        let client = nginx.client();
        let mut elapsed = Vec::new();
        while Instant::now() < end {
            let answer = client.get(["/plain", "/api", "/api", "/login", "/shop"][index]);
            match index {
                0 => assert_eq!(answer.body, "plain"),
                1 | 2 => assert_open(&answer),
                3 => assert_closed(&answer, 503),
                _ => assert_closed(&answer, 500),
            }
            elapsed.push(answer.elapsed);
            sleep(Duration::from_millis(5));
        }
        elapsed
    });
    for (index, elapsed) in elapsed.into_iter().enumerate() {
        assert_within(if index == 0 { AT_ONCE } else { DEADLINE }, elapsed);
    }
}

fn assert_back(nginx: &Nginx) {
    let client = nginx.client();
    wait_until("limits are back", RECOVERY, || client.get("/api").has_limit_headers());
    assert_eq!(client.get("/login").status, 200);
}

/// One line when Redis was lost, one when it is back, and none per request.
fn assert_told_once(nginx: &Nginx, lost: &str) {
    assert_eq!(nginx.log_lines(lost).len(), 1, "{}", nginx.error_log());
    wait_until("the return is logged", Duration::from_secs(2), || {
        nginx.log_lines("is back after").len() == 1
    });
    let ours = nginx.log_lines("weir:");
    assert!(ours.len() <= 8, "{ours:?}");
    nginx.assert_calm_log();
}

#[test]
fn absent_when_nginx_starts() {
    let mut redis = Redis::absent();
    let nginx = Nginx::start(&conf(&redis.url()));
    assert_failure_policy_for(&nginx, Duration::from_secs(1));
    assert_eq!(nginx.stat("redis"), "down");
    redis.launch();
    assert_back(&nginx);
    assert_told_once(&nginx, "unreachable: ");
    // Those that were not even queued are counted too.
    let failed = nginx.count("decisions.error_open") + nginx.count("decisions.error_closed");
    let told = format!("on_error decided {failed} requests meanwhile");
    assert_eq!(nginx.log_lines(&told).len(), 1, "{told}: {}", nginx.error_log());
}

#[test]
fn killed_and_restarted_empty() {
    let mut redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis.url()));
    assert!(nginx.client().get("/api").has_limit_headers());
    redis.kill();
    assert_failure_policy_for(&nginx, Duration::from_secs(1));
    redis.launch();
    assert_back(&nginx);
    assert_told_once(&nginx, "lost: ");
}

#[test]
fn frozen_and_thawed() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis.url()));
    assert!(nginx.client().get("/api").has_limit_headers());
    redis.freeze();
    assert_failure_policy_for(&nginx, Duration::from_secs(3));
    redis.thaw();
    assert_back(&nginx);
    assert_told_once(&nginx, "lost: ");
}

/// A Redis that went away while nobody asked is noticed before the next
/// request, which must not be lost to it.
#[test]
fn a_connection_closed_while_idle_costs_nobody_a_decision() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis.url()));
    for round in 1..=5 {
        assert!(nginx.client().get("/api").has_limit_headers());
        redis.command::<usize>("CLIENT KILL TYPE normal");
        wait_until("it is connected again", RECOVERY, || nginx.count("connects") == round + 1);
        assert_eq!(nginx.client().get("/login").status, 200);
    }
    assert_eq!(nginx.count("decisions.error_open"), 0);
    assert_eq!(nginx.count("decisions.error_closed"), 0);
    assert_eq!(nginx.log_lines("weir:"), Vec::<String>::new(), "nobody noticed");
}

#[test]
fn script_flush_in_the_middle_of_traffic_fails_nothing_and_counts_nothing_twice() {
    let redis = Redis::start();
    let policies = "exact = { limit = \"1500/1h\", on_error = \"closed\" }";
    let nginx =
        Nginx::start(&Conf::new(&redis.url(), policies).limited("/exact", "exact").workers(2));
    let done = AtomicBool::new(false);
    let statuses = std::thread::scope(|scope| {
        let flushing = scope.spawn(|| {
            let mut flushes = 0;
            while !done.load(Ordering::Relaxed) {
                redis.command::<()>("SCRIPT FLUSH");
                flushes += 1;
            }
            flushes
        });
        let statuses = in_parallel(8, |_| {
            let client = nginx.client();
            (0..250).map(|_| client.get("/exact").status).collect::<Vec<_>>()
        });
        done.store(true, Ordering::Relaxed);
        assert!(flushing.join().unwrap() > 10);
        statuses.concat()
    });
    assert_eq!(statuses.iter().filter(|&&status| status == 200).count(), 1_500);
    assert_eq!(statuses.iter().filter(|&&status| status == 429).count(), 500);
    let key = "weir:{$remote_addr=127.0.0.1}:exact:log:1h";
    assert_eq!(redis.command::<usize>(&format!("ZCARD {key}")), 1_500);
}

/// C35: what cannot work fails by policy, and the log names the reason.
#[test]
fn a_wrong_password_or_host_is_a_failure_like_any_other() {
    let locked = Redis::start();
    locked.command::<()>("CONFIG SET requirepass right");
    let wrong = locked.url().replace("127.0.0.1", ":hunter2@127.0.0.1");
    for (url, reason) in [
        (wrong.as_str(), "WRONGPASS"),
        ("redis://no-such-host.invalid:6379", "no-such-host.invalid"),
        ("unix:///no/such/redis.sock", "unix:/no/such/redis.sock"),
    ] {
        let nginx = Nginx::start(&conf(url));
        assert_failure_policy_for(&nginx, Duration::from_millis(500));
        wait_until("the reason is logged", Duration::from_secs(2), || {
            !nginx.log_lines(reason).is_empty()
        });
        assert!(!nginx.error_log().contains("hunter2"));
        nginx.assert_calm_log();
    }
}

#[test]
fn a_malformed_reply_is_a_failure_and_never_a_decision() {
    for reply in
        ["+OK\r\n", "*1\r\n:1\r\n", ":1\r\n", "*4\r\n:1\r\n:-1\r\n:0\r\n:0\r\n", "_\r\n", "*0\r\n"]
    {
        let fake = FakeRedis::answering(reply);
        let nginx = Nginx::start(&conf(&fake.url()));
        assert_failure_policy_for(&nginx, Duration::from_millis(200));
        assert!(nginx.count("errors.malformed_reply") > 0, "{reply:?}");
        assert_eq!(nginx.log_lines("the reply is not one of the decision script").len(), 1);
        nginx.assert_calm_log();
    }
}

#[test]
fn an_error_reply_is_a_failure_told_once() {
    for reply in ["-ERR something\r\n", "-BUSY a script\r\n", "-NOPERM no\r\n", "-NOSCRIPT no\r\n"]
    {
        let fake = FakeRedis::answering(reply);
        let nginx = Nginx::start(&conf(&fake.url()));
        assert_failure_policy_for(&nginx, Duration::from_millis(200));
        assert!(nginx.count("errors.redis_error") > 0, "{reply:?}");
        assert_eq!(nginx.count("connects"), 1, "the connection is good");
        assert_eq!(nginx.log_lines("answers with an error").len(), 1);
    }
    for reply in ["-READONLY a replica\r\n", "-LOADING the dataset\r\n", "-NOAUTH no\r\n"] {
        let fake = FakeRedis::answering(reply);
        let nginx = Nginx::start(&conf(&fake.url()));
        assert_failure_policy_for(&nginx, Duration::from_secs(1));
        let connects = nginx.count("connects");
        assert!((2..=12).contains(&connects), "{connects} connections in a second");
        assert_eq!(nginx.log_lines("lost: ").len(), 1, "{}", nginx.error_log());
        assert_eq!(nginx.log_lines("is back after").len(), 0);
    }
}

/// S04: with no memory left Redis refuses to write; limits are back with it.
#[test]
fn out_of_memory_is_a_failure_that_ends() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis.url()));
    redis.command::<()>("CONFIG SET maxmemory 1");
    assert_failure_policy_for(&nginx, Duration::from_millis(300));
    assert_eq!(nginx.log_lines("OOM").len(), 1);
    redis.command::<()>("CONFIG SET maxmemory 0");
    assert_back(&nginx);
    assert_eq!(nginx.count("connects"), 1);
}

#[test]
fn a_full_queue_is_a_failure_at_once() {
    let redis = Redis::start();
    let setup = format!(
        "{{ redis = {{ url = \"{}\", queue = 3, timeout = \"1s\" }}, \
         policies = {{ api = {{ limit = \"100/1h\" }} }} }}",
        redis.url()
    );
    let nginx = Nginx::start(&Conf::with_setup(&setup).limited("/api", "api").stats());
    // How many calls may be under way depends on the shortest round trip seen.
    for _ in 0..50 {
        assert!(nginx.client().get("/api").has_limit_headers());
    }
    redis.freeze();
    let answers = in_parallel(20, |_| nginx.client().get("/api"));
    redis.thaw();
    let at_once =
        answers.iter().filter(|answer| answer.elapsed < Duration::from_millis(500)).count() as u64;
    assert!(answers.iter().all(|answer| answer.status == 200 && !answer.has_limit_headers()));
    assert_eq!(nginx.count("errors.queue_full"), at_once);
    assert!(at_once >= 10, "{at_once} of 20");
    assert_eq!(nginx.count("errors.timeout") + at_once, 20);
}

/// C38: a late reply is dropped, and meets nobody else.
#[test]
fn a_late_reply_is_never_another_requests() {
    let redis = Redis::start();
    let policies = "a = { limit = \"7/1h\" }, b = { limit = \"100/1h\" }";
    let conf = Conf::with_timeout("100ms", &redis.url(), policies);
    let nginx = Nginx::start(&conf.limited("/a", "a").limited("/b", "b").stats());
    for round in 1..=3 {
        redis.freeze();
        assert!(!nginx.client().get("/a").has_limit_headers());
        redis.thaw();
        wait_until("limits are back", RECOVERY, || {
            nginx.stat("redis") == "up" && {
                let answer = nginx.client().get("/b");
                assert!(!answer.has_limit_headers() || answer.number("RateLimit-Limit") == 100);
                answer.has_limit_headers()
            }
        });
        assert_eq!(nginx.count("decisions.allowed"), round);
    }
    assert_eq!(nginx.client().get("/b").number("RateLimit-Remaining"), 96);
}

/// Whoever was answered by on_error before a request was even sent is not
/// charged for it afterwards.
#[test]
fn a_request_given_up_in_the_queue_is_not_charged() {
    let redis = Redis::start();
    let lua = "require(\"resty.weir\").access(\"api\", { key = ngx.var.arg_k })";
    let conf = Conf::with_timeout("100ms", &redis.url(), "api = { limit = \"100/1h\" }");
    let nginx = Nginx::start(&conf.access("/api", lua).stats());
    assert!(nginx.client().get("/api?k=before").has_limit_headers());
    redis.freeze();
    let answers = in_parallel(100, |index| nginx.client().get(&format!("/api?k=during-{index}")));
    assert!(answers.iter().all(|answer| !answer.has_limit_headers()));
    redis.thaw();
    wait_until("limits are back", RECOVERY, || {
        nginx.client().get("/api?k=after").has_limit_headers()
    });
    // A few calls were under way, with whatever had come by then; the rest
    // waited for their places.
    let charged: Vec<String> = redis.command("KEYS *during*");
    let sent = nginx.count("batched") - nginx.count("decisions.allowed");
    assert_eq!(charged.len() as u64, sent);
    assert!(sent < 100, "all {sent} had left");
}

/// A server that accepts and hangs up is not called in a loop, and nobody waits
/// for it.
#[test]
fn a_server_that_hangs_up_is_left_in_peace() {
    for reply in ["hang up at HELLO", "hang up at SCRIPT", "hang up at EVALSHA"] {
        let fake = FakeRedis::answering(reply);
        let nginx = Nginx::start(&conf(&fake.url()));
        assert_failure_policy_for(&nginx, Duration::from_secs(2));
        let connections = fake.connections();
        assert!((3..=20).contains(&connections), "{reply}: {connections} in two seconds");
        assert!(nginx.log_lines("weir: redis").len() <= 2, "{}", nginx.error_log());
    }
}
