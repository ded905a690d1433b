//! What a request is in each protocol that nginx speaks to clients, and how
//! each is told of a refusal.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use weir_tests::wire::{self, Echo};
use weir_tests::{Conf, Http2, Nginx, Redis, Stream, process, wait_until};

/// What the policy `api` has charged to this client.
fn charged(redis: &Redis) -> usize {
    redis.command("ZCARD weir:{$remote_addr=127.0.0.1}:api:log:1h")
}

/// A server of this configuration, and a client that speaks HTTP/2 to it.
fn start_http2(conf: Conf) -> (Nginx, Http2) {
    let port = process::free_port();
    (Nginx::start(&conf.http2(port)), Http2::new(port))
}

/// Asserts that so many streams passed, each with a remaining of its own.
fn assert_each_counts(streams: &[Stream], limit: u64) {
    let passed: Vec<&Stream> = streams.iter().filter(|stream| stream.status == 200).collect();
    let remaining: BTreeSet<u64> =
        passed.iter().map(|stream| stream.number("ratelimit-remaining")).collect();
    assert_eq!(passed.len() as u64, limit);
    assert_eq!(remaining, (0..limit).collect());
    for refused in streams.iter().filter(|stream| stream.status != 200) {
        assert_eq!(refused.status, 429);
        assert_eq!(refused.number("ratelimit-remaining"), 0);
        assert!(refused.number("retry-after") > 3_500);
    }
}

#[test]
fn each_stream_of_an_http2_connection_is_a_request() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), "api = { limit = \"60/1h\" }").limited("/api", "api");
    let (nginx, client) = start_http2(conf);
    let streams = client.ask(&["--multiply=100"], &["/api"]);
    assert_eq!(streams.len(), 100);
    assert_each_counts(&streams, 60);
    assert_eq!(charged(&redis), 60);
    nginx.assert_calm_log();
}

#[test]
fn exactly_the_limit_passes_of_many_multiplexed_streams() {
    let redis = Redis::start();
    for algorithm in ["sliding-log", "compact-log", "sliding-counter", "token-bucket"] {
        let policy = format!("api = {{ limit = \"300/1h\", algorithm = \"{algorithm}\" }}");
        let conf = Conf::new(&redis.url(), &policy).limited("/api", "api");
        let (_nginx, client) = start_http2(conf);
        assert_eq!(client.load(1_000, "/api"), [300, 700, 0], "{algorithm}");
    }
}

#[test]
fn redirected_streams_of_one_connection_count_once_each() {
    let redis = Redis::start();
    let limited = "access_by_lua_block { require(\"resty.weir\").access(\"api\") }";
    let conf = Conf::new(&redis.url(), "api = { limit = \"60/1h\" }")
        .limited("/one", "api")
        .server(&format!("location /tries {{ {limited} try_files /none /one; }}"))
        .server("location /front { try_files /none /tries; }")
        .stats();
    let (nginx, client) = start_http2(conf);
    let streams = client.ask(&["--multiply=50"], &["/tries", "/front"]);
    assert_eq!(streams.len(), 100);
    assert_each_counts(&streams, 60);
    assert_eq!(charged(&redis), 60);
    // Those that were refused went no further.
    assert_eq!(nginx.count("decisions.internal"), 60);
}

