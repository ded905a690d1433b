//! Which servers there are, and how they are reached.

use super::*;

mod tls;

const KNOWN: &str = "url, sentinels, master, cluster, user, password, database, sentinel_user, \
                     sentinel_password, tls, connections, breaker, timeout, queue, prefix";

/// A configuration with this `redis` table, and nothing else of note.
fn with<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let policies = table([("api", table([("limit", text("1/s"))]))]);
    table([("redis", table(fields)), ("policies", policies)])
}

fn valid<const N: usize>(fields: [(&str, Value); N]) -> RedisConfig {
    check(with(fields)).expect("valid").redis.expect("a redis")
}

fn addresses<const N: usize>(addresses: [&str; N]) -> Value {
    Value::List(addresses.map(text).into())
}

fn number(number: f64) -> Value {
    Value::Number(number)
}

fn url() -> (&'static str, Value) {
    ("url", text("redis://localhost"))
}

fn sentinels() -> (&'static str, Value) {
    ("sentinels", addresses(["redis://10.0.0.1:26379", "redis://10.0.0.2"]))
}

fn master() -> (&'static str, Value) {
    ("master", text("mymaster"))
}

fn cluster() -> (&'static str, Value) {
    ("cluster", addresses(["redis://10.0.0.1", "redis://[2001:db8::1]:7000"]))
}

fn assert_refused<const N: usize>(cases: [(Value, &str); N]) {
    for (config, message) in cases {
        assert_eq!(refusal(config), message);
    }
}

#[test]
fn a_single_server_has_its_login_and_database_in_its_address_or_beside_it() {
    let single = |url: &str| Deployment::Single { url: SecretString::new(url) };
    let plain = valid([("url", text("redis://me:pw@localhost/7"))]);
    assert_eq!(plain.deployment, single("redis://me:pw@localhost/7"));
    assert_eq!((plain.user, plain.password, plain.database), (None, None, None));
    for address in [
        "redis://localhost",
        "redis://localhost/",
        "rediss://[::1]:6380",
        "unix:///run/me@home/redis.sock",
        "redis+unix:///run/redis.sock?protocol=resp3",
    ] {
        let beside = valid([
            ("url", text(address)),
            ("user", text("weir")),
            ("password", text("pw")),
            ("database", number(0.0)),
        ]);
        assert_eq!(beside.deployment, single(address));
        assert_eq!(beside.user.as_deref(), Some("weir"));
        assert_eq!(beside.password, Some(SecretString::new("pw")));
        assert_eq!(beside.database, Some(0));
    }
}

#[test]
fn sentinels_have_a_login_of_their_own() {
    let redis = valid([
        sentinels(),
        master(),
        ("sentinel_user", text("watch")),
        ("sentinel_password", text("pw of sentinels")),
        ("password", text("pw of servers")),
        ("database", number(1_000_000.0)),
    ]);
    let expected = Deployment::Sentinel {
        sentinels: vec!["redis://10.0.0.1:26379".to_owned(), "redis://10.0.0.2".to_owned()],
        master: "mymaster".to_owned(),
        user: Some("watch".to_owned()),
        password: Some(SecretString::new("pw of sentinels")),
    };
    assert_eq!(redis.deployment, expected);
    assert_eq!((redis.user, redis.database), (None, Some(1_000_000)));
    assert_eq!(redis.password, Some(SecretString::new("pw of servers")));
}

#[test]
fn a_cluster_is_any_of_its_nodes() {
    let redis = valid([cluster(), ("user", text("weir")), ("password", text("pw"))]);
    let nodes = vec!["redis://10.0.0.1".to_owned(), "redis://[2001:db8::1]:7000".to_owned()];
    assert_eq!(redis.deployment, Deployment::Cluster { nodes });
    assert_eq!((redis.user.as_deref(), redis.database), (Some("weir"), None));
}

