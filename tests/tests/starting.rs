//! nginx starts whatever Redis says to it, `on_error` decides, and limiting begins
//! by itself as soon as Redis lets it. (One that is not there at all:
//! redis_failures.rs.)

use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Connection;
use weir_tests::{Conf, Nginx, Redis, wait_until};

/// The timeout of 100 ms, and what a busy machine adds.
const DEADLINE: Duration = Duration::from_millis(150);

/// Limits are there within this time of Redis.
const RECOVERY: Duration = Duration::from_secs(2);

/// What is waited for here comes within this time.
const LONG: Duration = Duration::from_secs(20);

fn conf(url: &str) -> Conf {
    let policies = "api = { limit = \"1000000/1h\" }, \
                    login = { limit = \"1000000/1h\", on_error = \"closed\" }";
    Conf::with_timeout("100ms", url, policies)
        .limited("/api", "api")
        .limited("/login", "login")
        .stats()
}

/// Asks until there are limits, at most for so long: when they were there. What is
/// answered until then is what `on_error` says, and no later than it may.
fn limited_within(nginx: &Nginx, most: Duration) -> Option<Instant> {
    let client = nginx.client();
    let (end, mut elapsed) = (Instant::now() + most, Vec::new());
    while Instant::now() < end {
        let (api, login) = (client.get("/api"), client.get("/login"));
        assert_eq!((api.status, api.body.as_str()), (200, "ok"));
        if login.status == 200 {
            assert!(login.has_limit_headers(), "{login:?}");
            return Some(Instant::now());
        }
        assert_eq!((login.status, login.header("Retry-After")), (503, Some("1")));
        elapsed.extend([api.elapsed, login.elapsed]);
        elapsed.sort();
        // All but one in ten: a machine that others use may stall any single one.
        let late = elapsed[elapsed.len() * 9 / 10];
        assert!(late <= DEADLINE || elapsed.len() < 10, "{late:?}, of {}", elapsed.len());
        sleep(Duration::from_millis(5));
    }
    None
}

/// The lines of Weir in the error log: what was amiss, and the end of it. Between
/// them only what else was amiss: a server that is slow to start is first not there,
/// or answers late.
fn assert_told(nginx: &Nginx, amiss: &str) {
    wait_until("the end is told", RECOVERY, || !nginx.log_lines("is back after").is_empty());
    let mut lines = nginx.log_lines("weir:");
    lines.retain(|line| !line.contains("no decision for policy api: timeout;"));
    let [first, between @ .., last] = &lines[..] else { panic!("{amiss}: {lines:?}") };
    assert!(first.contains(amiss) && last.contains("is back after"), "{amiss}: {lines:?}");
    let is_reason = |line: &String| line.contains(" still away: ");
    assert!(between.len() <= 2 && between.iter().all(is_reason), "{lines:?}");
    nginx.assert_calm_log();
}

#[test]
fn asking_for_a_password_when_nginx_starts() {
    let cases: [(&str, &str, &str, &[&str]); 3] = [
        ("NOAUTH", "", "CONFIG SET requirepass secret", &["CONFIG", "SET", "requirepass", ""]),
        (
            "WRONGPASS",
            ":right@",
            "CONFIG SET requirepass secret",
            &["CONFIG", "SET", "requirepass", "right"],
        ),
        (
            "WRONGPASS",
            "weir:right@",
            "PING",
            &["ACL", "SETUSER", "weir", "on", ">right", "~*", "+@all"],
        ),
    ];
    for (reason, user, before, mended) in cases {
        let redis = Redis::start();
        let mut admin = redis.connect();
        redis.command::<()>(before);
        let url = redis.url().replace("127.0.0.1", &format!("{user}127.0.0.1"));
        let nginx = Nginx::start(&conf(&url));
        assert_eq!(limited_within(&nginx, Duration::from_millis(500)), None, "{reason}");
        assert_eq!(nginx.stat("redis"), "down");
        redis::cmd(mended[0]).arg(&mended[1..]).exec(&mut admin).unwrap();
        assert!(limited_within(&nginx, RECOVERY).is_some(), "{mended:?}");
        assert_told(&nginx, &format!("unreachable: {reason}"));
        assert!(!nginx.error_log().contains("right"));
    }
}

