//! TLS: whoever cannot prove to be the right one is not spoken to, and nothing
//! that is meant to be encrypted ever goes in the clear.

use std::time::{Duration, Instant};

use weir_tests::sentinel_set::MASTER;
use weir_tests::tap::Tap;
use weir_tests::{Authority, Cluster, Conf, Nginx, Redis, SentinelSet, wait_until};

/// The timeout of 100 ms, and what is allowed on top.
const DEADLINE: Duration = Duration::from_millis(150);

/// Limits begin within this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// An nginx with these fields of `redis`.
fn start(redis: &str, timeout: &str) -> Nginx {
    let policies = "api = { limit = \"100/1h\" }, \
                    login = { limit = \"100/1h\", on_error = \"closed\" }";
    let conf = Conf::on(&format!("{redis}, timeout = \"{timeout}\""), policies);
    Nginx::start(&conf.limited("/api", "api").limited("/login", "login").stats())
}

/// Asserts that limits begin.
fn assert_limits(redis: &str) {
    let nginx = start(redis, "5s");
    let answer = nginx.client().get("/login");
    assert_eq!((answer.status, answer.has_limit_headers()), (200, true), "{}", nginx.error_log());
    assert_eq!(nginx.log_lines("weir:"), Vec::<String>::new());
    nginx.assert_calm_log();
}

/// Asserts that the policies decide, for this reason, told in one line.
fn assert_fails(redis: &str, reason: &str) {
    let nginx = start(redis, "100ms");
    let client = nginx.client();
    wait_until("the reason is told", PATIENCE, || !nginx.log_lines("weir: redis").is_empty());
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        let (open, closed) = (client.get("/api"), client.get("/login"));
        assert_eq!((open.status, open.has_limit_headers()), (200, false), "{redis}");
        assert_eq!((closed.status, closed.has_limit_headers()), (503, false), "{redis}");
        assert!(open.elapsed + closed.elapsed < 2 * DEADLINE, "{open:?}, {closed:?}");
    }
    let lines = nginx.log_lines("weir: redis");
    assert_eq!(lines.len(), 1, "{lines:?}");
    println!("{}", lines[0]);
    assert!(lines[0].to_lowercase().contains(&reason.to_lowercase()), "no {reason} in {lines:?}");
    nginx.assert_calm_log();
}

/// A server with a certificate for these names.
fn server(authority: &Authority, names: &[&str]) -> Redis {
    let mut redis = Redis::absent().with_tls(authority, &authority.sign(names));
    redis.launch();
    redis
}

/// What the client of these tests has been charged.
fn charged(redis: &Redis) -> usize {
    redis.command("ZCARD weir:{$remote_addr=127.0.0.1}:login:log:1h")
}

/// Fields for this server and this authority.
fn fields(redis: &Redis, authority: &Authority, more: &str) -> String {
    let (url, ca) = (redis.tls_address(), authority.file());
    format!("url = \"{url}\", tls = {{ ca_file = \"{}\", {more} }}", ca.display())
}

#[test]
fn a_server_that_a_private_authority_vouches_for_is_trusted() {
    let authority = Authority::new();
    let redis = server(&authority, &["127.0.0.1"]);
    assert_limits(&fields(&redis, &authority, ""));
    assert_eq!(charged(&redis), 1);
}

#[test]
fn one_that_another_authority_vouches_for_is_not() {
    let (authority, other) = (Authority::new(), Authority::new());
    let redis = server(&authority, &["127.0.0.1"]);
    assert_fails(&fields(&redis, &other, ""), "certificate");
    // Those that the system trusts do not vouch for it either.
    assert_fails(&format!("url = \"{}\"", redis.tls_address()), "certificate");
    assert_eq!(charged(&redis), 0);
}

#[test]
fn a_certificate_out_of_date_is_refused() {
    let authority = Authority::new();
    let expired = authority.sign_expired(&["127.0.0.1"]);
    let mut redis = Redis::absent().with_tls(&authority, &expired);
    redis.launch();
    assert_fails(&fields(&redis, &authority, ""), "expired");
    assert_fails(&fields(&redis, &authority, "server_name = \"127.0.0.1\""), "expired");
}

#[test]
fn a_certificate_of_another_name_is_refused_unless_that_name_is_meant() {
    let authority = Authority::new();
    let redis = server(&authority, &["redis.internal"]);
    assert_fails(&fields(&redis, &authority, ""), "name");
    assert_fails(&fields(&redis, &authority, "server_name = \"another.internal\""), "name");
    assert_limits(&fields(&redis, &authority, "server_name = \"redis.internal\""));
}

#[test]
fn verification_is_off_only_by_the_word_that_says_so() {
    let (authority, other) = (Authority::new(), Authority::new());
    let expired = authority.sign_expired(&["redis.internal"]);
    let mut redis = Redis::absent().with_tls(&authority, &expired);
    redis.launch();
    assert_fails(&fields(&redis, &other, "insecure_skip_verify = false"), "certificate");
    assert_limits(&fields(&redis, &other, "insecure_skip_verify = true"));
    let url = redis.tls_address();
    assert_limits(&format!("url = \"{url}\", tls = {{ insecure_skip_verify = true }}"));
}

