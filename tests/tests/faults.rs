//! What must not happen within Weir, and is survived: a panic, the death of the I/O
//! thread, the death of a light thread.

use std::time::{Duration, Instant};

use weir_tests::{Conf, Nginx, Redis, process, turn, wait_until};

/// What is waited for here comes within this time, and a decision may take far longer.
const LONG: Duration = Duration::from_secs(10);
const PATIENT: &str = "60s";

const POLICIES: &str =
    "api = { limit = \"1000000/1h\", algorithm = \"sliding-counter\", on_error = \"closed\" }";

/// With a light thread, of those that let requests leave together, which does this once
/// `/fault` was asked for and something is to leave.
fn with_light_thread_that(does: &str, mut conf: Conf) -> Conf {
    // Nobody else waits for an hour.
    conf.init = format!(
        "local semaphore = require('ngx.semaphore')
        local wait = semaphore.wait
        semaphore.wait = function(self, seconds)
            local ok, err = wait(self, seconds)
            if seconds == 3600 and package.loaded.fault then
                package.loaded.fault = nil
                {does}
            end
            return ok, err
        end
        require('resty.weir.pump').wake_ups = 100"
    );
    turn::with_turn(conf)
        .limited("/api", "api")
        .content("/fault", "package.loaded.fault = true")
        // For the pump after this one.
        .content("/last", "require('resty.weir.pump').wake_ups = 1000000")
        .stats()
}

/// Which leave one by one until there is another.
#[test]
fn a_light_thread_that_dies_takes_no_request_with_it() {
    for death in ["error('out of luck')", "return nil, 'out of luck'"] {
        let redis = Redis::start();
        let conf = Conf::with_timeout(PATIENT, &redis.url(), POLICIES);
        let nginx = Nginx::start(&with_light_thread_that(death, conf));
        let client = nginx.client();
        turn::ask(&nginx);
        client.get("/last");
        client.get("/fault");
        let begun = Instant::now();
        for _ in 0..5 {
            turn::ask(&nginx);
        }
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
        let lines = nginx.log_lines("leaves one by one, because its light thread ended: ");
        assert!(lines.len() == 1 && lines[0].contains("out of luck"), "{lines:?}");

        wait_until("there is another", LONG, || {
            assert_eq!(client.get("/api").status, 200);
            nginx.count("pumps") == 2
        });
        turn::ask(&nginx);
        turn::assert_shared(&nginx, 20);
        assert_eq!(nginx.count("decisions.error_closed"), 0);
        nginx.assert_calm_log();
    }
}

/// Who has waited in vain lets leave what has not.
#[test]
fn a_light_thread_that_hangs_holds_nobody_up_for_long() {
    let redis = Redis::start();
    let timeout = Duration::from_millis(300);
    let conf = Conf::with_timeout("300ms", &redis.url(), POLICIES);
    let nginx = Nginx::start(&with_light_thread_that("ngx.sleep(3600)", conf));
    let client = nginx.client();
    turn::ask(&nginx);
    client.get("/fault");
    let took = || {
        let begun = Instant::now();
        turn::ask(&nginx);
        begun.elapsed()
    };
    for _ in 0..3 {
        let took = took();
        assert!(took < 3 * timeout, "{took:?}");
    }
    wait_until("there is another", LONG, || {
        assert_eq!(client.get("/api").status, 200);
        nginx.count("pumps") == 2
    });
    assert!(took() < timeout, "as ever");
    nginx.assert_calm_log();
}

