//! What is given back after the decision by the status that the client gets, through
//! nginx.

use std::time::Duration;

use weir_tests::{Client, Conf, Nginx, Redis, in_parallel, wait_until};

const LOG: &str = "log_by_lua_block { require(\"resty.weir\").log() }";

/// A login that answers with the status of its argument, after that of another
/// many seconds.
const LOGIN: &str = "require(\"resty.weir\").access(\"login\")";
const ANSWER: &str = "content_by_lua_block { \
    if ngx.var.arg_sleep then ngx.sleep(tonumber(ngx.var.arg_sleep)) end \
    ngx.status = tonumber(ngx.var.arg_s) or 200 ngx.print(\"ok\") }";

fn login(redis: &Redis, policies: &str) -> Conf {
    Conf::new(&redis.url(), policies)
        .server(LOG)
        .stats()
        .server(&format!("location /login {{ access_by_lua_block {{ {LOGIN} }} {ANSWER} }}"))
}

const POLICY: &str = "login = { limit = \"3/1h\", charge = { 401, 403 } }";
const KEY: &str = "weir:{$remote_addr=127.0.0.1}:login:log:1h";

fn units(redis: &Redis) -> usize {
    redis.command(&format!("ZCARD {KEY}"))
}

#[test]
fn a_login_policy_stops_the_guesser_and_not_the_user() {
    let redis = Redis::start();
    let nginx = Nginx::start(&login(&redis, POLICY));
    let client = nginx.client();
    for count in 1..=20 {
        assert_eq!(client.get("/login").status, 200);
        nginx.wait_until_settled(count);
    }
    assert_eq!(redis.command::<usize>("DBSIZE"), 0);
    for status in [401, 403, 401, 429, 429] {
        assert_eq!(client.get(&format!("/login?s={}", status.min(403))).status, status);
    }
    assert_eq!(units(&redis), 3);
    nginx.wait_until_settled(20);
    assert_eq!(nginx.log_lines("gives charges back").len(), 0);
    nginx.assert_calm_log();
}

#[test]
fn parallel_guesses_cannot_slip_past() {
    let redis = Redis::start();
    let nginx = Nginx::start(&login(&redis, POLICY));
    let statuses = in_parallel(30, |_| nginx.client().get("/login?s=401&sleep=0.3").status);
    assert_eq!(statuses.iter().filter(|&&status| status == 401).count(), 3);
    assert_eq!(statuses.iter().filter(|&&status| status == 429).count(), 27);
    assert_eq!(units(&redis), 3);
}

/// nginx's 499 is in no list, but a guesser who hangs up may have guessed right.
#[test]
fn who_hangs_up_before_the_answer_has_nothing_back() {
    let redis = Redis::start();
    let conf = login(&redis, POLICY).server("lua_check_client_abort on;").server(&format!(
        "location /log {{ access_log access.log; access_by_lua_block {{ {LOGIN} }} {ANSWER} }}"
    ));
    let nginx = Nginx::start(&conf);
    for guesses in 1..=3 {
        let mut connection = std::net::TcpStream::connect(("127.0.0.1", nginx.port())).unwrap();
        let request = "GET /log?sleep=9 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        std::io::Write::write_all(&mut connection, request.as_bytes()).unwrap();
        wait_until("it is charged", Duration::from_secs(5), || units(&redis) == guesses);
        drop(connection);
        wait_until("it has ended", Duration::from_secs(5), || {
            nginx.file("access.log").matches(" 499 ").count() == guesses
        });
    }
    assert_eq!((nginx.client().get("/login").status, nginx.count("settled")), (429, 0));
}

