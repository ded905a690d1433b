//! The example that `make run` starts: nginx/nginx.conf, on other ports.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use weir_tests::{Run, process};

#[test]
fn a_newcomer_sees_429_with_honest_headers_and_ctrl_c_stops_everything() {
    let mut run = Run::start("nginx.conf");
    let client = run.client();
    let answer = client.get("/api/hello");
    assert_eq!((answer.status, answer.body.as_str()), (200, "hello from the upstream\n"));
    assert_eq!(answer.number("RateLimit-Limit"), 100);
    for remaining in (0..5).rev() {
        assert_eq!(client.get("/login").number("RateLimit-Remaining"), remaining);
    }
    let refused = client.get("/login");
    assert_eq!(refused.status, 429);
    assert!((1..=10).contains(&refused.number("Retry-After")));
    assert_eq!(client.get("/files/large").number("RateLimit-Remaining"), 35);
    assert_eq!(client.get("/public/x").number("RateLimit-Limit"), 20);
    assert!(client.get("/weir/stats").body.contains("redis up\n"));
    assert!(!client.get("/").has_limit_headers());

    // Twice: one that is impatient leaves nothing behind either.
    process::signal(run.pid(), libc::SIGINT);
    run.stop();
    assert!(client.try_ask("GET", "/", &[]).is_err(), "nginx still answers");
    assert!(TcpStream::connect(("127.0.0.1", run.redis_port())).is_err(), "Redis runs");
}

/// A request that never ends must not keep nginx alive.
#[test]
fn ctrl_c_stops_an_nginx_that_still_has_a_request() {
    let mut run = Run::start("nginx.conf");
    let mut connection = TcpStream::connect(("127.0.0.1", run.port())).unwrap();
    let head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
    connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    connection.write_all(head.as_bytes()).unwrap();
    // nginx says 100 when it begins to wait for the body.
    connection.read_exact(&mut [0]).unwrap();
    run.stop();
    assert!(TcpStream::connect(("127.0.0.1", run.port())).is_err(), "nginx still listens");
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).expect("nginx is gone, and its connection");
}
