//! The worker's life: reloads, exits, deaths, and clients that do not wait.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_tests::{Client, Conf, Nginx, Redis, in_parallel, process, wait_until};

/// Closed, so that a request without a decision cannot pass for one with.
fn conf(redis: &Redis) -> Conf {
    Conf::new(&redis.url(), "api = { limit = \"300/1s\", on_error = \"closed\" }")
        .limited("/api", "api")
        .stats()
}

/// A directory that any user may write, as a runtime_dir.
fn open_dir() -> TempDir {
    let dir = TempDir::new().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).unwrap();
    dir
}

fn with_runtime_dir(mut conf: Conf, dir: &std::path::Path) -> Conf {
    conf.setup = conf.setup.replacen('{', &format!("{{ runtime_dir = \"{}\",", dir.display()), 1);
    conf
}

fn entries(dir: &std::path::Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn twenty_reloads_under_load_cost_not_one_answer() {
    let redis = Redis::start();
    let dir = open_dir();
    let conf = with_runtime_dir(conf(&redis).workers(2), dir.path());
    let nginx = Nginx::start(&conf);
    nginx.wait_for_workers(2);
    let first = nginx.workers();
    let done = AtomicBool::new(false);
    let statuses = std::thread::scope(|scope| {
        let reloading = scope.spawn(|| {
            for _ in 0..20 {
                let old = nginx.workers();
                nginx.reload(&conf);
                // nginx takes two reloads that come together for one.
                wait_until("new workers serve", Duration::from_secs(10), || {
                    let new = nginx.workers();
                    new.len() == 2 && !new.iter().any(|pid| old.contains(pid))
                });
                sleep(Duration::from_millis(100));
            }
            done.store(true, Ordering::Relaxed);
        });
        let statuses = in_parallel(8, |_| {
            // New connections only: one kept alive may be closed by the old
            // worker at any time, which is no answer of anybody's.
            let client = Client::without_keepalive(nginx.port());
            let mut statuses = Vec::new();
            while !done.load(Ordering::Relaxed) {
                statuses.push(client.get("/api").status);
            }
            statuses
        });
        reloading.join().unwrap();
        statuses.concat()
    });
    let passed = statuses.iter().filter(|&&status| status == 200).count();
    let refused = statuses.iter().filter(|&&status| status == 429).count();
    assert_eq!(passed + refused, statuses.len(), "of {} answers", statuses.len());
    assert!(passed > 300 && refused > 300, "{passed} passed, {refused} were refused");

    wait_until("the old workers have left", Duration::from_secs(5), || {
        nginx.processes("worker").len() == 2
    });
    assert!(first.iter().all(|&pid| !process::runs(pid)));
    assert_eq!(entries(dir.path()), 0, "a socket was left behind");
    assert_eq!(nginx.log_lines("exited on signal"), Vec::<String>::new());
    assert_eq!(nginx.log_lines("exited with code 0").len(), 40);
    nginx.assert_calm_log();
}

#[test]
fn an_idle_worker_leaves_at_once_and_a_busy_one_after_its_requests() {
    let redis = Redis::start();
    let quit_within = Duration::from_millis(500);

    let mut unused = Nginx::start(&conf(&redis));
    assert!(unused.quit(quit_within) < quit_within);

    let mut idle = Nginx::start(&conf(&redis));
    assert_eq!(Client::without_keepalive(idle.port()).get("/api").status, 200);
    assert!(idle.quit(quit_within) < quit_within);

    // Two requests: one that waits for its decision, one that waits before it
    // asks for one, and comes to a worker whose pump has left.
    let conf = conf(&redis)
        .access(
            "/late",
            "package.loaded.late = true ngx.sleep(1) require(\"resty.weir\").access(\"api\")",
        )
        .content("/is-late-there", "ngx.print(tostring(package.loaded.late))");
    let mut busy = Nginx::start(&conf);
    assert_eq!(busy.client().get("/api").status, 200);
    redis.freeze();
    std::thread::scope(|scope| {
        let port = busy.port();
        let ask = |path| move || Client::without_keepalive(port).get(path);
        let waiting = scope.spawn(ask("/api"));
        let late = scope.spawn(ask("/late"));
        wait_until("a request waits", Duration::from_secs(2), || busy.count("waiting") == 1);
        wait_until("the other is there", Duration::from_secs(2), || {
            busy.client().get("/is-late-there").body == "true"
        });
        scope.spawn(|| {
            sleep(Duration::from_millis(600));
            redis.thaw();
        });
        let took = busy.quit(Duration::from_secs(4));
        assert!(took > Duration::from_millis(500), "it left before its requests: {took:?}");
        for answer in [waiting, late].map(|thread| thread.join().unwrap()) {
            assert_eq!((answer.status, answer.has_limit_headers()), (200, true));
        }
    });
    busy.assert_calm_log();
}

#[test]
fn a_killed_worker_is_followed_by_one_that_works() {
    let redis = Redis::start();
    let dir = open_dir();
    let nginx = Nginx::start(&with_runtime_dir(conf(&redis), dir.path()));
    for _ in 0..3 {
        assert_eq!(nginx.client().get("/api").status, 200);
        let killed = nginx.workers();
        process::signal(killed[0], libc::SIGKILL);
        wait_until("there is another worker", Duration::from_secs(5), || {
            nginx.workers().iter().any(|pid| !killed.contains(pid))
        });
    }
    let client = Client::without_keepalive(nginx.port());
    assert_eq!(client.get("/api").status, 200);
    assert_eq!(entries(dir.path()), 0);
}

#[test]
fn a_thousand_clients_that_hang_up_leave_nobody_waiting() {
    let redis = Redis::start();
    for check_abort in ["off", "on"] {
        let mut conf = conf(&redis).server(&format!("lua_check_client_abort {check_abort};"));
        conf.setup = conf.setup.replace("300/1s", "100000/1h");
        let nginx = Nginx::start(&conf);
        assert_eq!(nginx.client().get("/api").status, 200);
        redis.freeze();
        let streams: Vec<TcpStream> = (0..1_000)
            .map(|_| {
                let mut stream = TcpStream::connect(("127.0.0.1", nginx.port())).unwrap();
                stream.write_all(b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
                stream
            })
            .collect();
        wait_until("all of them wait", Duration::from_secs(2), || nginx.count("waiting") == 1_000);
        drop(streams);
        redis.thaw();
        wait_until("nobody waits", Duration::from_secs(2), || nginx.count("waiting") == 0);
        assert_eq!(nginx.client().get("/stats").status, 200);
        assert_eq!(nginx.count("decisions.error_closed"), 0);
        nginx.assert_calm_log();
    }
}

/// The same without an answer: the deadline ends the waiting.
#[test]
fn clients_that_hang_up_on_a_dead_redis_leave_nobody_waiting() {
    let redis = Redis::start();
    let mut conf = conf(&redis).server("lua_check_client_abort on;");
    conf.setup = conf.setup.replace("5s", "100ms");
    let nginx = Nginx::start(&conf);
    assert_eq!(nginx.client().get("/api").status, 200);
    redis.freeze();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(("127.0.0.1", nginx.port())).unwrap();
        stream.write_all(b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    wait_until("nobody waits", Duration::from_secs(2), || nginx.count("waiting") == 0);
    redis.thaw();
}

/// The timer that tells of the exit may not be had; the worker leaves all the
/// same, a little later.
#[test]
fn a_worker_without_timers_to_spare_leaves_too() {
    let redis = Redis::start();
    for limit in ["lua_max_pending_timers 1;", "lua_max_running_timers 1;"] {
        let mut conf = conf(&redis);
        conf.http = limit.to_owned();
        let mut nginx = Nginx::start(&conf);
        assert_eq!(nginx.client().get("/api").status, 200);
        nginx.quit(Duration::from_secs(5));
        assert_eq!(nginx.log_lines("the pump stopped"), Vec::<String>::new());
    }
}

/// A pump's timer that is late, and not refused, is not one pump too many: the
/// two would end each other for ever.
#[test]
fn a_late_pump_and_its_replacement_do_not_end_each_other() {
    let redis = Redis::start();
    let mut conf = conf(&redis);
    // Before the pump's timer in the same turn of the event loop, for longer
    // than a pump is waited for.
    conf.init_worker = "ngx.timer.at(0, function() \
         local begun = os.clock() \
         while os.clock() - begun < 1.3 do end \
         ngx.update_time() \
         require(\"resty.weir\").check(\"api\", { key = \"early\" }) \
         end)"
        .to_owned();
    let nginx = Nginx::start(&conf);
    wait_until("a pump runs", Duration::from_secs(5), || nginx.client().get("/api").status == 200);
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert!([200, 429].contains(&nginx.client().get("/api").status));
    }
    assert_eq!(nginx.count("pumps"), 2);
    assert_eq!(nginx.log_lines("the pump stopped"), Vec::<String>::new());
}

/// A pump that cannot connect to its own worker leaves no socket behind.
#[test]
fn a_socket_that_was_never_used_is_removed() {
    let redis = Redis::start();
    let dir = open_dir();
    let mut stopped = 0;
    // With one of these numbers of timers there is a connection left for the
    // pump's own timer, and none for its socket.
    for timers in 1..=5 {
        let mut conf = with_runtime_dir(conf(&redis), dir.path());
        conf.connections = 8;
        conf.init_worker =
            format!("for _ = 1, {timers} do ngx.timer.at(0, function() ngx.sleep(0.5) end) end");
        let nginx = Nginx::start(&conf);
        wait_until("a pump runs", Duration::from_secs(5), || {
            Client::without_keepalive(nginx.port()).get("/api").status == 200
        });
        stopped += nginx.log_lines("the pump stopped: no connection to the worker itself").len();
        assert_eq!(entries(dir.path()), 0);
    }
    assert_eq!(stopped, 1);
}

/// A timer that may not run carries nothing: nobody waits for it blindly, and
/// it is tried again.
#[test]
fn without_a_pump_requests_fail_by_policy_until_there_is_one() {
    let redis = Redis::start();
    let mut conf = conf(&redis);
    conf.setup = conf.setup.replace("5s", "100ms");
    conf.http = "lua_max_running_timers 1;".to_owned();
    conf.init_worker = "ngx.timer.at(0, function() ngx.sleep(3) end)".to_owned();
    let nginx = Nginx::start(&conf);
    let begun = Instant::now();
    let client = nginx.client();
    // For a second the timer may yet come: a request waits, and at its
    // deadline looks for itself.
    let mut looked = 0;
    while begun.elapsed() < Duration::from_millis(1_200) {
        let answer = client.get("/api");
        assert!([200, 503].contains(&answer.status), "{answer:?}");
        looked += usize::from(answer.status == 200);
    }
    assert!(looked > 0, "nobody looked at the deadline");
    let mut at_once = 0;
    while begun.elapsed() < Duration::from_millis(2_000) {
        let answer = client.get("/api");
        assert_eq!(answer.status, 503);
        at_once += usize::from(answer.elapsed < Duration::from_millis(50));
    }
    assert!(at_once > 20, "only {at_once} did not wait");
    assert!(nginx.count("errors.no_pump") >= at_once as u64);
    assert_eq!(nginx.log_lines("no decision for policy api: no_pump").len(), 1);
    wait_until("a pump runs", Duration::from_secs(4), || client.get("/api").status == 200);
    assert_eq!(client.get("/api").status, 200);
}

#[test]
fn a_runtime_dir_that_cannot_be_used_fails_by_policy() {
    let redis = Redis::start();
    // Not for nginx's workers, who are nobody.
    let dir = TempDir::new().unwrap();
    let nginx = Nginx::start(&with_runtime_dir(conf(&redis), dir.path()));
    for _ in 0..20 {
        assert_eq!(nginx.client().get("/api").status, 503);
    }
    let lines = nginx.log_lines("no socket in runtime_dir: ");
    assert_eq!(lines.len(), 1, "{}", nginx.error_log());
}

#[test]
fn without_start_requests_fail_by_policy() {
    let redis = Redis::start();
    let mut conf = conf(&redis);
    conf.init_worker = "do return end".to_owned();
    let nginx = Nginx::start(&conf);
    for _ in 0..10 {
        assert_eq!(nginx.client().get("/api").status, 503);
    }
    assert_eq!(nginx.log_lines("start() was not called in init_worker_by_lua").len(), 1);
    nginx.assert_calm_log();
}

/// What the operator's Lua gets wrong at a request is a failure like any
/// other: never a 500, never a pass where the policy is closed.
#[test]
fn faults_at_the_request_fail_by_policy() {
    let redis = Redis::start();
    let policies = "open = { limit = \"9/1s\" }, closed = { limit = \"9/1s\", on_error = \"closed\" }, \
        raises = { limit = \"9/1s\", key = function() error(\"no\\n\\27[31m\" .. (\"x\"):rep(999)) end, on_error = \"closed\" }, \
        number = { limit = \"9/1s\", key = function() return 7 end, on_error = \"closed\" }";
    let access = |policy, opts| format!("require(\"resty.weir\").access(\"{policy}\", {opts})");
    let conf = Conf::new(&redis.url(), policies)
        .access("/open/key", &access("open", "{ key = 7 }"))
        .access("/closed/key", &access("closed", "{ key = { 7 } }"))
        .access("/closed/opts", &access("closed", "\"alice\""))
        .access("/closed/unknown", &access("closed", "{ kye = \"alice\" }"))
        .access("/raises", &access("raises", "nil"))
        .access("/number", &access("number", "nil"))
        .stats();
    let nginx = Nginx::start(&conf);
    for (path, status, message) in [
        (
            "/open/key",
            200,
            "bad_key: the key must be a string, a list of strings or nil, not a number",
        ),
        ("/closed/key", 503, "bad_key"),
        ("/closed/opts", 503, "bad_options: opts must be a table, not a string"),
        ("/closed/unknown", 503, "bad_options"),
        ("/raises", 503, "for policy raises: bad_key: the key function raised: "),
        ("/number", 503, "for policy number: bad_key: the key must be a string"),
    ] {
        let answer = nginx.client().get(path);
        assert_eq!((answer.status, answer.has_limit_headers()), (status, false), "{path}");
        assert!(!nginx.log_lines(message).is_empty(), "{path}: {}", nginx.error_log());
    }
    assert!(!nginx.error_log().contains('\u{1b}'));
    assert!(
        nginx.log_lines("the key function raised").iter().all(|line| line.contains("on_error"))
    );
    nginx.client().get("/raises");
    assert_eq!(nginx.count("errors.bad_key"), 5);
    assert_eq!(nginx.log_lines("bad_key").len(), 4, "told once for each policy");
    assert_eq!(nginx.count("waiting"), 0);
}

/// Only workers serve requests, so only they have a thread; it takes no
/// signals, and it is the only one.
#[test]
fn only_workers_have_a_thread_and_it_takes_no_signals() {
    let redis = Redis::start();
    let cache = open_dir();
    let mut conf = conf(&redis);
    conf.setup = format!(
        "(function() require(\"ngx.process\").enable_privileged_agent() return {} end)()",
        conf.setup
    );
    conf.http = format!("proxy_cache_path {} keys_zone=z:1m;", cache.path().display());
    let nginx = Nginx::start(&conf);
    assert_eq!(nginx.client().get("/api").status, 200);
    wait_until("the cache manager runs", Duration::from_secs(5), || {
        nginx.processes("cache manager").len() == 1
    });
    // A privileged agent is OpenResty's; plain nginx has none.
    let others = [nginx.processes("cache manager"), nginx.processes("privileged agent")].concat();
    for other in others.into_iter().chain([nginx.pid()]) {
        assert_eq!(process::threads(other).len(), 1);
    }
    let worker = nginx.workers()[0];
    let threads = process::threads(worker);
    assert_eq!(threads.len(), 2, "{threads:?}");
    let blocked = |task: u32| {
        let status = std::fs::read_to_string(format!("/proc/{worker}/task/{task}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    };
    let signals = [libc::SIGHUP, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGWINCH];
    // SIGCHLD and the rest: OpenResty blocks some of them in a worker itself.
    let others = [libc::SIGCHLD, libc::SIGALRM, libc::SIGINT, libc::SIGIO, libc::SIGPIPE];
    let is_blocked = |task, signal: libc::c_int| blocked(task) & (1 << (signal - 1)) != 0;
    for (task, name) in threads {
        let is_ours = name == "weir-io";
        for signal in signals {
            assert_eq!(is_blocked(task, signal), is_ours, "signal {signal} in {name}");
        }
        assert!(!is_ours || others.iter().all(|&signal| is_blocked(task, signal)));
        assert!(!is_blocked(task, libc::SIGSEGV));
    }
}

/// Without it the exit of a worker unloads the code that its thread runs.
#[test]
fn the_library_is_linked_so_that_it_stays_loaded() {
    let output = std::process::Command::new("readelf")
        .arg("-d")
        .arg(weir_tests::nginx::library())
        .output()
        .expect("readelf, of binutils");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("NODELETE"), "{text}");
}