/// nginx makes a 412 of the 200 for whoever asks with such a header, once the work is done.
#[test]
fn no_header_of_the_clients_takes_back_the_charge_of_what_was_done() {
    let redis = Redis::start();
    let policies = "login = { limit = \"5/1h\", charge = { 200 } }";
    let file = format!("location /file {{ access_by_lua_block {{ {LOGIN} }} alias nginx.conf; }}");
    let nginx = Nginx::start(&login(&redis, policies).server(&file));
    // nginx closes the connection after such an answer to Lua.
    let client = Client::without_keepalive(nginx.port());
    let unless = [("If-Match", "\"none\"")];
    for status in [412, 412, 412] {
        assert_eq!(client.get_with("/login", &unless).status, status);
    }
    // All of it, and none.
    for (range, status) in [("bytes=0-", 206), ("bytes=999999999-", 416)] {
        assert_eq!(client.get_with("/file", &[("Range", range)]).status, status, "{range}");
    }
    assert_eq!(client.get("/login").status, 429);
    assert_eq!((units(&redis), nginx.count("settled")), (5, 0));
}

/// Where a 200 does not count, neither does what is made of it.
#[test]
fn what_is_made_of_an_answer_that_does_not_count_is_given_back() {
    let redis = Redis::start();
    let nginx = Nginx::start(&login(&redis, POLICY));
    assert_eq!(nginx.client().get_with("/login", &[("If-Match", "\"none\"")]).status, 412);
    nginx.wait_until_settled(1);
    assert_eq!(units(&redis), 0);
}

/// access_by_lua runs after auth_basic, and not at all if that refuses;
/// rewrite_by_lua runs before.
#[test]
fn in_the_rewrite_phase_what_auth_basic_refuses_is_counted() {
    let redis = Redis::start();
    let conf = login(&redis, POLICY).server(&format!(
        "location /basic {{ auth_basic site; auth_basic_user_file users; \
         rewrite_by_lua_block {{ {LOGIN} }} {ANSWER} }}"
    ));
    let nginx = Nginx::start(&conf);
    nginx.write_file("users", "alice:{PLAIN}right\n");
    let ask = |password: &str| {
        // alice:right and alice:wrong
        let given = if password == "right" { "YWxpY2U6cmlnaHQ=" } else { "YWxpY2U6d3Jvbmc=" };
        let header = format!("Basic {given}");
        nginx.client().get_with("/basic", &[("Authorization", &header)]).status
    };
    for count in 1..=5 {
        assert_eq!(ask("right"), 200);
        nginx.wait_until_settled(count);
    }
    assert_eq!([(); 4].map(|()| ask("wrong")), [401, 401, 401, 429]);
    assert_eq!(ask("right"), 429);
}

/// Also where nginx has routed the request elsewhere meanwhile, and where
/// another policy refused it.
#[test]
fn the_status_is_the_one_that_the_client_gets() {
    let redis = Redis::start();
    let policies = format!("{POLICY}, site = {{ limit = \"4/1h\" }}");
    let conf = login(&redis, &policies)
        .server(&format!(
            "location /page {{ access_by_lua_block {{ {LOGIN} }} error_page 401 @page; \
             content_by_lua_block {{ ngx.exit(401) }} }}"
        ))
        .server("location @page { content_by_lua_block { ngx.print(\"who?\") } }")
        .server(&format!(
            "location /fine {{ access_by_lua_block {{ {LOGIN} }} error_page 401 =200 @page; \
             content_by_lua_block {{ ngx.exit(401) }} }}"
        ))
        .server(&format!(
            "location /two {{ access_by_lua_block {{ {LOGIN} \
             require(\"resty.weir\").access(\"site\") }} {ANSWER} }}"
        ));
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    assert_eq!(client.get("/page").status, 401);
    assert_eq!(client.get("/fine").status, 200);
    nginx.wait_until_settled(1);
    assert_eq!(units(&redis), 1);
    for status in [200, 200, 200, 200, 429, 429] {
        let before = nginx.count("settled");
        assert_eq!(client.get("/two").status, status);
        nginx.wait_until_settled(before + 1);
    }
    assert_eq!(units(&redis), 1);
    let site: usize = redis.command("ZCARD weir:{$remote_addr=127.0.0.1}:site:log:1h");
    assert_eq!(site, 4, "what is always charged is not given back");
    nginx.assert_calm_log();
}

