//! Promise 8: a worker's memory does not grow with its requests.

use std::process::Command;

use weir_tests::{Conf, Nginx, Redis, process};

/// Sends requests over this many connections for a second.
fn load(nginx: &Nginx, connections: u32) {
    let url = format!("http://127.0.0.1:{}/api", nginx.port());
    let status = Command::new("wrk")
        .args(["-t", "1", "-c", &connections.to_string(), "-d", "1", &url])
        .stdout(std::process::Stdio::null())
        .status()
        .expect("wrk runs");
    assert!(status.success());
}

/// Sends requests until the worker has decided this many.
fn decide(nginx: &Nginx, decisions: u64) {
    while decided(nginx) < decisions {
        load(nginx, 64);
    }
}

fn decided(nginx: &Nginx) -> u64 {
    nginx.count("decisions.allowed") + nginx.count("decisions.denied")
}

fn resident_kb(pid: u32) -> u64 {
    process::status(pid, "VmRSS").trim_end_matches(" kB").parse().unwrap()
}

fn conf(redis: &Redis) -> Conf {
    let policies = "api = { limit = \"1000/100ms\", on_error = \"closed\" }";
    Conf::new(&redis.url(), policies)
        .access("/api", "require(\"resty.weir\").access(\"api\", { key = ngx.var.connection })")
        .stats()
}

#[test]
fn three_hundred_thousand_requests_leave_a_worker_as_large_as_fifty_thousand() {
    let redis = Redis::start();
    let nginx = Nginx::start(&conf(&redis));
    let worker = nginx.workers()[0];
    decide(&nginx, 50_000);
    let mut sizes = vec![resident_kb(worker)];
    while decided(&nginx) < 300_000 {
        decide(&nginx, decided(&nginx) + 25_000);
        sizes.push(resident_kb(worker));
    }
    let grown = *sizes.last().unwrap() as i64 - sizes[0] as i64;
    assert!(grown < 1_024, "it grew by {grown} kB: {sizes:?}");
    assert_eq!(nginx.count("decisions.error_closed"), 0);
    nginx.assert_calm_log();
}

/// After many wake-ups the pump hands over to a new timer, so that the memory
/// of the old one is freed. Nobody notices.
#[test]
fn the_pump_hands_over_and_no_request_fails() {
    let redis = Redis::start();
    let mut conf = conf(&redis);
    conf.setup = format!(
        "(function() require(\"resty.weir.pump\").wake_ups = 500 return {} end)()",
        conf.setup
    );
    let nginx = Nginx::start(&conf);
    let worker = nginx.workers()[0];
    let descriptors = || std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap().count();
    load(&nginx, 4);
    let before = descriptors();
    load(&nginx, 4);
    assert_eq!(nginx.count("decisions.error_closed"), 0);
    let (pumps, wakeups) = (nginx.count("pumps"), nginx.count("wakeups"));
    assert!(pumps >= 2 && pumps.abs_diff(wakeups / 500) <= pumps / 2, "{pumps} for {wakeups}");
    weir_tests::wait_until("its sockets are closed", std::time::Duration::from_secs(5), || {
        descriptors() <= before
    });
    nginx.assert_calm_log();
}