/// A call into the library that has panicked says so, and no more: see
/// crates/weir-edge/tests/guard.rs.
#[test]
fn a_fault_in_the_library_is_a_failure_of_that_request_alone() {
    let mut conf = Conf::with_setup(&format!("{{ policies = {{ {POLICIES} }} }}"))
        .content(
            "/fault",
            "package.loaded.faulty = true
            local told = require('resty.weir').check('api')
            package.loaded.faulty = nil
            ngx.print(told.source, ' ', told.reason, ' ', tostring(told.allowed))",
        )
        .limited("/api", "api")
        .stats();
    conf.init = "local calls = require('resty.weir.calls')
        local configure = calls.configure
        calls.configure = function(engine)
            configure(engine)
            for i = 1, 60 do
                local name, ask = debug.getupvalue(calls.ask, i)
                if name == 'call_ask' then
                    debug.setupvalue(calls.ask, i, function(...)
                        return package.loaded.faulty and -3 or ask(...)
                    end)
                end
            end
        end"
    .to_owned();
    let nginx = Nginx::start(&conf);
    let worker = nginx.workers();
    for _ in 0..20 {
        assert_eq!(nginx.client().get("/fault").body, "on_error fault false");
        assert_eq!(nginx.client().get("/api").status, 200);
    }
    assert_eq!(nginx.workers(), worker);
    assert_eq!(nginx.count("errors.fault"), 20);
    let lines = nginx.log_lines("no decision for policy api: fault: ");
    assert!(lines.len() == 1 && lines[0].contains("a fault in weir_edge.so"), "{lines:?}");
    nginx.assert_calm_log();
}

/// A finalizer that decides while a decision is being told to Lua tells of its own in
/// its place: that is nobody's, and not the other client's.
#[test]
fn a_decision_of_a_finalizer_is_never_taken_for_the_requests_own() {
    let mut conf = Conf::with_setup(
        "{ policies = { api = { limit = \"1/1h\", on_error = \"closed\" } } }",
    )
    .content(
        "/mixed",
        "local weir = require('resty.weir')
        weir.check('api', { key = 'a' })
        local finalized, taken_for, is_over = 0, 0, false
        local function leave_garbage()
            getmetatable(newproxy(true)).__gc = function()
                if is_over then
                    return
                elseif not ngx.var.arg_late or package.loaded.is_late then
                    finalized = finalized + 1
                    weir.check('api', { key = 'b' .. (ngx.var.arg_late or '') .. '-' .. finalized })
                end
                leave_garbage()
            end
        end
        leave_garbage()
        local pause, step = collectgarbage('setpause', 0), collectgarbage('setstepmul', 1e6)
        collectgarbage('restart')
        for _ = 1, 10 do
            local told = weir.check('api', { key = 'a' })
            if told.allowed or told.remaining == 1 then
                taken_for = taken_for + 1
            end
        end
        is_over = true
        collectgarbage('setpause', pause)
        collectgarbage('setstepmul', step)
        ngx.print(finalized > 0 and 'finalized' or 'never finalized', ', taken for it: ', taken_for)",
    )
    .stats();
    // Compiled code is left whenever finalizers are due, and they always are.
    conf.init = "jit.off()
        local calls = require('resty.weir.calls')
        local full = calls.full
        calls.full = function(rule)
            package.loaded.is_late = true
            local made = full(rule)
            package.loaded.is_late = nil
            return made
        end"
    .to_owned();
    let nginx = Nginx::start(&conf);
    let mut faults = 0;
    // Wherever something is allocated; and where all is told of a decision that has been
    // read already.
    for query in ["", "?late=1"] {
        let told = nginx.client().get(&format!("/mixed{query}")).body;
        assert_eq!(told, "finalized, taken for it: 0", "{query}");
        let before = std::mem::replace(&mut faults, nginx.count("errors.fault"));
        assert!(faults > before, "none came in between: {query}");
    }
    let lines = nginx.log_lines("a finalizer (__gc) asked for another decision meanwhile");
    assert!(!lines.is_empty());
}

/// The worker's I/O thread, and the descriptor that it waits at.
fn epoll_of(worker: u32) -> u32 {
    let mut found = None;
    wait_until("the I/O thread waits", LONG, || {
        let threads = process::threads(worker);
        let Some((thread, _)) = threads.iter().find(|(_, name)| name == "weir-io") else {
            return false;
        };
        // The number of the system call, and its arguments.
        let call = std::fs::read_to_string(format!("/proc/{worker}/task/{thread}/syscall"));
        found = call.ok().and_then(|call| {
            let first = call.split_whitespace().nth(1)?.strip_prefix("0x")?;
            u32::from_str_radix(first, 16).ok()
        });
        found.is_some_and(|fd| {
            std::fs::read_link(format!("/proc/{worker}/fd/{fd}"))
                .is_ok_and(|file| file.to_string_lossy().contains("eventpoll"))
        })
    });
    found.unwrap()
}

