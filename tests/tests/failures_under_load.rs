//! Promises 2 and 7 at 2,000 requests a second: whatever happens to a Redis, no
//! request waits longer than its deadline, soon none waits at all, and limits are
//! back within two seconds of it. A failure is as the policy says, told in a few
//! lines, and answered with few connections.

use std::io::Write as _;
use std::time::{Duration, Instant};

use redis::FromRedisValue;
use weir_tests::load::Stream;
use weir_tests::{Answers, Conf, Load, Network, Nginx, Proxy, Redis, process, wait_until};

/// The timeout of 100 ms, and 50 ms for whatever else an answer needs.
const DEADLINE: Duration = Duration::from_millis(150);

/// What needs no decision does not wait for one.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Limits are back within this time of Redis.
const RECOVERY: Duration = Duration::from_secs(2);

/// How long a failure is looked at once nobody waits for Redis any more.
const HELD: Duration = Duration::from_millis(1_200);

/// 2,000 requests a second need a decision. As many need none, and are due in the
/// same moments: they tell what this machine takes without a limiter.
const STREAMS: [Stream; 3] = [
    Stream { path: "/open", rate: 1_000 },
    Stream { path: "/closed", rate: 1_000 },
    Stream { path: "/plain", rate: 2_000 },
];

/// More than are due within the deadline, so that none waits for another.
const CONNECTIONS: usize = 600;

/// An nginx under load.
struct Scene {
    load: Load,
    nginx: Nginx,
    /// From when on nobody waits for Redis.
    waits_no_more: Option<Instant>,
}

/// What was seen of a failure.
struct Seen {
    nginx: Nginx,
    answers: Answers,
    waits_no_more: Option<Instant>,
    healing: Instant,
    healed: Instant,
    /// When limits were back, counted from `healed`.
    back: Duration,
}

/// What a failure may cost.
struct Most {
    /// Made or tried, from its beginning until limits are back.
    connections: u64,
    /// Of the log.
    lines: usize,
}

/// A failure of a second and a half. Pauses between attempts double from 50 ms to a
/// second, which makes six of them. The log tells of its beginning and its end, and
/// for each of the two policies what its requests met.
const ONE_FAILURE: Most = Most { connections: 10, lines: 8 };

impl Scene {
    fn at(url: &str) -> Self {
        let policies = "open = { limit = \"1000000/1h\" }, \
                        closed = { limit = \"1000000/1h\", on_error = \"closed\" }";
        let conf = Conf::with_timeout("100ms", url, policies)
            .limited("/open", "open")
            .limited("/closed", "closed")
            .stats();
        let nginx = Nginx::start(&conf);
        wait_until("it limits", RECOVERY, || nginx.client().get("/open").has_limit_headers());
        let load = Load::start(nginx.port(), CONNECTIONS, &STREAMS);
        wait_until("a quarter of a second of load", RECOVERY, || load.so_far().count() > 1_000);
        Self { load, nginx, waits_no_more: None }
    }

    /// Waits until requests no longer wait for Redis, and then watches.
    fn goes_down(&mut self) {
        wait_until("requests wait no more", RECOVERY, || self.nginx.stat("redis") == "down");
        self.waits_no_more = Some(Instant::now());
        self.goes_on_for(HELD);
    }

    fn goes_on_for(&self, span: Duration) {
        std::thread::sleep(span);
    }

    /// Makes Redis well, and watches what follows.
    fn heals(self, how: impl FnOnce()) -> Seen {
        let healing = Instant::now();
        how();
        let healed = Instant::now();
        let back = self.load.limited_after("/open", healed, RECOVERY);
        self.load.limited_after("/closed", healed, RECOVERY);
        self.goes_on_for(Duration::from_millis(400));
        let Self { load, nginx, waits_no_more } = self;
        Seen { nginx, answers: load.stop(), waits_no_more, healing, healed, back }
    }
}

impl Seen {
    /// What holds of every failure, which took so many connections; prints what was
    /// measured. Returns how many requests were not decided.
    fn assert_by_policy(&self, what: &str, connections: u64, most: &Most) -> usize {
        let limiting = self.answers.only(|asked| asked.path != "/plain");
        let undecided = limiting.only(|asked| !asked.limited);
        let lines = self.nginx.log_lines("weir:");
        say(&format!(
            "{what}: {} requests, {} of them by on_error; worst {:?}, p99.9 {:?}, {} later than \
             {DEADLINE:?}; without a limiter worst {:?}; limits back after {:?}; {connections} \
             connections; {} lines",
            limiting.count(),
            undecided.count(),
            limiting.worst(),
            limiting.quantile(0.999),
            limiting.later_than(DEADLINE),
            self.answers.to("/plain").worst(),
            self.back,
            lines.len(),
        ));
        self.assert_statuses();
        assert_on_time(&limiting, DEADLINE);
        assert_on_time(&self.answers.to("/plain"), AT_ONCE);
        assert!(connections <= most.connections, "{connections}, at most {}", most.connections);
        assert!(lines.len() <= most.lines, "{lines:#?}");
        self.nginx.assert_calm_log();
        self.assert_limits_stay();
        undecided.count()
    }

