//! Each recipe of nginx/recipes, started as `make run CONF=...` starts it, keeps
//! what docs/recipes.md says of it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use weir_tests::{Answer, Client, Run, run, wait_until};

/// Clients of any address: a header names it.
const ANY_ADDRESS: &str = "set_real_ip_from 127.0.0.1; real_ip_header X-Test-Address;";

const GOLD: &str = "83d6e2b4c719";
const FREE: &str = "1f0c9a7e5b24";

fn from(address: &str) -> [(&'static str, &str); 1] {
    [("X-Test-Address", address)]
}

/// Asks this often; all must be answered with this status. Returns the last.
fn exhaust(client: &Client, path: &str, headers: &[(&str, &str)], times: u64) -> Answer {
    let mut last = None;
    for index in 0..times {
        let answer = client.get_with(path, headers);
        assert_ne!(answer.status, 429, "{} of {times}: {answer:?}", index + 1);
        last = Some(answer);
    }
    last.expect("at least one")
}

#[test]
fn every_recipe_has_a_test_and_a_section_in_the_guide() {
    let guide = run::directory().join("../docs/recipes.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let tests = include_str!("recipes.rs");
    let mut count = 0;
    for file in std::fs::read_dir(run::directory().join("recipes")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(guide.contains(&format!("\n## {name}\n")), "no section about {name}");
        assert!(tests.contains(&format!("\"recipes/{name}\"")), "no test of {name}");
        count += 1;
    }
    let is_section = |line: &&str| line.starts_with("## ") && line.ends_with(".conf");
    assert_eq!(guide.lines().filter(is_section).count(), count, "a section about no recipe");
}

#[test]
fn per_ip_counts_addresses_apart_and_shows_people_a_page() {
    let run = Run::start_with("recipes/per-ip.conf", ANY_ADDRESS, &[]);
    let client = run.client();
    let home = "2001:db8:1:2::1";
    let last = exhaust(&client, "/", &from(home), 60);
    assert_eq!((last.number("RateLimit-Limit"), last.number("RateLimit-Remaining")), (60, 0));

    let refused = client.get_with("/", &from("2001:db8:1:2:ffff::9"));
    assert_eq!(refused.status, 429, "the same /64");
    assert_eq!(refused.header("Content-Type"), Some("text/html"));
    assert!(refused.body.contains("<p>Please wait"), "{}", refused.body);
    assert!((50..=60).contains(&refused.number("Retry-After")));

    for other in ["2001:db8:1:3::1", "192.0.2.1", "192.0.2.2"] {
        assert_eq!(client.get_with("/", &from(other)).number("RateLimit-Remaining"), 59);
    }
    let asset = client.get_with("/assets/style.css", &from(home));
    assert_eq!((asset.status, asset.has_limit_headers()), (200, false));
}

#[test]
fn api_keys_have_their_plans_and_strangers_a_smaller_limit() {
    let conf = "recipes/api-keys.conf";
    let run = Run::start_with(conf, ANY_ADDRESS, &[("WEIR_SECRET", "0123456789abcdef")]);
    let client = run.client();
    let remaining = |key: &str, address: &str| {
        let answer = client.get_with("/", &[("X-Api-Key", key), ("X-Test-Address", address)]);
        (answer.number("RateLimit-Limit"), answer.number("RateLimit-Remaining"))
    };
    assert_eq!(remaining(GOLD, "192.0.2.1"), (600, 599));
    assert_eq!(remaining(GOLD, "192.0.2.2"), (600, 598), "wherever it comes from");
    assert_eq!(remaining(FREE, "192.0.2.2"), (60, 59));
    // Keys that do not exist are one client: their address.
    let shouted = GOLD.to_uppercase();
    for (index, invented) in ["", "invented", &shouted, "x83d6e2b4c719"].into_iter().enumerate() {
        assert_eq!(remaining(invented, "192.0.2.3"), (10, 9 - index as u64), "{invented}");
    }
    exhaust(&client, "/", &from("192.0.2.3"), 6);
    assert_eq!(client.get_with("/", &from("192.0.2.3")).status, 429);
    // A plan that a client claims is nothing.
    let claimed = client.get_with("/", &[("X-Api-Key", FREE), ("Plan", "gold")]);
    assert_eq!(claimed.number("RateLimit-Limit"), 60);

    let keys = redis_keys(&run);
    assert!(keys.iter().any(|key| key.contains("http_x_api_key")), "{keys:?}");
    assert!(!keys.iter().any(|key| key.contains(GOLD) || key.contains(FREE)), "{keys:?}");
}

fn redis_keys(run: &Run) -> Vec<String> {
    let redis = redis::Client::open(format!("redis://127.0.0.1:{}", run.redis_port())).unwrap();
    redis::cmd("KEYS").arg("*").query(&mut redis.get_connection().unwrap()).unwrap()
}

/// A login by curl, which can send a form; returns its status.
fn login(run: &Run, address: &str, form: &str, status: u16) -> u16 {
    let url = format!("http://127.0.0.1:{}/login?status={status}", run.port());
    let address = format!("X-Test-Address: {address}");
    let status = curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", &address, "-d", form, &url]);
    status.parse().expect("a status")
}

fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl").arg("-s").args(arguments).output().expect("curl runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn login_refuses_after_failures_by_address_and_by_account() {
    let run = Run::start_with("recipes/login.conf", ANY_ADDRESS, &[]);
    for attempt in 0..5 {
        let form = format!("username=user{attempt}&password=wrong");
        assert_eq!(login(&run, "192.0.2.1", &form, 401), 401, "attempt {attempt}");
    }
    assert_eq!(login(&run, "192.0.2.1", "username=other&password=right", 200), 429);
    assert_eq!(login(&run, "192.0.2.2", "username=other&password=right", 200), 200);

    // Who knows the password is not stopped, however often it is needed.
    for attempt in 0..20 {
        let status = login(&run, "192.0.2.3", "username=carol&password=right", 200);
        assert_eq!(status, 200, "attempt {attempt}");
        wait_until("it is given back", Duration::from_secs(5), || {
            !redis_keys(&run).iter().any(|key| key.contains("192.0.2.3") || key.contains("carol"))
        });
    }

    // One account, from everywhere.
    for attempt in 0..10 {
        let address = format!("198.51.100.{attempt}");
        let name = if attempt % 2 == 0 { "alice" } else { "ALICE" };
        assert_eq!(login(&run, &address, &format!("username={name}"), 401), 401, "{attempt}");
    }
    assert_eq!(login(&run, "203.0.113.1", "username=Alice&password=right", 200), 429);
    assert_eq!(login(&run, "203.0.113.1", "username=bob&password=right", 200), 200);

    // A name that could be another to the application is refused.
    let many = format!("username=bob{}&username=alice", "&x=1".repeat(100));
    let large = format!("username=bob&x={}", "x".repeat(9_000));
    let forms = [
        ("password=x", 400),
        ("username=", 400),
        ("username=bob&username=alice", 400),
        ("username=bob&+username=alice", 400),
        ("username=bob&username%00x=alice", 400),
        ("username=bob&username[]=alice", 400),
        ("username=bob&username_shown=alice", 200),
        ("{\"username\":\"alice\"}", 400),
        (&many, 400),
        (&large, 413),
    ];
    for (index, (form, status)) in forms.into_iter().enumerate() {
        assert_eq!(
            login(&run, &format!("203.0.113.{}", 10 + index), form, 200),
            status,
            "{form:.40}"
        );
    }
    // What is a form to us is one to the application: here are two names.
    let parts = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n&username=bob&\r\n\
                 --x\r\nContent-Disposition: form-data; name=\"username\"\r\n\r\nalice\r\n--x--";
    let json = "{\"a\":\"&username=bob&\",\"username\":\"alice\"}";
    let url = format!("http://127.0.0.1:{}/login", run.port());
    for (media, body) in [("multipart/form-data; boundary=x", parts), ("application/json", json)] {
        let media = format!("Content-Type: {media}");
        let address = "X-Test-Address: 203.0.113.99";
        let answer = curl(&["-i", "-H", address, "-H", &media, "--data-binary", body, &url]);
        assert!(
            answer.contains("X-Read-As: application/x-www-form-urlencoded\r\n"),
            "{media}: {answer}"
        );
    }
    // What the application may take for the same path is limited as well, and refused without
    // a form.
    for path in ["/login/", "/LOGIN", "/login.json", "/login;x"] {
        assert_eq!(run.client().get_with(path, &from("203.0.113.100")).status, 400, "{path}");
    }
    assert_eq!(run.client().get_with("/logins", &from("203.0.113.100")).status, 200);
    // Nothing else is limited.
    assert!(!run.client().get_with("/", &from("192.0.2.1")).has_limit_headers());
}

#[test]
fn login_is_closed_while_redis_is_away() {
    let run = Run::start_with("recipes/login.conf", ANY_ADDRESS, &[]);
    let redis = redis::Client::open(format!("redis://127.0.0.1:{}", run.redis_port())).unwrap();
    // It answers a SHUTDOWN by closing the connection.
    let _ = redis::cmd("SHUTDOWN").query::<()>(&mut redis.get_connection().unwrap());
    wait_until("Redis is gone", Duration::from_secs(5), || {
        TcpStream::connect(("127.0.0.1", run.redis_port())).is_err()
    });
    assert_eq!(login(&run, "192.0.2.1", "username=alice", 200), 503);
    assert_eq!(run.client().get("/").status, 200);
}

#[test]
fn several_limits_are_told_by_name_and_the_upstreams_are_not() {
    let run = Run::start("recipes/several-limits.conf");
    let client = run.client();
    let answer = client.get("/?limit=7");
    assert_eq!(
        answer.header("RateLimit-Policy"),
        Some("\"burst\";q=20;w=2, \"hour\";q=5000;w=3600, \"month\";q=100000")
    );
    let told = answer.header("RateLimit").unwrap();
    assert!(told.starts_with("\"burst\";r=19;t=1, \"hour\";r=4999;t=3600, \"month\";r=99999;t="));
    assert_eq!(answer.header("RateLimit-Limit"), None, "the upstream's own");
    let refused = (0..60).map(|_| client.get("/")).find(|answer| answer.status == 429).unwrap();
    assert_eq!(refused.number("Retry-After"), 1);
    assert!(refused.body.contains("\"violated-policies\":[\"burst\"]"), "{}", refused.body);
}

#[test]
fn websocket_connections_count_and_what_goes_through_them_does_not() {
    let run = Run::start("recipes/websocket.conf");
    for connect in 0..10 {
        let mut tunnel = BufReader::new(TcpStream::connect(("127.0.0.1", run.port())).unwrap());
        tunnel.get_ref().set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let upgrade = "GET /ws/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\
                       Upgrade: websocket\r\n\r\n";
        let head = ask(&mut tunnel, upgrade);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let remaining = format!("RateLimit-Remaining: {}\r\n", 9 - connect);
        assert!(head.contains(&remaining), "{remaining} {head}");
        // The stand-in speaks HTTP here too. It is past nginx's limits: those
        // would answer with their headers.
        for _ in 0..20 {
            let head = ask(&mut tunnel, "HEAD /ws/ HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(head.starts_with("HTTP/1.1 200 ") && !head.contains("RateLimit"), "{head}");
        }
    }
    assert_eq!(run.client().get("/ws/").status, 429);
    assert_eq!(run.client().get("/").status, 200);
}

/// Sends a request; returns the head of its answer.
fn ask(connection: &mut BufReader<TcpStream>, request: &str) -> String {
    connection.get_mut().write_all(request.as_bytes()).unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let length = connection.read_line(&mut head).expect("an answer in time");
        assert_ne!(length, 0, "closed after {head}");
    }
    head
}

#[test]
fn grpc_calls_are_refused_with_resource_exhausted() {
    let run = Run::start("recipes/grpc.conf");
    let url = format!("http://127.0.0.1:{}/shop.Orders/List", run.port());
    let call = || {
        curl(&[
            "--http2-prior-knowledge",
            "-D-",
            "-XPOST",
            "-Hcontent-type: application/grpc",
            "-Hte: trailers",
            &url,
        ])
    };
    for remaining in (0..100).rev() {
        let answer = call();
        assert!(answer.contains("grpc-status: 0\r\n"), "{answer}");
        assert!(answer.contains(&format!("ratelimit-remaining: {remaining}\r\n")), "{answer}");
    }
    let refused = call();
    assert!(refused.starts_with("HTTP/2 200 "), "{refused}");
    for header in ["content-type: application/grpc\r\n", "grpc-status: 8\r\n", "retry-after: "] {
        assert!(refused.contains(header), "{header}: {refused}");
    }
}

#[test]
fn behind_a_cdn_the_client_is_who_its_proxies_say() {
    let run = Run::start("recipes/behind-cdn.conf");
    let client = run.client();
    let remaining = |forwarded: &str| {
        client.get_with("/", &[("X-Forwarded-For", forwarded)]).number("RateLimit-Remaining")
    };
    assert_eq!(remaining("203.0.113.1"), 59);
    // Through the CDN and a balancer; what the client wrote itself is left of it.
    assert_eq!(remaining("203.0.113.1, 198.51.100.7, 10.0.0.9"), 58);
    assert_eq!(remaining("192.0.2.66, 203.0.113.1, 198.51.100.7"), 57);
    assert_eq!(remaining("10.0.0.5, 203.0.113.1"), 56, "no way to be exempt");
    assert_eq!(remaining("192.0.2.66"), 59, "somebody else");
    // Not even from a machine of the CDN.
    assert_eq!(remaining("10.0.0.5, 198.51.100.7"), 59);
    assert_eq!(remaining("10.0.0.5, 198.51.100.7"), 58);
    let check = client.get("/");
    assert_eq!((check.status, check.has_limit_headers()), (200, false), "a health check");
}

#[test]
fn a_dry_run_refuses_nobody_and_tells_those_within_and_the_log() {
    let run = Run::start_with("recipes/dry-run.conf", ANY_ADDRESS, &[]);
    let client = run.client();
    for request in 1..=100 {
        let answer = client.get_with("/", &from("10.1.2.3"));
        assert_eq!(answer.status, 200);
        assert_eq!(answer.number("RateLimit-Remaining"), 100 - request);
        let expected = if request <= 20 { "strict=allowed" } else { "strict=denied" };
        assert_eq!(answer.header("X-Dry-Run"), Some(expected));
    }
    assert_eq!(client.get_with("/", &from("10.1.2.3")).status, 429, "the loose one is enforced");
    assert_eq!(client.get_with("/", &from("192.0.2.1")).header("X-Dry-Run"), None);

    for line in [
        "10.1.2.3 \"GET / HTTP/1.1\" 200 policy=loose outcome=allowed remaining=80 source=redis \
         dry_run=strict=allowed\n",
        "10.1.2.3 \"GET / HTTP/1.1\" 200 policy=loose outcome=allowed remaining=79 source=redis \
         dry_run=strict=denied\n",
        "10.1.2.3 \"GET / HTTP/1.1\" 429 policy=loose outcome=denied remaining=0 source=redis \
         dry_run=strict=denied\n",
        "192.0.2.1 \"GET / HTTP/1.1\" 200 policy=loose outcome=allowed remaining=99 source=redis \
         dry_run=strict=allowed\n",
    ] {
        wait_until(line, Duration::from_secs(5), || run.stdout().contains(line));
    }
    let log = run.stderr();
    assert!(log.contains("policy strict would have refused 1 more"), "{log}");
    assert!(!log.contains("uninitialized"), "{log}");
}

#[test]
fn scripts_of_other_origins_read_refusals_and_preflights_are_free() {
    let run = Run::start("recipes/cors-api.conf");
    let client = run.client();
    let origin = [("Origin", "https://app.example.com")];
    for _ in 0..61 {
        let preflight = client.ask("OPTIONS", "/api/x", &origin);
        assert_eq!((preflight.status, preflight.has_limit_headers()), (200, false));
        assert_eq!(preflight.header("Access-Control-Allow-Methods"), Some("GET, POST"));
    }
    let last = exhaust(&client, "/api/x", &origin, 60);
    let refused = client.get_with("/api/x", &origin);
    assert_eq!((last.number("RateLimit-Remaining"), refused.status), (0, 429));
    for answer in [last, refused] {
        assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("https://app.example.com"));
        let exposed = answer.header("Access-Control-Expose-Headers").unwrap();
        for name in ["RateLimit-Remaining", "RateLimit-Reset", "Retry-After"] {
            assert!(exposed.contains(name), "{name}: {exposed}");
        }
    }
    let stranger = client.get_with("/api/x", &[("Origin", "https://evil.example")]);
    assert_eq!(stranger.header("Access-Control-Allow-Origin"), None);
}

#[test]
fn llm_tokens_are_estimated_before_the_answer() {
    let run = Run::start_with("recipes/llm-tokens.conf", ANY_ADDRESS, &[]);
    let client = run.client();
    let first = client.get_with("/v1/chat", &from("192.0.2.1"));
    assert_eq!((first.status, first.number("RateLimit-Remaining")), (200, 99_000));
    let url = format!("http://127.0.0.1:{}/v1/chat", run.port());
    for (bytes, remaining) in [(401, 98_899), (60_000, 82_899)] {
        let question = "x".repeat(bytes);
        let head = curl(&["-D-", "-HX-Test-Address: 192.0.2.2", "-d", &question, &url]);
        let expected = format!("RateLimit-Remaining: {remaining}\r\n");
        assert!(head.contains(&expected), "{bytes} bytes: {head}");
    }
}

/// Works once charges can be changed after the decision.
#[test]
fn llm_tokens_are_settled_by_what_the_upstream_says() {
    let run = Run::start_with("recipes/llm-tokens.conf", ANY_ADDRESS, &[]);
    let client = run.client();
    for (address, tokens, used) in [
        ("192.0.2.1", "?tokens=30", 30),
        ("192.0.2.2", "?tokens=5000", 5_000),
        ("192.0.2.3", "", 1_000),
    ] {
        assert_eq!(client.get_with(&format!("/v1/chat{tokens}"), &from(address)).status, 200);
        // The next estimate is taken from what is left, and given back in full.
        wait_until(address, Duration::from_secs(5), || {
            let next = client.get_with("/v1/chat?tokens=0", &from(address));
            next.number("RateLimit-Remaining") == 100_000 - used - 1_000
        });
    }
}
