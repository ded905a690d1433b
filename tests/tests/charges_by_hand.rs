//! What the operator's Lua charges and gives back after the decision, through nginx.

use std::time::Duration;

use weir_tests::{Conf, Nginx, Redis, wait_until};

/// The operator's Lua, which prints what it gets.
fn by_hand(redis: &Redis, phase: &str) -> Nginx {
    let policies = "api = { limit = \"100/1h\" }, other = { limit = \"10/1h\" }, \
                    tokens = { limit = \"1000/1h\", algorithm = \"sliding-counter\" }";
    let lua = "local w = require(\"resty.weir\") \
               local function say(...) ngx.ctx.said = (ngx.ctx.said or \"\") .. \
                   tostring((...)) .. \":\" .. tostring((select(2, ...))) .. \" \" end \
               local run = loadstring(ngx.unescape_uri(ngx.var.arg_run or \"\")) \
               setfenv(run, { w = w, say = say }) run()";
    let conf = Conf::new(&redis.url(), policies).stats().server(&format!(
        "location /run {{ access_by_lua_block {{ local w = require(\"resty.weir\") \
           if ngx.var.arg_before then w.access(\"other\") end \
           local cost = tonumber(ngx.var.arg_cost) \
           if cost then w.access(ngx.var.arg_p or \"api\", {{ cost = cost }}) end }} \
         {} \
         content_by_lua_block {{ {} ngx.print(ngx.ctx.said or \"\") }} }}",
        if phase == "content" {
            String::new()
        } else {
            format!("{phase}_by_lua_block {{ {lua} }}")
        },
        if phase == "content" { lua } else { "" },
    ));
    Nginx::start(&conf)
}

fn run(nginx: &Nginx, query: &str, lua: &str) -> String {
    let lua = lua.replace(' ', "%20").replace('"', "%22");
    nginx.client().get(&format!("/run?{query}&run={lua}")).body.trim().to_owned()
}

#[test]
fn units_are_given_back_by_hand_and_never_more_than_were_charged() {
    let redis = Redis::start();
    let nginx = by_hand(&redis, "content");
    let used = |policy: &str| {
        redis.command::<usize>(&format!("ZCARD weir:{{$remote_addr=127.0.0.1}}:{policy}:log:1h"))
    };
    assert_eq!(run(&nginx, "cost=5", "say(w.refund(3))"), "3:nil");
    nginx.wait_until_settled(1);
    assert_eq!(used("api"), 2);
    assert_eq!(
        run(&nginx, "cost=4", "say(w.refund(3)) say(w.refund(99)) say(w.refund(1))"),
        "3:nil 1:nil 0:nil"
    );
    nginx.wait_until_settled(3);
    assert_eq!(used("api"), 2);

    // Of the policy that decided last, or of the one that is named.
    assert_eq!(
        run(&nginx, "before=1&cost=2", "say(w.refund(5)) say(w.refund(5, \"other\"))"),
        "2:nil 1:nil"
    );
    nginx.wait_until_settled(5);
    assert_eq!((used("api"), used("other")), (2, 0));

    // Of two charges of one policy the last is given back first, and no more
    // than is asked for.
    let twice = "w.access(\"api\", { cost = 3 }) say(w.refund(4)) say(w.refund(4))";
    assert_eq!(run(&nginx, "cost=2", twice), "4:nil 1:nil");
    nginx.wait_until_settled(8);
    assert_eq!(used("api"), 2);

    // What there is to give back, and what there is not.
    for (query, lua, said) in [
        ("x=1", "say(w.refund(1))", "nil:nothing was charged"),
        ("x=1", "say(w.charge(1))", "nil:nothing was decided"),
        ("cost=0", "say(w.refund(1))", "0:nil"),
        ("cost=1", "say(w.refund(1, \"other\"))", "nil:nothing was charged"),
        ("cost=1", "say(w.refund(0))", "0:nil"),
    ] {
        assert_eq!(run(&nginx, query, lua), said, "{query} {lua}");
    }
    for wrong in ["-1", "1.5", "0/0", "1/0", "2^53", "\"5\"", "nil", "{}"] {
        let said = run(&nginx, "cost=1", &format!("say(w.refund({wrong})) say(w.charge({wrong}))"));
        assert_eq!(
            said.matches("nil:the units must be a whole number from 0 to").count(),
            2,
            "{said}"
        );
    }
    assert_eq!(
        nginx.log_lines("policy api cannot charge or give back: the units must be").len(),
        1
    );
    let answer = nginx.client().get("/run?cost=1&run=w.refund(1,%22nope%22)");
    assert_eq!(answer.status, 500);
    assert_eq!(nginx.log_lines("weir: no such policy: nope").len(), 1);
}

/// A cost known only afterwards is charged whether there is room or not, and
/// what is beyond the limit holds up the next.
#[test]
fn units_are_charged_by_hand_beyond_the_limit() {
    let redis = Redis::start();
    let nginx = by_hand(&redis, "content");
    assert_eq!(run(&nginx, "cost=1&p=tokens", "say(w.charge(989))"), "989:nil");
    nginx.wait_until_settled(1);
    let answer = nginx.client().get("/run?cost=1&p=tokens");
    assert_eq!((answer.status, answer.number("RateLimit-Remaining")), (200, 9));
    assert_eq!(run(&nginx, "cost=0&p=tokens", "say(w.charge(5000))"), "5000:nil");
    nginx.wait_until_settled(2);
    assert_eq!(nginx.client().get("/run?cost=1&p=tokens").status, 429);
    // A log records each unit by itself, and takes at most 10,000 at once.
    let said = run(&nginx, "cost=1", "say(w.charge(10001))");
    assert!(said.starts_with("nil:a log takes at most 10000 units at once"), "{said}");
    let told = "policy api cannot charge or give back: 10001 units: a log takes at most 10000";
    assert_eq!((nginx.log_lines(told).len(), nginx.count("unsettled")), (1, 1));
    assert_eq!(run(&nginx, "cost=0&p=tokens", "say(w.charge(10001))"), "10001:nil");
    assert_eq!(nginx.client().get("/run?cost=0").number("RateLimit-Remaining"), 99);
}

/// Nothing is waited for, so it works wherever a request is.
#[test]
fn units_are_settled_in_every_phase() {
    for phase in ["content", "header_filter", "body_filter", "log"] {
        let redis = Redis::start();
        let nginx = by_hand(&redis, phase);
        run(&nginx, "cost=5", "if not w.done then w.done = true w.refund(3) end");
        nginx.wait_until_settled(1);
        assert_eq!(
            redis.command::<usize>("ZCARD weir:{$remote_addr=127.0.0.1}:api:log:1h"),
            2,
            "{phase}"
        );
        nginx.assert_calm_log();
    }
}

/// Where there is no request nothing was charged.
#[test]
fn in_a_timer_there_is_nothing_to_give_back() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), "login = { limit = \"3/1h\" }").content(
        "/x",
        "local w = require(\"resty.weir\") w.check(\"login\") \
         ngx.timer.at(0, function() local a, b = w.refund(1) local c, d = w.charge(1) \
             ngx.log(ngx.WARN, \"said \", tostring(a), b, tostring(c), d) end)",
    );
    let nginx = Nginx::start(&conf);
    nginx.client().get("/x");
    wait_until("it is said", Duration::from_secs(5), || {
        nginx.log_lines("said nilnothing was chargednilnothing was decided").len() == 1
    });
    let key = "weir:{$remote_addr=127.0.0.1}:login:log:1h";
    assert_eq!(redis.command::<usize>(&format!("ZCARD {key}")), 1);
}