    /// A decision, or what `on_error` says, and nothing else.
    fn assert_statuses(&self) {
        for asked in self.answers.iter() {
            let expected = match (asked.path, asked.limited) {
                ("/closed", false) => 503,
                ("/plain", limited) => {
                    assert!(!limited);
                    200
                }
                _ => 200,
            };
            assert_eq!(asked.status, expected, "{asked:?}");
        }
    }

    /// All but one in a hundred: a machine may stall for longer than a timeout.
    fn assert_limits_stay(&self) {
        let after = self.answers.since(self.healed + self.back + Duration::from_millis(100));
        let limiting = after.only(|asked| asked.path != "/plain");
        assert!(limiting.count() > 200, "{}", limiting.count());
        let undecided = limiting.count() - limiting.limited();
        assert!(undecided <= limiting.count() / 100, "{undecided} of {}", limiting.count());
    }

    /// While nobody waited for Redis no request was decided, and p99 was within a
    /// millisecond of what the same moments took without a limiter.
    fn assert_as_fast_as_without_a_limiter(&self, what: &str) {
        let since = self.waits_no_more.expect("it was down");
        let phase = self.answers.since(since).before(self.healing);
        let p99 = |path| phase.to(path).quantile(0.99);
        let [open, closed, plain] = ["/open", "/closed", "/plain"].map(p99);
        say(&format!("{what}: nobody waits: p99 {open:?}, {closed:?}, without limiter {plain:?}"));
        assert_eq!(phase.limited(), 0);
        assert!(phase.to("/open").count() > 900, "{}", phase.to("/open").count());
        let allowed = plain + Duration::from_millis(1);
        assert!(open <= allowed && closed <= allowed, "{open:?}, {closed:?}, {plain:?}");
    }
}

/// All but one in a thousand, counted since they were sent: a machine may stall any
/// single answer, or the load before it reads it.
fn assert_on_time(answers: &Answers, limit: Duration) {
    let late = answers.later_than(limit);
    let worst = answers.worst();
    assert!(
        late <= answers.count() / 1_000,
        "{late} of {} took longer than {limit:?}, the worst {worst:?}",
        answers.count()
    );
}

/// What others do on this machine is not measured. nginx, Redis and the load stay
/// equals.
fn on_a_machine_of_its_own() {
    if !process::goes_first() {
        say("not allowed to go first on this machine: other work on it is measured too");
    }
}

/// Prints what was measured, also when the test passes.
fn say(line: &str) {
    writeln!(std::io::stderr(), "    {line}").expect("stderr");
}

/// A connection from before the failure, which outlives it.
struct Admin(redis::Connection);

impl Admin {
    fn of(redis: &Redis) -> Self {
        Self(redis.connect())
    }

    fn run<T: FromRedisValue>(&mut self, command: &str) -> T {
        let words: Vec<&str> = command.split(' ').collect();
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.0).expect(command)
    }

    /// How many connections Redis has accepted so far.
    fn connections(&mut self) -> u64 {
        let info: String = self.run("INFO stats");
        let count = |line: &str| line.strip_prefix("total_connections_received:")?.parse().ok();
        info.lines().find_map(count).expect("a number")
    }
}

#[test]
fn stopped_and_continued() {
    on_a_machine_of_its_own();
    let redis = Redis::start();
    let mut admin = Admin::of(&redis);
    let mut scene = Scene::at(&redis.url());
    let before = admin.connections();
    redis.freeze();
    scene.goes_down();
    let seen = scene.heals(|| redis.thaw());
    seen.assert_by_policy("stopped", admin.connections() - before, &ONE_FAILURE);
    seen.assert_as_fast_as_without_a_limiter("stopped");
}

/// Counted by a proxy, which hangs up while there is no Redis.
#[test]
fn killed_and_restarted_empty() {
    on_a_machine_of_its_own();
    let mut redis = Redis::start();
    let proxy = Proxy::to(redis.port());
    let mut scene = Scene::at(&proxy.url());
    let before = proxy.accepted();
    redis.kill();
    scene.goes_down();
    let seen = scene.heals(|| redis.launch());
    let connections = (proxy.accepted() - before) as u64;
    seen.assert_by_policy("killed", connections, &ONE_FAILURE);
    seen.assert_as_fast_as_without_a_limiter("killed");
}