/// Both are redirected before they are limited, so one that found the other's
/// record would not be counted; and the first is still running when the second
/// is decided, and redirected once more when the second has ended.
#[test]
fn two_streams_of_one_connection_never_share_a_record() {
    let redis = Redis::start();
    let limited = "access_by_lua_block { require(\"resty.weir\").access(\"api\") }";
    let wait_for = |what: &str| {
        format!(
            "local loaded = package.loaded \
             for _ = 1, 2000 do if loaded.{what} then break end ngx.sleep(0.005) end \
             assert(loaded.{what}, \"alone\")"
        )
    };
    let (slow, fast, ended) = (wait_for("slow"), wait_for("fast"), wait_for("ended"));
    let conf = Conf::new(&redis.url(), "api = { limit = \"9/1h\" }")
        .server("location /slow { try_files /none /inner/slow; }")
        .server("location /fast { try_files /none /inner/fast; }")
        .server(&format!(
            "location /inner/slow {{ {limited} content_by_lua_block {{ \
             package.loaded.slow = true {fast} {ended} ngx.exec(\"/inner/last\") }} }}"
        ))
        .server(&format!(
            "location /inner/fast {{ {limited} \
             content_by_lua_block {{ {slow} package.loaded.fast = true ngx.print(\"ok\") }} \
             log_by_lua_block {{ require(\"resty.weir\").log() package.loaded.ended = true }} }}"
        ))
        .limited("/inner/last", "api")
        .stats();
    let (nginx, client) = start_http2(conf);
    let streams = client.ask(&[], &["/slow", "/fast"]);
    let told = |stream: &Stream| (stream.status, stream.number("ratelimit-remaining"));
    let both: BTreeSet<(u16, u64)> = streams.iter().map(told).collect();
    assert_eq!(both, BTreeSet::from([(200, 8), (200, 7)]));
    assert_eq!(charged(&redis), 2);
    assert_eq!(nginx.count("decisions.internal"), 1);
}

/// A connection that is lost takes its streams along, and nobody else's answer.
#[test]
fn streams_that_go_away_while_they_wait_leave_others_their_own_answers() {
    for check_abort in ["off", "on"] {
        let redis = Redis::start();
        let policy = "api = { limit = \"100/1h\", key = \"$arg_k\", on_error = \"closed\" }";
        let conf = Conf::with_timeout("30s", &redis.url(), policy)
            .server(&format!("lua_check_client_abort {check_abort};"))
            .limited("/api", "api")
            .stats();
        let (nginx, client) = start_http2(conf);
        assert_eq!(client.get("/api?k=b").number("ratelimit-remaining"), 99);
        redis.freeze();
        let mut leaving =
            client.loading(50, "/api?k=a").stdout(Stdio::null()).spawn().expect("h2load starts");
        wait_until("all of them wait", Duration::from_secs(4), || nginx.count("waiting") == 50);
        process::end(&mut leaving, libc::SIGKILL);
        let first = std::thread::scope(|scope| {
            let first = scope.spawn(|| client.get("/api?k=b"));
            wait_until("one more waits", Duration::from_secs(4), || nginx.count("waiting") == 51);
            redis.thaw();
            first.join().unwrap()
        });
        let others = std::iter::repeat_with(|| client.get("/api?k=b"));
        for (stream, remaining) in std::iter::once(first).chain(others).zip((90..99).rev()) {
            assert_eq!((stream.status, stream.number("ratelimit-remaining")), (200, remaining));
        }
        wait_until("nobody waits", Duration::from_secs(4), || nginx.count("waiting") == 0);
        assert_eq!(nginx.count("decisions.error_closed"), 0);
        nginx.assert_calm_log();
    }
}

#[test]
fn each_request_of_a_connection_counts_pipelined_or_not() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), "api = { limit = \"8/1h\" }")
        .limited("/api", "api")
        .server("location /front { try_files /none /api; }")
        .server("add_header X-Connection $connection always;");
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    let kept: Vec<_> = ["/api", "/front", "/api", "/front"].map(|path| client.get(path)).into();
    for (answer, remaining) in kept.iter().zip((4..8).rev()) {
        assert_eq!((answer.status, answer.number("RateLimit-Remaining")), (200, remaining));
        assert_eq!(answer.header("X-Connection"), kept[0].header("X-Connection"));
    }
    let pipelined = [
        wire::request("GET", "/front", &[]),
        wire::request("GET", "/front", &[]),
        wire::request("GET", "/api", &[]).repeat(3),
        wire::request("GET", "/front", &["Connection: close"]),
    ];
    let answers = wire::exchange(nginx.port(), &pipelined.concat());
    assert_eq!(wire::statuses(&answers), [200, 200, 200, 200, 429, 429]);
    assert_eq!(wire::values(&answers, "RateLimit-Remaining"), ["3", "2", "1", "0", "0", "0"]);
    assert_eq!(BTreeSet::from_iter(wire::values(&answers, "X-Connection")).len(), 1);
}