/// A Redis with a dump that it takes over three seconds to read.
struct Loading {
    redis: Redis,
    arguments: Vec<&'static str>,
}

impl Loading {
    fn prepare() -> Self {
        let mut redis = Redis::start();
        let fill = "for i = 1, 320 do redis.call('SET', 'filler:' .. i, ('x'):rep(65536)) end";
        redis::cmd("EVAL").arg(fill).arg(0).exec(&mut redis.connect()).unwrap();
        redis.command::<()>("CONFIG SET rdbcompression no");
        redis.command::<()>("SAVE");
        // Microseconds for each key. From 7.0 on the server can be had to answer
        // after each; 6.2 does after 2 MB, and is silent for 0.3 s meanwhile.
        let mut arguments = vec!["--key-load-delay", "10000"];
        let pace = "loading-process-events-interval-bytes";
        if !redis.command::<Vec<String>>(&format!("CONFIG GET {pace}")).is_empty() {
            arguments.extend(["--loading-process-events-interval-bytes", "65536"]);
        }
        redis.kill();
        Self { redis, arguments }
    }

    /// Starts it, and waits until it says that it loads: on which connection.
    fn launch(&mut self) -> Connection {
        self.redis.spawn(&self.arguments);
        let client = redis::Client::open(self.redis.url()).unwrap();
        let mut connection = None;
        wait_until("it answers", Duration::from_secs(10), || {
            connection = client.get_connection().ok();
            connection.is_some()
        });
        let mut connection = connection.unwrap();
        assert!(is_loading(&mut connection), "it has read its dump at once");
        connection
    }

    fn says_so(&self) -> bool {
        self.arguments.len() > 2
    }
}

fn is_loading(connection: &mut Connection) -> bool {
    let Err(error) = redis::cmd("PING").exec(connection) else { return false };
    assert_eq!(error.code(), Some("LOADING"), "{error}");
    true
}

/// `on_error` decides as long as it loads; limits are there soon after.
fn assert_limited_once_loaded(nginx: &Nginx, mut connection: Connection) {
    let begun = Instant::now();
    let (loaded, limited) = std::thread::scope(|scope| {
        let loaded = scope.spawn(|| {
            wait_until("it has read its dump", LONG, || !is_loading(&mut connection));
            Instant::now()
        });
        let limited = limited_within(nginx, LONG);
        (loaded.join().unwrap(), limited.expect("limits"))
    });
    assert!(loaded - begun > Duration::from_secs(2), "loaded in {:?}", loaded - begun);
    let took = limited.saturating_duration_since(loaded);
    assert!(took < RECOVERY, "{took:?} until there were limits");
}

#[test]
fn loading_when_nginx_starts() {
    let mut loading = Loading::prepare();
    let connection = loading.launch();
    let nginx = Nginx::start(&conf(&loading.redis.url()));
    assert_limited_once_loaded(&nginx, connection);
    assert!(nginx.count("decisions.error_open") > 100);
    assert_eq!(nginx.count("connects"), 1, "what loads is not connected to");
    let reason = if loading.says_so() { "unreachable: LOADING" } else { "unreachable: " };
    assert_told(&nginx, reason);
}

/// The same, of one that worked before.
#[test]
fn loading_when_it_comes_back() {
    let mut loading = Loading::prepare();
    loading.redis.launch();
    let nginx = Nginx::start(&conf(&loading.redis.url()));
    assert!(limited_within(&nginx, RECOVERY).is_some());
    loading.redis.kill();
    wait_until("it is missed", RECOVERY, || nginx.client().get("/login").status == 503);
    let connection = loading.launch();
    assert_limited_once_loaded(&nginx, connection);
    assert_eq!(nginx.count("connects"), 2, "what loads is not connected to");
    assert_told(&nginx, "lost: ");
}