#[test]
fn its_clients_killed_again_and_again() {
    const KILLS: u64 = 10;
    on_a_machine_of_its_own();
    let redis = Redis::start();
    let mut admin = Admin::of(&redis);
    let scene = Scene::at(&redis.url());
    let before = admin.connections();
    for _ in 0..KILLS {
        admin.run::<u64>("CLIENT KILL TYPE normal");
        scene.goes_on_for(Duration::from_millis(100));
    }
    let seen = scene.heals(|| ());
    let connections = admin.connections() - before;
    assert!(connections >= KILLS, "{connections}: the kills met nobody");
    // Each is lost and back at once, and need not cost anybody a decision.
    let most = Most { connections: KILLS + 1, lines: 4 + 2 * KILLS as usize };
    seen.assert_by_policy("clients killed", connections, &most);
}

#[test]
fn asleep_for_half_a_second() {
    on_a_machine_of_its_own();
    let redis = Redis::start_with_debug();
    let mut admin = Admin::of(&redis);
    let scene = Scene::at(&redis.url());
    let before = admin.connections();
    admin.run::<()>("DEBUG SLEEP 0.5");
    let seen = scene.heals(|| ());
    let connections = admin.connections() - before;
    assert!(seen.assert_by_policy("asleep", connections, &ONE_FAILURE) > 0);
}

#[test]
fn out_of_memory_and_given_more() {
    on_a_machine_of_its_own();
    let redis = Redis::start();
    let mut admin = Admin::of(&redis);
    let scene = Scene::at(&redis.url());
    let before = admin.connections();
    admin.run::<()>("CONFIG SET maxmemory 1");
    scene.goes_on_for(HELD);
    let seen = scene.heals(|| admin.run("CONFIG SET maxmemory 0"));
    let connections = admin.connections() - before;
    assert!(seen.assert_by_policy("out of memory", connections, &ONE_FAILURE) > 0);
}

#[test]
fn its_password_changed_and_changed_back() {
    on_a_machine_of_its_own();
    let redis = Redis::start();
    let mut admin = Admin::of(&redis);
    let mut scene = Scene::at(&redis.url());
    let before = admin.connections();
    admin.run::<()>("CONFIG SET requirepass other");
    admin.run::<u64>("CLIENT KILL TYPE normal");
    scene.goes_down();
    let seen = scene.heals(|| admin.run("CONFIG SET requirepass "));
    seen.assert_by_policy("password changed", admin.connections() - before, &ONE_FAILURE);
    seen.assert_as_fast_as_without_a_limiter("password changed");
}

#[test]
fn behind_a_link_that_loses_every_packet() {
    on_a_machine_of_its_own();
    let network = Network::start();
    let redis = Redis::start_in(&network);
    let mut scene = Scene::at(&redis.url());
    let before = network.asked_to_connect();
    network.drop_all();
    scene.goes_down();
    let seen = scene.heals(|| network.heal());
    let connections = network.asked_to_connect() - before;
    seen.assert_by_policy("every packet lost", connections, &ONE_FAILURE);
    seen.assert_as_fast_as_without_a_limiter("every packet lost");
}

#[test]
fn behind_a_link_that_loses_one_packet_in_ten() {
    on_a_machine_of_its_own();
    let network = Network::start();
    let redis = Redis::start_in(&network);
    let scene = Scene::at(&redis.url());
    let before = network.asked_to_connect();
    if let Err(reason) = network.drop_share(0.1) {
        say(&format!("NOT TESTED: a link that loses one packet in ten; this kernel: {reason}"));
        return;
    }
    scene.goes_on_for(Duration::from_secs(5));
    let seen = scene.heals(|| network.heal());
    let connections = network.asked_to_connect() - before;
    // A lost packet is noticed a timeout later, so a connection lives for 100 ms or
    // more: at most ten a second, and what is lost of their beginnings.
    let most = Most { connections: 60, ..ONE_FAILURE };
    assert!(seen.assert_by_policy("one packet in ten lost", connections, &most) > 0);
}

/// No failure: everything is decided, in a round trip and no more than it needs.
#[test]
fn twenty_milliseconds_away() {
    on_a_machine_of_its_own();
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port());
    proxy.set_round_trip(Duration::from_millis(20));
    let scene = Scene::at(&proxy.url());
    scene.goes_on_for(HELD);
    let Scene { load, nginx, .. } = scene;
    let answers = load.stop();
    let limiting = answers.only(|asked| asked.path != "/plain");
    say(&format!(
        "20 ms away: {} requests; p50 {:?}, p99 {:?}, worst {:?}",
        limiting.count(),
        limiting.quantile(0.5),
        limiting.quantile(0.99),
        limiting.worst()
    ));
    assert_eq!(limiting.statuses().into_keys().collect::<Vec<_>>(), [200]);
    assert_eq!(limiting.limited(), limiting.count(), "all are decided");
    // With one call under way at a time half of them would wait for two.
    assert!(limiting.quantile(0.5) < Duration::from_millis(25));
    assert_on_time(&limiting, DEADLINE);
    assert_eq!(nginx.count("decisions.error_open") + nginx.count("decisions.error_closed"), 0);
    assert_eq!(nginx.log_lines("weir:"), Vec::<String>::new());
    assert_eq!(proxy.accepted(), 1);
}