#[test]
fn a_server_that_asks_for_a_certificate_is_shown_ours() {
    let authority = Authority::new();
    let certificate = authority.sign(&["127.0.0.1"]);
    let mut redis =
        Redis::absent().with_tls(&authority, &certificate).with(&["--tls-auth-clients", "yes"]);
    redis.launch();
    let client = |authority: &Authority| {
        let certificate = authority.sign(&["an-edge"]);
        format!(
            "cert_file = \"{}\", key_file = \"{}\"",
            certificate.file().display(),
            certificate.key_file().display()
        )
    };
    assert_fails(&fields(&redis, &authority, ""), "certificate");
    let stranger = Authority::new();
    assert_fails(&fields(&redis, &authority, &client(&stranger)), "alert");
    assert_limits(&fields(&redis, &authority, &client(&authority)));
}

/// Found out at the start, and not by the first connection.
#[test]
fn files_without_what_they_are_to_hold_stop_a_start() {
    let authority = Authority::new();
    let certificate = authority.sign(&["an-edge"]);
    let [cert, key] = [certificate.file(), certificate.key_file()].map(|file| file.display());
    for (tls, message) in [
        (format!("ca_file = \"{key}\""), "ca_file: ".to_owned() + &key.to_string()),
        ("ca_file = \"/no/such.pem\"".to_owned(), "ca_file: /no/such.pem: ".to_owned()),
        (
            format!("cert_file = \"{key}\", key_file = \"{key}\""),
            format!("cert_file: {key}: holds no certificate in PEM"),
        ),
        (
            format!("cert_file = \"{cert}\", key_file = \"{cert}\""),
            format!("key_file: {cert}: holds no private key in PEM"),
        ),
        ("server_name = \"a..b\"".to_owned(), "server_name: \"a..b\" is not".to_owned()),
    ] {
        let redis = format!("url = \"rediss://127.0.0.1\", tls = {{ {tls} }}");
        let log = Nginx::refuse(&Conf::on(&redis, "api = { limit = \"100/1h\" }"));
        assert!(log.contains(&format!("redis.tls.{message}")), "{message}: {log}");
    }
}

/// A typo in the scheme must not become a way around it.
#[test]
fn tls_and_plain_do_not_fall_back_to_each_other() {
    let authority = Authority::new();
    let redis = server(&authority, &["127.0.0.1"]);
    let accepted = redis.info("total_connections_received");
    let plain = format!("rediss://127.0.0.1:{}", redis.port());
    let ca = authority.file();
    assert_fails(&format!("url = \"{plain}\", tls = {{ ca_file = \"{}\" }}", ca.display()), "");
    let encrypted = redis.tls_address().replace("rediss://", "redis://");
    assert_fails(&format!("url = \"{encrypted}\""), "");
    assert!(redis.info("total_connections_received") > accepted, "nobody tried");
    assert_eq!(redis.calls("evalsha") + redis.calls("hello"), 0);
}

/// What goes by is not to be read by those who listen.
#[test]
fn nothing_is_in_the_clear() {
    let authority = Authority::new();
    let redis = server(&authority, &["127.0.0.1"]);
    let words = |heard: &[u8]| {
        ["HELLO", "EVALSHA", "weir:"]
            .into_iter()
            .filter(|word| heard.windows(word.len()).any(|bytes| bytes == word.as_bytes()))
            .count()
    };
    let tap = Tap::before(redis.port());
    assert_limits(&format!("url = \"redis://127.0.0.1:{}\"", tap.port()));
    assert_eq!(words(&tap.heard()), 3, "this is what would be heard");
    let tap = Tap::before(redis.tls_port());
    let (port, ca) = (tap.port(), authority.file());
    let tls = format!("tls = {{ ca_file = \"{}\" }}", ca.display());
    assert_limits(&format!("url = \"rediss://127.0.0.1:{port}\", {tls}"));
    let heard = tap.heard();
    assert!(heard.len() > 500, "{} bytes", heard.len());
    assert_eq!(words(&heard), 0);
}