const UPGRADE: [&str; 4] = [
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
];

fn upgrade(nginx: &Nginx) -> (TcpStream, String) {
    let mut stream = wire::connect(nginx.port());
    stream.write_all(wire::request("GET", "/ws", &UPGRADE).as_bytes()).unwrap();
    let head = wire::read_head(&mut stream).unwrap();
    (stream, head)
}

fn assert_echoes(stream: &mut TcpStream, text: &[u8]) {
    stream.write_all(text).unwrap();
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, text);
}

#[test]
fn a_websocket_counts_its_handshake_and_nothing_after_it() {
    let redis = Redis::start();
    let upstream = Echo::start();
    let conf = Conf::new(&redis.url(), "api = { limit = \"2/1h\" }").server(&format!(
        "location /ws {{ access_by_lua_block {{ require(\"resty.weir\").access(\"api\") }} \
         proxy_pass http://127.0.0.1:{}; proxy_http_version 1.1; \
         proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }}",
        upstream.port()
    ));
    let nginx = Nginx::start(&conf);
    let mut open = Vec::new();
    for remaining in ["1", "0"] {
        let (stream, head) = upgrade(&nginx);
        assert_eq!(wire::statuses(&head), [101], "{head}");
        assert_eq!(wire::values(&head, "RateLimit-Remaining"), [remaining]);
        open.push(stream);
    }
    let (_, head) = upgrade(&nginx);
    assert_eq!(wire::statuses(&head), [429], "{head}");
    assert_eq!(wire::values(&head, "Retry-After").len(), 1);
    assert_eq!(wire::values(&head, "Upgrade"), Vec::<&str>::new());
    assert_eq!(upstream.upgrades(), 2, "the upstream saw what was refused");
    // Those that are open go on over the limit, whatever they look like.
    for stream in &mut open {
        for text in [&b"\x81\x02hi"[..], b"GET /ws HTTP/1.1\r\nHost: x\r\n\r\n"] {
            assert_echoes(stream, text);
        }
    }
    assert_eq!(charged(&redis), 2);
    nginx.assert_calm_log();
}

/// A request of this content type with a body, as gRPC clients send it.
fn call(client: &Http2, path: &str, content_type: &str) -> Stream {
    let header = format!("--header=content-type: {content_type}");
    let body = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    client.ask(&[&header, "--header=te: trailers", "--data", body], &[path]).remove(0)
}

fn assert_trailers_only(stream: &Stream, content_type: &str, grpc_status: &str) {
    assert!(stream.is_headers_only(), "{stream:?}");
    assert_eq!(stream.status, 200);
    assert_eq!(stream.header("content-type"), Some(content_type));
    assert_eq!(stream.header("grpc-status"), Some(grpc_status));
    assert!(stream.header("grpc-message").is_some_and(|message| !message.is_empty()));
}

const GRPC: [&str; 5] = [
    "application/grpc",
    "application/grpc+proto",
    "application/grpc-web",
    "application/grpc-web+proto",
    "application/grpc-web-text",
];
const NOT_GRPC: [&str; 5] = [
    "application/grpcx",
    "application/grpc-webx",
    "application/grpc/x",
    "application/json",
    "text/application/grpc",
];

