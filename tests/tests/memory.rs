//! Promise 8: a worker's memory does not grow with its requests.

use std::process::Command;
use std::time::Duration;

use weir_tests::{Conf, Nginx, Redis, process, wait_until};

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
    wait_until("its sockets are closed", Duration::from_secs(5), || descriptors() <= before);
    nginx.assert_calm_log();
}

/// How much is given back one by one: more than the queue takes, and than it took.
const UNITS: u64 = 10_500;

/// A location that is charged, and gives back unit by unit once `/away` was asked for;
/// and one that tells how many bytes the worker holds, in Lua and beside it.
fn giving_back(redis: &Redis) -> Conf {
    let policies =
        "api = { limit = \"1000000/1h\", algorithm = \"sliding-counter\", on_error = \"closed\" }";
    let give_back = format!(
        "while not package.loaded.away do ngx.sleep(0.005) end
        package.loaded.away = nil
        for i = 1, {UNITS} do require('resty.weir').refund(1) end"
    );
    let held = "local ffi = require('ffi')
        if not package.loaded.held then
            package.loaded.held = true
            ffi.cdef('struct mallinfo2 { size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, \
                fsmblks, uordblks, fordblks, keepcost; }; struct mallinfo2 mallinfo2(void);')
        end
        collectgarbage() collectgarbage()
        local info = ffi.C.mallinfo2()
        ngx.print(string.format('%d', collectgarbage('count') * 1024
            + tonumber(info.uordblks + info.hblkhd)))";
    Conf::with_timeout("500ms", &redis.url(), policies)
        .server(&format!(
            "location /api {{ access_by_lua_block {{ \
             require('resty.weir').access('api', {{ cost = {UNITS} }}) }} \
             content_by_lua_block {{ {give_back} }} }}"
        ))
        .content("/away", "package.loaded.away = true")
        .content("/held", held)
        .stats()
}

/// Whatever keeps it from being given back: what the worker notes of what it has sent
/// is gone when that is lost.
#[test]
fn ten_thousand_units_that_cannot_be_given_back_leave_a_worker_as_large_as_before() {
    let mut redis = Redis::start();
    let mut nginx = Nginx::start(&giving_back(&redis));
    let held = || nginx.client().get("/held").body.parse::<i64>().expect("bytes");
    let mut lost = 0;
    let mut lose = |redis: &mut Redis, seen: &str, fail: fn(&mut Redis), mend: fn(&mut Redis)| {
        wait_until("limits are there", Duration::from_secs(10), || nginx.stat("redis") == "up");
        std::thread::scope(|scope| {
            let before = nginx.count("decisions.allowed");
            let giving = scope.spawn(|| nginx.client().get("/api").status);
            wait_until("it is charged", Duration::from_secs(5), || {
                nginx.count("decisions.allowed") > before
            });
            fail(redis);
            wait_until("it is seen", Duration::from_secs(5), || nginx.stat("redis") == seen);
            nginx.client().get("/away");
            assert_eq!(giving.join().unwrap(), 200);
        });
        lost += UNITS;
        wait_until("all is lost", Duration::from_secs(20), || nginx.count("unsettled") >= lost);
        assert_eq!((nginx.count("settled"), nginx.count("unsettled")), (0, lost));
        mend(redis);
    };
    let mut round = || {
        // Not there; silent, and with the queue full; there, and refusing.
        lose(&mut redis, "down", Redis::kill, Redis::launch);
        lose(&mut redis, "up", |redis| redis.freeze(), |redis| redis.thaw());
        lose(
            &mut redis,
            "up",
            |redis| redis.command("CONFIG SET maxmemory 1"),
            |redis| redis.command("CONFIG SET maxmemory 0"),
        );
        held()
    };
    // What is held for all that may be under way at once stays.
    let sizes = [round(), round(), round(), round()];
    let grown = sizes[3] - sizes[0];
    assert!(grown < 256 * 1_024, "it grew by {grown} bytes: {sizes:?}");
    assert_eq!(nginx.count("waiting"), 0);
    assert!(nginx.quit(Duration::from_secs(5)) < Duration::from_secs(2), "nothing is waited for");
    nginx.assert_calm_log();
}
