//! Promise 8: a worker's memory does not grow with its requests.

use std::process::Command;

use weir_tests::{Conf, Nginx, Redis, process};

/// Sends requests until the worker has decided this many.
fn decide(nginx: &Nginx, path: &str, decisions: u64) {
    while decided(nginx) < decisions {
        let url = format!("http://127.0.0.1:{}{path}", nginx.port());
        let status = Command::new("wrk")
            .args(["-t", "1", "-c", "64", "-d", "1", &url])
            .stdout(std::process::Stdio::null())
            .status()
            .expect("wrk runs");
        assert!(status.success());
    }
}

fn decided(nginx: &Nginx) -> u64 {
    nginx.count("decisions.allowed") + nginx.count("decisions.denied")
}

fn resident_kb(pid: u32) -> u64 {
    process::status(pid, "VmRSS").trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn three_hundred_thousand_requests_leave_a_worker_as_large_as_fifty_thousand() {
    let redis = Redis::start();
    let policies = "api = { limit = \"1000/100ms\", on_error = \"closed\" }";
    let conf = Conf::new(&redis.url(), policies)
        .access("/api", "require(\"resty.weir\").access(\"api\", { key = ngx.var.connection })")
        .stats();
    let nginx = Nginx::start(&conf);
    let worker = nginx.workers()[0];
    decide(&nginx, "/api", 50_000);
    let mut sizes = vec![resident_kb(worker)];
    while decided(&nginx) < 300_000 {
        decide(&nginx, "/api", decided(&nginx) + 25_000);
        sizes.push(resident_kb(worker));
    }
    let grown = *sizes.last().unwrap() as i64 - sizes[0] as i64;
    assert!(grown < 1_024, "it grew by {grown} kB: {sizes:?}");
    assert_eq!(nginx.count("decisions.error_closed"), 0);
    nginx.assert_calm_log();
}