#[test]
fn each_algorithm_has_its_charge_back() {
    let redis = Redis::start();
    let limits = [
        ("log", "limit = \"2/1h\""),
        ("ring", "limit = \"2/1h\", algorithm = \"compact-log\""),
        ("counter", "limit = \"2/1h\", algorithm = \"sliding-counter\""),
        ("bucket", "limit = \"2/1h\", algorithm = \"token-bucket\""),
        ("quota", "limit = \"2/day\", algorithm = \"quota\""),
        ("all", "limits = { { limit = \"2/1h\" }, { limit = \"3/day\", algorithm = \"quota\" } }"),
    ];
    let policies: Vec<String> = limits
        .iter()
        .map(|(name, limit)| format!("{name} = {{ {limit}, charge = {{ 401 }} }}"))
        .collect();
    let mut conf = Conf::new(&redis.url(), &policies.join(", ")).server(LOG).stats();
    for (name, _) in limits {
        conf = conf.limited(&format!("/{name}"), name);
    }
    let nginx = Nginx::start(&conf);
    let mut count = 0;
    for (name, _) in limits {
        for _ in 0..5 {
            assert_eq!(nginx.client().get(&format!("/{name}")).status, 200, "{name}");
            count += 1;
            nginx.wait_until_settled(count);
        }
    }
    // Of a bucket the little that was refilled meanwhile is not given back.
    let keys: Vec<String> = redis.command("KEYS *");
    assert!(keys.iter().all(|key| key.contains(":bucket:")), "{keys:?}");
}

#[test]
fn after_the_key_is_gone_nothing_is_given_back() {
    let redis = Redis::start();
    let nginx = Nginx::start(&login(&redis, POLICY));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| nginx.client().get("/login?sleep=0.5").status);
        wait_until("it is charged", Duration::from_secs(5), || units(&redis) == 1);
        redis.command::<()>("FLUSHALL");
        assert_eq!(slow.join().unwrap(), 200);
    });
    nginx.wait_until_settled(1);
    assert_eq!(redis.command::<usize>("DBSIZE"), 0);
}

/// A redirect hides ngx.ctx, and the garbage is collected.
#[test]
fn a_redirected_request_has_its_charge_back_and_counts_once() {
    let redis = Redis::start();
    let conf = login(&redis, POLICY)
        .server(&format!(
            "location /first {{ access_by_lua_block {{ {LOGIN} }} content_by_lua_block {{ \
             ngx.exec(\"/second\", ngx.var.args) }} }}"
        ))
        .server(&format!(
            "location /second {{ access_by_lua_block {{ ngx.ctx.own = true \
             for _ = 1, 3 do collectgarbage() end {LOGIN} }} {ANSWER} }}"
        ));
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    for status in [401, 200, 403] {
        assert_eq!(client.get(&format!("/first?s={status}")).status, status);
    }
    nginx.wait_until_settled(1);
    assert_eq!(units(&redis), 2);
    assert_eq!(nginx.count("decisions.internal"), 3);
}

/// By then many others have been decided.
#[test]
fn a_long_request_has_its_charge_back() {
    let redis = Redis::start();
    let policies = format!("{POLICY}, site = {{ limit = \"900000/1h\" }}");
    let conf = login(&redis, &policies)
        .limited("/site", "site")
        .server(&format!(
            "location /slow {{ access_by_lua_block {{ {LOGIN} }} content_by_lua_block {{ \
               repeat ngx.sleep(0.02) until package.loaded.done ngx.print(\"ok\") }} }}"
        ))
        .content("/done", "package.loaded.done = true");
    let nginx = Nginx::start(&conf);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| {
            let client = weir_tests::Client::patient(nginx.port());
            client.get("/slow").status
        });
        wait_until("it is charged", Duration::from_secs(5), || units(&redis) == 1);
        // More than the worker remembers requests that may be redirected.
        in_parallel(4, |_| {
            let client = nginx.client();
            for _ in 0..5_250 {
                client.get("/site");
            }
        });
        nginx.client().get("/done");
        assert_eq!(slow.join().unwrap(), 200);
    });
    nginx.wait_until_settled(1);
    assert_eq!(units(&redis), 0);
}

