//! The example that `make run` starts: nginx/nginx.conf, on other ports.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use weir_tests::{Client, process, wait_until};

#[test]
fn a_newcomer_sees_429_with_honest_headers_and_ctrl_c_stops_everything() {
    let top: PathBuf = [env!("CARGO_MANIFEST_DIR"), ".."].iter().collect();
    let dir = TempDir::new().unwrap();
    let (port, upstream) = (process::free_port(), process::free_port());
    for file in ["nginx.conf", "upstream.conf"] {
        let text = std::fs::read_to_string(top.join("nginx").join(file)).unwrap();
        let text = text
            .replace("8080", &port.to_string())
            .replace("127.0.0.1:8081", &format!("127.0.0.1:{upstream}"));
        std::fs::write(dir.path().join(file), text).unwrap();
    }
    let redis_port = process::free_port();
    let mut run = process::heed_ctrl_c(&mut Command::new(top.join("scripts/run.sh")))
        .env("CONF", dir.path().join("nginx.conf"))
        .env("REDIS_PORT", redis_port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("run.sh starts");
    let client = Client::new(port);
    wait_until("it answers", Duration::from_secs(20), || {
        client.try_ask("GET", "/", &[]).is_ok_and(|answer| answer.status == 200)
    });

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
    process::signal(run.id(), libc::SIGINT);
    process::end(&mut run, libc::SIGINT);
    assert!(client.try_ask("GET", "/", &[]).is_err(), "nginx still answers");
    assert!(std::net::TcpStream::connect(("127.0.0.1", redis_port)).is_err(), "Redis still runs");
}