/// S03: what a gRPC client takes for a refusal, and not for an outage.
#[test]
fn a_grpc_call_over_the_limit_is_answered_in_grpc() {
    let redis = Redis::start();
    let policies = "api = { limit = \"1/1h\" }, other = { limit = \"1/1h\", grpc_status = 14 }";
    let conf = Conf::new(&redis.url(), policies).limited("/api", "api").limited("/other", "other");
    let (nginx, client) = start_http2(conf);
    for path in ["/api", "/other"] {
        assert_eq!(call(&client, path, "application/grpc").header("grpc-status"), None);
    }
    for content_type in GRPC {
        for (path, status) in [("/api", "8"), ("/other", "14")] {
            let refused = call(&client, path, content_type);
            assert_trailers_only(&refused, content_type, status);
            assert!(refused.number("retry-after") > 3_500);
            assert_eq!(refused.number("ratelimit-remaining"), 0);
        }
    }
    let refused = call(&client, "/api", "Application/gRPC; charset=utf-8");
    assert_trailers_only(&refused, "application/grpc", "8");
    for content_type in NOT_GRPC {
        let refused = call(&client, "/api", content_type);
        assert_eq!((refused.status, refused.header("grpc-status")), (429, None), "{content_type}");
        assert!(!refused.is_headers_only());
    }
    // gRPC is POST over HTTP/2, for the web POST. An answer of status 200 to
    // anything else is one that a cache might keep.
    let header = "--header=content-type: application/grpc";
    assert_eq!(client.ask(&[header], &["/api"])[0].status, 429);
    let plain = |method: &str, content_type| {
        nginx.client().ask(method, "/api", &[("Content-Type", content_type)]).status
    };
    assert_eq!(plain("POST", "application/grpc"), 429);
    assert_eq!(plain("GET", "application/grpc-web"), 429);
    assert_eq!(plain("POST", "application/grpc-web"), 200);
    nginx.assert_calm_log();
}

/// A refused call has the status 200, and is charged as the 429 that it means.
#[test]
fn a_refused_grpc_call_is_no_success_to_a_charge_list() {
    let redis = Redis::start();
    let policies = "api = { limit = \"9/1h\", charge = { 200 } }, one = { limit = \"1/1h\" }";
    let both = "local w = require(\"resty.weir\") w.access(\"api\") w.access(\"one\")";
    let conf = Conf::new(&redis.url(), policies)
        .server("log_by_lua_block { require(\"resty.weir\").log() }")
        .access("/both", both)
        .stats();
    let (nginx, client) = start_http2(conf);
    assert_eq!(call(&client, "/both", "application/grpc").header("grpc-status"), None);
    for count in 1..=2 {
        let refused = call(&client, "/both", "application/grpc");
        assert_trailers_only(&refused, "application/grpc", "8");
        nginx.wait_until_settled(count);
    }
    let used: usize = redis.command("ZCARD weir:{$remote_addr=127.0.0.1}:api:log:1h");
    assert_eq!(used, 1);
}

#[test]
fn a_grpc_call_that_nobody_can_decide_is_unavailable_where_on_error_is_closed() {
    let redis = Redis::absent();
    let policies = "api = { limit = \"1/1h\", on_error = \"closed\" }, \
        other = { limit = \"1/1h\", on_error = \"closed\", grpc_status = 9, error_status = 502 }, \
        open = { limit = \"1/1h\" }";
    let conf = ["api", "other", "open"]
        .iter()
        .fold(Conf::with_timeout("100ms", &redis.url(), policies), |conf, name| {
            conf.limited(&format!("/{name}"), name)
        });
    let (_nginx, client) = start_http2(conf);
    for content_type in GRPC {
        for path in ["/api", "/other"] {
            let failed = call(&client, path, content_type);
            assert_trailers_only(&failed, content_type, "14");
            assert_eq!(failed.number("retry-after"), 1);
        }
        assert_eq!(call(&client, "/open", content_type).header("grpc-status"), None);
    }
    for content_type in NOT_GRPC {
        for (path, status) in [("/api", 503), ("/other", 502), ("/open", 200)] {
            let answer = call(&client, path, content_type);
            assert_eq!((answer.status, answer.header("grpc-status")), (status, None));
        }
    }
}

