//! Few connections, kept alive, nobody else's; and a breaker that does as it is
//! told.

use std::thread::scope;
use std::time::{Duration, Instant};

use weir_tests::{Conf, Nginx, Redis, in_parallel, wait_until};

const SOON: Duration = Duration::from_secs(2);

/// A location under a limit that nobody reaches, with this in its `redis` table.
fn conf(redis: &str) -> Conf {
    let setup =
        format!("{{ redis = {{ {redis} }}, policies = {{ api = {{ limit = \"100000/1h\" }} }} }}");
    Conf::with_setup(&setup).limited("/api", "api").stats()
}

/// Weir's connections as Redis lists them.
fn connections(redis: &Redis) -> Vec<String> {
    let list: String = redis.command("CLIENT LIST TYPE normal");
    // The test's own has asked for the list just now.
    list.lines().filter(|line| !line.contains("cmd=client")).map(str::to_owned).collect()
}

fn field<'a>(client: &'a str, name: &str) -> &'a str {
    let mut fields = client.split(' ').filter_map(|field| field.split_once('='));
    fields.find(|(field, _)| *field == name).expect(name).1
}

#[test]
fn a_worker_has_as_many_connections_as_it_is_told_and_keeps_them() {
    let redis = Redis::start();
    for (number, connections_field) in [(1, ""), (4, ", connections = 4")] {
        let redis_table = format!("url = \"{}\", timeout = \"5s\"{connections_field}", redis.url());
        let nginx = Nginx::start(&conf(&redis_table));
        wait_until("they are made", SOON, || connections(&redis).len() == number);
        let ids = |redis: &Redis| -> Vec<String> {
            connections(redis).iter().map(|client| field(client, "id").to_owned()).collect()
        };
        let before = ids(&redis);
        in_parallel(16, |_| {
            let client = nginx.client();
            for _ in 0..50 {
                assert!(client.get("/api").has_limit_headers());
            }
        });
        // More calls at once than there are connections.
        redis.freeze();
        scope(|scope| {
            for nth in 1..=2 * number as u64 {
                scope.spawn(|| assert!(nginx.client().get("/api").has_limit_headers()));
                wait_until("it waits", SOON, || nginx.count("waiting") == nth);
            }
            redis.thaw();
        });
        assert_eq!(ids(&redis), before);
        assert_eq!(nginx.count("connects"), number as u64);
        let used =
            connections(&redis).iter().filter(|client| field(client, "cmd") == "evalsha").count();
        assert_eq!(used, number, "all of them are used");
    }
}

#[test]
fn one_of_several_that_is_lost_costs_nobody_else_a_decision_and_is_made_again() {
    let redis = Redis::start();
    let table = format!("url = \"{}\", timeout = \"5s\", connections = 3", redis.url());
    let nginx = Nginx::start(&conf(&table));
    wait_until("they are made", SOON, || connections(&redis).len() == 3);
    for round in 1..=5 {
        assert!(nginx.client().get("/api").has_limit_headers());
        let id = field(&connections(&redis)[0], "id").to_owned();
        redis.command::<usize>(&format!("CLIENT KILL ID {id}"));
        // The others decide meanwhile.
        assert!(nginx.client().get("/api").has_limit_headers());
        wait_until("there are three again", SOON, || connections(&redis).len() == 3);
        assert_eq!(nginx.stat("redis"), "up");
        wait_until("it is counted", SOON, || nginx.count("connects") == 3 + round);
    }
    assert_eq!(nginx.log_lines("weir:"), Vec::<String>::new());
}

/// Another database, another user: another connection.
#[test]
fn configurations_that_differ_share_no_connection() {
    let redis = Redis::start();
    redis.command::<()>("ACL SETUSER other on >pw ~* +@all");
    let port = redis.port();
    let first = format!("url = \"redis://127.0.0.1:{port}/0\", timeout = \"5s\"");
    let nginx = Nginx::start(&conf(&first));
    assert_eq!(nginx.client().get("/api").number("RateLimit-Remaining"), 99_999);
    for (table, database, user) in [
        (format!("url = \"redis://127.0.0.1:{port}/3\", timeout = \"5s\""), "3", "default"),
        (
            format!(
                "url = \"redis://127.0.0.1:{port}\", database = 3, timeout = \"5s\", \
                 user = \"other\", password = \"pw\""
            ),
            "3",
            "other",
        ),
    ] {
        nginx.reload_and_wait(&conf(&table));
        assert!(nginx.client().get("/api").has_limit_headers());
        wait_until("the old ones are gone", SOON, || {
            connections(&redis)
                .iter()
                .all(|client| field(client, "db") == database && field(client, "user") == user)
        });
        assert_eq!(connections(&redis).len(), 1);
    }
    // Two in database 3, under one user and then the other; one in 0.
    assert_eq!(nginx.client().get("/api").number("RateLimit-Remaining"), 99_997);
}

#[test]
fn so_many_failures_in_a_row_open_the_breaker() {
    let redis = Redis::start();
    let nginx = |failures| {
        let breaker = format!("breaker = {{ failures = {failures} }}");
        let table = format!("url = \"{}\", timeout = \"100ms\", {breaker}", redis.url());
        let nginx = Nginx::start(&conf(&table));
        assert!(nginx.client().get("/api").has_limit_headers());
        nginx
    };
    let (hasty, patient) = (nginx(1), nginx(1_000));
    redis.freeze();
    let waited = |nginx: &Nginx| {
        let answer = nginx.client().get("/api");
        assert!(!answer.has_limit_headers());
        answer.elapsed
    };
    assert!(waited(&hasty) >= Duration::from_millis(90), "nobody knows yet");
    wait_until("one failure is enough", SOON, || hasty.stat("redis") == "down");
    assert_eq!(hasty.count("breaker_opened"), 1);
    assert!(waited(&hasty) < Duration::from_millis(50));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(700) {
        assert!(waited(&patient) >= Duration::from_millis(90), "each waits for itself");
    }
    assert_eq!(patient.count("breaker_opened"), 0);
    redis.thaw();
    for nginx in [&hasty, &patient] {
        wait_until("limits are back", SOON, || nginx.client().get("/api").has_limit_headers());
    }
}

#[test]
fn attempts_come_no_faster_than_the_breaker_says() {
    let absent = Redis::absent();
    let breaker = "breaker = { pause = \"200ms\", max_pause = \"400ms\" }";
    let nginx = Nginx::start(&conf(&format!("url = \"{}\", {breaker}", absent.url())));
    let begun = Instant::now();
    let attempts = || nginx.count("failed_attempts");
    wait_until("it has tried six times", Duration::from_secs(5), || attempts() >= 6);
    // At once, after 200 ms, and then every 400 ms, less at most a quarter.
    assert!(begun.elapsed() >= Duration::from_millis(1_000), "{:?}", begun.elapsed());
}

/// An attempt that nobody answered has taken its time already.
#[test]
fn a_pause_begins_with_the_attempt_before_it() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", silent.local_addr().expect("an address"));
    // Each attempt takes 250 ms, and none would be made for as long after it.
    let breaker = "timeout = \"50ms\", breaker = { pause = \"250ms\", max_pause = \"250ms\" }";
    let nginx = Nginx::start(&conf(&format!("url = \"{url}\", {breaker}")));
    let attempts = || nginx.count("failed_attempts");
    wait_until("the first has failed", SOON, || attempts() >= 1);
    let (begun, first) = (Instant::now(), attempts());
    wait_until("five more have failed", Duration::from_secs(5), || attempts() >= first + 5);
    assert!(begun.elapsed() < Duration::from_millis(1_900), "{:?}", begun.elapsed());
}