#[test]
fn connections_and_breaker_are_taken_at_the_ends_of_their_ranges() {
    let redis = valid([url()]);
    assert_eq!((redis.connections, &redis.breaker), (1, &Breaker::default()));
    let expected = (3, Duration::from_millis(50), Duration::from_secs(1));
    let Breaker { failures, pause, max_pause } = redis.breaker;
    assert_eq!((failures, pause, max_pause), expected);

    let breaker = |breaker| valid([url(), ("breaker", breaker), ("connections", number(32.0))]);
    let least = breaker(table([
        ("failures", number(1.0)),
        ("pause", text("1ms")),
        ("max_pause", text("1ms")),
    ]));
    let ms = Duration::from_millis(1);
    assert_eq!(least.breaker, Breaker { failures: 1, pause: ms, max_pause: ms });
    assert_eq!(least.connections, 32);
    let most = breaker(table([("failures", number(1000.0)), ("pause", text("60s"))]));
    let minute = Duration::from_secs(60);
    // A first pause above the longest is the longest.
    assert_eq!(most.breaker, Breaker { failures: 1000, pause: minute, max_pause: minute });
}

#[test]
fn a_wrong_number_span_or_name_is_refused() {
    assert_refused([
        (
            with([url(), ("timeout", text("100"))]),
            "redis.timeout: \"100\": the unit must be one of ms, s, m, h, d",
        ),
        (with([url(), ("timeout", text("0ms"))]), "redis.timeout: must be from 1ms to 60s"),
        (with([url(), ("timeout", text("2m"))]), "redis.timeout: must be from 1ms to 60s"),
        (
            with([url(), ("queue", number(0.0))]),
            "redis.queue: 0: must be a whole number from 1 to 1000000",
        ),
        (
            with([url(), ("prefix", text("a:b"))]),
            "redis.prefix: must be 1 to 64 letters, digits, \"_\", \"-\" or \".\"",
        ),
        (
            with([url(), ("connections", number(0.0))]),
            "redis.connections: 0: must be a whole number from 1 to 32",
        ),
        (
            with([url(), ("connections", number(33.0))]),
            "redis.connections: 33: must be a whole number from 1 to 32",
        ),
        (
            with([url(), ("database", number(-1.0))]),
            "redis.database: -1: must be a whole number from 0 to 1000000",
        ),
        (
            with([url(), ("database", number(1_000_001.0))]),
            "redis.database: 1000001: must be a whole number from 0 to 1000000",
        ),
        (
            with([url(), ("breaker", number(3.0))]),
            "redis.breaker: must be a table of named fields, not a number",
        ),
        (
            with([url(), ("breaker", table([("failures", number(0.0))]))]),
            "redis.breaker.failures: 0: must be a whole number from 1 to 1000",
        ),
        (
            with([url(), ("breaker", table([("failures", number(1001.0))]))]),
            "redis.breaker.failures: 1001: must be a whole number from 1 to 1000",
        ),
        (
            with([url(), ("breaker", table([("pause", text("0ms"))]))]),
            "redis.breaker.pause: must be from 1ms to 60s",
        ),
        (
            with([url(), ("breaker", table([("pause", text("fast"))]))]),
            "redis.breaker.pause: \"fast\": the unit must be one of ms, s, m, h, d",
        ),
        (
            with([url(), ("breaker", table([("pause", text("61s"))]))]),
            "redis.breaker.pause: must be from 1ms to 60s",
        ),
        (
            with([url(), ("breaker", table([("max_pause", text("49ms"))]))]),
            "redis.breaker.max_pause: must be from 50ms to 60s",
        ),
        (
            with([
                url(),
                ("breaker", table([("pause", text("2s")), ("max_pause", text("1999ms"))])),
            ]),
            "redis.breaker.max_pause: must be from 2s to 60s",
        ),
        (
            with([url(), ("breaker", table([("max_pause", text("2m"))]))]),
            "redis.breaker.max_pause: must be from 50ms to 60s",
        ),
        (
            with([url(), ("breaker", table([("fails", number(3.0))]))]),
            "redis.breaker.fails: unknown field; known here are failures, pause, max_pause",
        ),
    ]);
    let unknown = format!("redis.pool: unknown field; known here are {KNOWN}");
    assert_eq!(refusal(with([url(), ("pool", text("x"))])), unknown);
}