/// A location that charges once `/go` was asked for; and one that takes from the I/O
/// thread what it waits at, which is a panic there within two seconds: at once, or when
/// the worker has been told to leave.
fn mortal(redis: &Redis) -> Conf {
    let charge = "while not package.loaded.go do ngx.sleep(0.005) end \
                  ngx.print(require('resty.weir').charge(1))";
    let kill = "local ffi = require('ffi') ffi.cdef('int close(int);') \
                if ngx.var.arg_late then \
                    package.loaded.is_late_there = true \
                    while not ngx.worker.exiting() do ngx.sleep(0.005) end \
                    ngx.sleep(0.7) \
                end \
                ngx.print(ffi.C.close(tonumber(ngx.var.arg_fd)))";
    Conf::with_timeout(PATIENT, &redis.url(), POLICIES)
        .limited("/api", "api")
        .server(&format!(
            "location /charge {{ access_by_lua_block {{ require('resty.weir').access('api') }} \
             content_by_lua_block {{ {charge} }} }}"
        ))
        .content("/go", "package.loaded.go = true")
        .content("/kill", kill)
        .content("/is-late-there", "ngx.print(tostring(package.loaded.is_late_there))")
        .stats()
}

/// Freezes Redis, and has three charges wait for it.
fn have_charges_wait(redis: &Redis, nginx: &Nginx) {
    std::thread::scope(|scope| {
        let charging: Vec<_> =
            (0..3).map(|_| scope.spawn(|| nginx.client().get("/charge").body)).collect();
        wait_until("all are decided", LONG, || nginx.count("decisions.allowed") == 3);
        redis.freeze();
        nginx.client().get("/go");
        for charge in charging {
            assert_eq!(charge.join().unwrap(), "1");
        }
    });
    assert_eq!((nginx.count("settled"), nginx.count("unsettled")), (0, 0));
}

fn assert_died(nginx: &Nginx) {
    let lines = nginx.log_lines("thread 'weir-io'");
    assert!(lines.len() == 1 && lines[0].contains("panicked at"), "{lines:?}");
    assert_eq!(nginx.log_lines("the pump stopped: the I/O thread has ended").len(), 1);
}

#[test]
fn a_dead_io_thread_is_followed_by_another_and_nobody_waits_for_it() {
    let redis = Redis::start();
    let nginx = Nginx::start(&mortal(&redis));
    have_charges_wait(&redis, &nginx);
    let epoll = epoll_of(nginx.workers()[0]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| nginx.client().get("/api"));
        wait_until("a request waits", LONG, || nginx.count("waiting") == 1);
        assert_eq!(nginx.client().get(&format!("/kill?fd={epoll}")).body, "0");
        let answer = waiting.join().unwrap();
        assert_eq!(answer.status, 503);
        assert!(answer.elapsed < LONG, "{:?}", answer.elapsed);
    });
    assert_died(&nginx);
    redis.thaw();
    wait_until("there is another", LONG, || nginx.client().get("/api").status == 200);
    assert_eq!((nginx.count("settled"), nginx.count("unsettled")), (0, 3), "whatever came of them");
    assert_eq!(nginx.log_lines("the pump runs again").len(), 1);
    nginx.assert_calm_log();
}

#[test]
fn a_worker_leaves_without_what_its_dead_io_thread_was_asked() {
    for late in [false, true] {
        let redis = Redis::start();
        let mut nginx = Nginx::start(&mortal(&redis));
        have_charges_wait(&redis, &nginx);
        let path = format!("/kill?fd={}", epoll_of(nginx.workers()[0]));
        let port = nginx.port();
        let kill = |path: String| weir_tests::Client::without_keepalive(port).get(&path).body;
        std::thread::scope(|scope| {
            if late {
                let killing = scope.spawn(move || kill(path + "&late=1"));
                wait_until("it is there", LONG, || {
                    nginx.client().get("/is-late-there").body == "true"
                });
                nginx.quit(LONG);
                assert_eq!(killing.join().unwrap(), "0");
            } else {
                assert_eq!(kill(path), "0");
                wait_until("it is dead", LONG, || !nginx.log_lines("the pump stopped").is_empty());
                nginx.quit(LONG);
            }
        });
        assert_died(&nginx);
        assert_eq!(nginx.log_lines("exited with code 0").len(), 1);
        nginx.assert_calm_log();
    }
}