#[test]
fn it_reaches_the_sentinels_and_the_servers_that_they_name() {
    let authority = Authority::new();
    let names: Vec<String> = (0..30).map(|host| format!("127.0.0.{host}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let certificate = authority.sign(&names);
    let encrypted = |redis: Redis| redis.with_tls(&authority, &certificate);
    let mut set = SentinelSet::start_as(false, encrypted, encrypted);
    let addresses: Vec<String> =
        set.sentinels.iter().map(|sentinel| format!("\"{}\"", sentinel.tls_address())).collect();
    let redis = format!(
        "sentinels = {{ {} }}, master = \"{MASTER}\", tls = {{ ca_file = \"{}\" }}",
        addresses.join(", "),
        authority.file().display()
    );
    assert_limits(&redis);
    let plain = format!("sentinels = {}, master = \"{MASTER}\"", set.addresses());
    assert_fails(&plain, "");
    set.servers[0].kill();
    set.wait_for_another_primary(0);
    assert_limits(&redis);
}

/// Neither is told a password, or anything else, before it has proved who it is.
#[test]
fn sentinels_and_their_servers_are_both_verified() {
    let (of_servers, of_sentinels) = (Authority::new(), Authority::new());
    let names: Vec<String> = (0..30).map(|host| format!("127.0.0.{host}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (server, sentinel) = (of_servers.sign(&names), of_sentinels.sign(&names));
    // The sentinels know both.
    let dir = tempfile::TempDir::new().expect("a directory");
    let both = dir.path().join("both.pem");
    let pem =
        [&of_servers, &of_sentinels].map(|authority| std::fs::read(authority.file()).unwrap());
    std::fs::write(&both, pem.concat()).unwrap();
    let both = both.display().to_string();
    let set = SentinelSet::start_as(
        false,
        |redis| redis.with_tls(&of_servers, &server),
        |redis| redis.with_tls(&of_sentinels, &sentinel).with(&["--tls-ca-cert-file", &both]),
    );
    let addresses: Vec<String> =
        set.sentinels.iter().map(|sentinel| format!("\"{}\"", sentinel.tls_address())).collect();
    let trusting = |file: &str| {
        format!(
            "sentinels = {{ {} }}, master = \"{MASTER}\", tls = {{ ca_file = \"{file}\" }}",
            addresses.join(", ")
        )
    };
    for (authority, spoken_to) in [(&of_servers, &set.sentinels), (&of_sentinels, &set.servers)] {
        let asked = ["role", "sentinel|masters", "sentinel"];
        let said = || -> u64 {
            let of_one =
                |redis: &Redis| asked.iter().map(|command| redis.calls(command)).sum::<u64>();
            spoken_to.iter().map(of_one).sum()
        };
        let before = said();
        assert_fails(&trusting(&authority.file().display().to_string()), "certificate");
        assert_eq!(said(), before, "it was asked all the same");
    }
    assert_limits(&trusting(&both));
}

#[test]
fn it_reaches_every_node_of_a_cluster() {
    let authority = Authority::new();
    let certificate = authority.sign(&["127.0.0.1"]);
    let cluster = Cluster::start_as(|node| {
        node.with_tls(&authority, &certificate).with(&["--tls-cluster", "yes"])
    });
    let redis = format!(
        "cluster = {{ \"{}\" }}, tls = {{ ca_file = \"{}\" }}",
        cluster.nodes[5].tls_address(),
        authority.file().display()
    );
    let policies = "api = { limit = \"2/1h\", on_error = \"closed\" }";
    let lua = "require(\"resty.weir\").access(\"api\", { key = ngx.var.arg_k })";
    let conf = Conf::on(&format!("{redis}, timeout = \"5s\""), policies);
    let nginx = Nginx::start(&conf.access("/api", lua).stats());
    let client = nginx.client();
    for node in 0..3 {
        for key in Cluster::keys_of(node, 3) {
            let statuses = [0; 3].map(|_| client.get(&format!("/api?k={key}")).status);
            assert_eq!(statuses, [200, 200, 429], "{key}");
        }
    }
    nginx.assert_calm_log();
}

#[test]
fn a_socket_and_a_user_with_a_password_do_without_it() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("permissions");
    let socket = dir.path().join("redis.sock");
    let path = socket.display().to_string();
    let mut redis = Redis::absent().with(&["--unixsocket", &path, "--unixsocketperm", "777"]);
    redis.launch();
    redis.command::<()>("ACL SETUSER edge on >pass:word@1 ~weir:* +@all");
    let url = format!("url = \"unix://{path}\"");
    assert_limits(&url);
    assert_limits(&format!("{url}, user = \"edge\", password = \"pass:word@1\""));
    assert_fails(&format!("{url}, user = \"edge\", password = \"pass:word@2\""), "WRONGPASS");
    let url = format!("url = \"{}\"", redis.address());
    assert_limits(&format!("{url}, user = \"edge\", password = \"pass:word@1\", database = 3"));
    let mut connection = redis.connect();
    redis::cmd("SELECT").arg(3).exec(&mut connection).expect("a database");
    let key = "weir:{$remote_addr=127.0.0.1}:login:log:1h";
    assert!(redis::cmd("EXISTS").arg(key).query::<bool>(&mut connection).expect("an answer"));
}

#[test]
fn a_key_that_is_not_the_certificates_stops_nginx_from_starting() {
    let authority = Authority::new();
    let (mine, other) = (authority.sign(&["weir"]), authority.sign(&["weir"]));
    let tls = format!(
        "url = \"rediss://127.0.0.1:1\", tls = {{ cert_file = \"{}\", key_file = \"{}\" }}",
        mine.file().display(),
        other.key_file().display()
    );
    let log = Nginx::refuse(&Conf::on(&tls, "api = { limit = \"1/1s\" }"));
    assert!(log.contains("weir: redis.tls.key_file: "), "{log}");
    assert!(log.contains("does not go with cert_file"), "{log}");
}