/// The worker that is told to quit does not leave before its last charges have,
/// however long Redis takes.
#[test]
fn a_reload_loses_no_charge() {
    let redis = Redis::start();
    let conf = login(&redis, "login = { limit = \"1000/1h\", charge = { 401 } }").server(&format!(
        "location /slow {{ access_by_lua_block {{ {LOGIN} }} content_by_lua_block {{ \
               ngx.sleep(1) ngx.print(\"ok\") }} }}"
    ));
    let nginx = Nginx::start(&conf);
    std::thread::scope(|scope| {
        let slow: Vec<_> =
            (0..20).map(|_| scope.spawn(|| nginx.client().get("/slow").status)).collect();
        wait_until("all are charged", Duration::from_secs(5), || units(&redis) == 20);
        let old = nginx.workers();
        nginx.reload(&conf);
        wait_until("the worker is told to leave", Duration::from_secs(5), || {
            nginx.workers() != old
        });
        redis.freeze();
        for thread in slow {
            assert_eq!(thread.join().unwrap(), 200);
        }
        // Longer than a worker takes to leave that has nothing to wait for.
        std::thread::sleep(Duration::from_millis(700));
        assert!(old.iter().all(|&pid| weir_tests::process::runs(pid)), "it did not wait");
        redis.thaw();
        wait_until("the old worker has left", Duration::from_secs(5), || {
            !old.iter().any(|&pid| weir_tests::process::runs(pid))
        });
    });
    assert_eq!(units(&redis), 0);
    nginx.assert_calm_log();
}

#[test]
fn while_redis_is_away_charges_are_lost_at_once_and_counted() {
    let mut redis = Redis::start();
    let conf = Conf::with_timeout("1s", &redis.url(), POLICY)
        .server(LOG)
        .stats()
        .server(&format!("location /login {{ access_by_lua_block {{ {LOGIN} }} {ANSWER} }}"));
    let nginx = Nginx::start(&conf);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| nginx.client().get("/login?sleep=1").status);
        wait_until("it is charged", Duration::from_secs(5), || units(&redis) == 1);
        redis.kill();
        assert_eq!(slow.join().unwrap(), 200);
    });
    wait_until("it is lost", Duration::from_secs(10), || nginx.count("unsettled") == 1);
    assert_eq!(nginx.count("settled"), 0);
    assert_eq!(nginx.client().get("/login").status, 200, "on_error is open");
    nginx.assert_calm_log();
}

#[test]
fn an_operator_who_forgot_the_log_phase_is_told() {
    let redis = Redis::start();
    let policies = "login = { limit = \"1000/1h\", charge = { 401 } }";
    let nginx = Nginx::start(&Conf::new(&redis.url(), policies).limited("/login", "login"));
    let client = nginx.client();
    let told = || {
        nginx.log_lines(
            "policy login gives charges back at the end of requests, but none of 101 has",
        )
    };
    for _ in 0..100 {
        client.get("/login");
    }
    assert_eq!(told().len(), 0);
    for _ in 0..10 {
        client.get("/login");
    }
    assert_eq!(told().len(), 1, "{}", nginx.error_log());

    // And at the first refusal.
    redis.command::<()>("FLUSHALL");
    let policies = "login = { limit = \"1/1h\", charge = { 401 } }";
    let nginx = Nginx::start(&Conf::new(&redis.url(), policies).limited("/login", "login"));
    nginx.client().get("/login");
    assert_eq!(nginx.client().get("/login").status, 429);
    assert_eq!(nginx.log_lines("but none of 1 has called log() yet").len(), 1);

    // And not one who did not.
    redis.command::<()>("FLUSHALL");
    let policies = "login = { limit = \"1000/1h\", charge = { 401 } }";
    let nginx = Nginx::start(&login(&redis, policies));
    for _ in 0..120 {
        nginx.client().get("/login");
    }
    assert_eq!(nginx.log_lines("gives charges back").len(), 0);
}

#[test]
fn log_belongs_into_the_log_phase() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), POLICY).content("/x", "require(\"resty.weir\").log()");
    let nginx = Nginx::start(&conf);
    assert_eq!(nginx.client().get("/x").status, 500);
    assert_eq!(nginx.log_lines("weir: log() belongs in log_by_lua").len(), 1);
}