#[test]
fn there_is_one_way_to_find_the_servers() {
    assert_refused([
        (
            with([]),
            "redis.url: missing; it must be a string like \"redis://127.0.0.1:6379/0\", where \
             there is neither sentinels nor cluster",
        ),
        (with([url(), sentinels(), master()]), "redis.sentinels: cannot stand beside url"),
        (with([url(), cluster()]), "redis.cluster: cannot stand beside url"),
        (with([sentinels(), cluster()]), "redis.cluster: cannot stand beside sentinels"),
        (with([url(), master()]), "redis.master: is for sentinels alone"),
        (
            with([url(), ("sentinel_user", text("me"))]),
            "redis.sentinel_user: is for sentinels alone",
        ),
        (
            with([cluster(), ("sentinel_password", text("pw"))]),
            "redis.sentinel_password: is for sentinels alone",
        ),
        (
            with([sentinels()]),
            "redis.master: missing; it must be the name that the sentinels have for the primary, \
             as \"mymaster\"",
        ),
        (with([sentinels(), ("master", text(""))]), "redis.master: is empty"),
    ]);
}

#[test]
fn a_login_is_whole_and_stands_in_one_place() {
    let (user, password) = (|| ("user", text("me")), || ("password", text("pw")));
    let with_login = || ("url", text("redis://me:pw@localhost"));
    assert_refused([
        (with([url(), user()]), "redis.password: missing; it must be the password of user"),
        (with([url(), ("user", text("")), password()]), "redis.user: is empty"),
        (
            with([sentinels(), master(), ("sentinel_user", text("me"))]),
            "redis.sentinel_password: missing; it must be the password of sentinel_user",
        ),
        (
            with([with_login(), user(), password()]),
            "redis.user: cannot stand beside a url that has a user or a password",
        ),
        (
            with([("url", text("redis://:pw@localhost")), password()]),
            "redis.password: cannot stand beside a url that has a user or a password",
        ),
        (
            with([("url", text("unix:///run/redis.sock?db=1&pass=pw")), password()]),
            "redis.password: cannot stand beside a url that has a user or a password",
        ),
        (
            with([("url", text("unix:///run/redis.sock?user=me")), password()]),
            "redis.password: cannot stand beside a url that has a user or a password",
        ),
        (
            with([("url", text("redis://localhost/0")), ("database", number(0.0))]),
            "redis.database: cannot stand beside a url that has one",
        ),
        (
            with([("url", text("unix:///run/redis.sock?db=1")), ("database", number(0.0))]),
            "redis.database: cannot stand beside a url that has one",
        ),
        (
            with([cluster(), ("database", number(0.0))]),
            "redis.database: cannot stand beside cluster, which has database 0 alone",
        ),
    ]);
}

#[test]
fn a_wrong_address_in_a_list_is_refused_by_its_place() {
    let of = |list| with([("sentinels", list), master()]);
    let nodes = |list| with([("cluster", list)]);
    assert_refused([
        (
            of(text("redis://a")),
            "redis.sentinels: must be a list of addresses, as { \"redis://10.0.0.1:26379\" }, \
             not a string",
        ),
        (
            nodes(table([])),
            "redis.cluster: must be a list of addresses, as { \"redis://10.0.0.1:6379\" }, \
             not an empty table",
        ),
        (
            of(Value::List(vec![text("redis://a"), number(26379.0)])),
            "redis.sentinels[2]: must be a string, not a number",
        ),
        (
            of(addresses(["redis://a", "b:26379"])),
            "redis.sentinels[2]: must begin with redis:// or rediss://",
        ),
        (
            nodes(addresses(["unix:///run/redis.sock"])),
            "redis.cluster[1]: must begin with redis:// or rediss://",
        ),
        (
            of(addresses(["redis://a", "redis://:hunter2@b"])),
            "redis.sentinels[2]: must have no user or password; they are sentinel_user and \
             sentinel_password",
        ),
        (
            nodes(addresses(["redis://me:hunter/2@a"])),
            "redis.cluster[1]: must have no user or password; they are user and password",
        ),
        (nodes(addresses(["redis://a/0"])), "redis.cluster[1]: must have no database"),
        (
            of(addresses(["redis://a", "redis://b", "rediss://c"])),
            "redis.sentinels[3]: must begin as sentinels[1] does: TLS and plain are never mixed",
        ),
        (
            nodes(addresses(["rediss://a", "redis://b"])),
            "redis.cluster[2]: must begin as cluster[1] does: TLS and plain are never mixed",
        ),
    ]);
}