#[test]
fn head_counts_like_get_and_has_its_headers_without_a_body() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), "api = { limit = \"4/1h\" }").limited("/api", "api");
    let (nginx, client) = start_http2(conf);
    let ask = |method| {
        let request = wire::request(method, "/api", &["Connection: close"]);
        let answer = wire::exchange(nginx.port(), &request);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    };
    for (remaining, refused) in [("3", false), ("1", false), ("0", true)] {
        let (head, body) = ask("HEAD");
        assert_eq!(wire::statuses(&head), [if refused { 429 } else { 200 }]);
        assert_eq!(wire::values(&head, "RateLimit-Remaining"), [remaining]);
        assert_eq!(wire::values(&head, "Retry-After").len(), usize::from(refused));
        assert_eq!(body, "");
        let (of_get, body) = ask("GET");
        assert!(!body.is_empty());
        let names = |head: &str| -> BTreeSet<String> {
            head.lines().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect()
        };
        // What says how a body comes is about a body that comes.
        let differ: Vec<String> =
            names(&head).symmetric_difference(&names(&of_get)).cloned().collect();
        assert!(differ.iter().all(|name| name == "Transfer-Encoding"), "{differ:?}");
    }
    let refused = client.ask(&["--header=:method: HEAD"], &["/api"]).remove(0);
    assert_eq!((refused.status, refused.is_headers_only()), (429, true));
    assert_eq!(charged(&redis), 4);
}

/// C40: a preflight costs nothing where the policy says so, and is told nothing.
#[test]
fn an_exempt_options_request_costs_nothing_and_else_it_counts() {
    let redis = Redis::start();
    let policies =
        "free = { limit = \"20/60s\", exempt = \"OPTIONS\" }, api = { limit = \"20/1h\" }";
    let conf = Conf::new(&redis.url(), policies).limited("/free", "free").limited("/api", "api");
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    for remaining in (0..20).rev() {
        let preflight = client.ask("OPTIONS", "/free", &[("Origin", "https://a.example")]);
        assert_eq!((preflight.status, preflight.has_limit_headers()), (200, false));
        let answer = client.get("/free");
        assert_eq!((answer.status, answer.number("RateLimit-Remaining")), (200, remaining));
        let counted = client.ask("OPTIONS", "/api", &[]);
        assert_eq!((counted.status, counted.number("RateLimit-Remaining")), (200, remaining));
    }
    assert_eq!(client.get("/free").status, 429);
    let preflight = client.ask("OPTIONS", "/free", &[]);
    assert_eq!((preflight.status, preflight.has_limit_headers()), (200, false));
    assert_eq!(client.ask("OPTIONS", "/api", &[]).status, 429);
    assert_eq!(client.get("/api").status, 429);
}

/// C40: without them a browser hides the refusal from the page that asked.
#[test]
fn a_refusal_keeps_the_servers_own_headers_and_lets_scripts_read_ours() {
    let redis = Redis::start();
    let policies = "open = { limit = \"1/1h\", expose = true }, shut = { limit = \"1/1h\" }";
    let conf = Conf::new(&redis.url(), policies)
        .server("add_header Access-Control-Allow-Origin https://a.example always;")
        .limited("/open", "open")
        .limited("/shut", "shut");
    let nginx = Nginx::start(&conf);
    for status in [200, 429] {
        for path in ["/open", "/shut"] {
            let answer = nginx.client().get(path);
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("https://a.example"));
            let exposed = answer.header("Access-Control-Expose-Headers").map(|names| {
                names.split(", ").map(str::to_ascii_lowercase).collect::<BTreeSet<String>>()
            });
            let names =
                ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "retry-after"];
            let ours = BTreeSet::from(names.map(str::to_owned));
            assert_eq!(exposed, (path == "/open").then_some(ours), "{path}");
        }
    }
}
