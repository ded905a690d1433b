//! The way of a request through Lua is compiled, and says the same when it is.
//!
//! What LuaJIT cannot compile still runs, at several times the cost: nothing else
//! would tell.

use weir_tests::{Conf, Nginx, Redis};

/// Enough for whatever is hot to be compiled, or given up.
const WARM: u64 = 3_000;

/// Before `setup`: notes which functions become a trace of their own, and what is given
/// up.
const WATCH: &str = "
    local util, started = require('jit.util'), {}
    compiled, aborted = {}, {}
    jit.attach(function(what, trace, func, pc, number, message)
        if what == 'start' then
            local info = util.funcinfo(func, pc)
            local is_root = not number or number == 0
            started[trace] = is_root and info.source .. ':' .. info.linedefined or false
        elseif what == 'stop' and started[trace] then
            -- A trace that ends otherwise ends somewhere on the way.
            compiled[started[trace]] = util.traceinfo(trace).linktype == 'return'
        elseif what == 'abort' then
            local info = util.funcinfo(func, pc)
            aborted[#aborted + 1] = info.loc or tostring(info.addr)
        end
    end, 'trace')";

/// Says whether the function is compiled, and what was given up last.
const REPORT: &str = "
    local weir = require('resty.weir')
    local func = weir.access
    if ngx.var.arg_upvalue then
        for i = 1, 60 do
            local name, value = debug.getupvalue(weir.access, i)
            if name == ngx.var.arg_upvalue then
                func = value
            end
        end
    end
    local info = debug.getinfo(func, 'S')
    ngx.say(tostring(compiled[info.source .. ':' .. info.linedefined]), ' ',
        table.concat(aborted, ' ', math.max(1, #aborted - 5)))";

fn start(fields: &str, policies: &str) -> Nginx {
    let mut conf = Conf::with_setup(&format!("{{ {fields} policies = {{ {policies} }} }}"))
        .limited("/api", "api")
        .content("/report", REPORT)
        .stats();
    conf.init = WATCH.to_owned();
    Nginx::start(&conf)
}

/// Whether the function is compiled, and what was given up last.
fn report(nginx: &Nginx, query: &str) -> (bool, String) {
    let told = nginx.client().get(&format!("/report{query}")).body;
    let (is_compiled, given_up) = told.split_once(' ').expect(&told);
    (is_compiled == "true", given_up.trim().to_owned())
}

/// Asks so often as to have all compiled, and sees that it is; each answer is to tell
/// one unit less than the one before, from `limit` on.
fn assert_compiled(nginx: &Nginx, query: &str, limit: u64) {
    let client = nginx.client();
    let mut left = limit;
    let mut ask = |times: u64| {
        for _ in 0..times {
            let answer = client.get("/api");
            left -= 1;
            assert_eq!(answer.status, 200, "{left} left: {answer:?}");
            assert_eq!(answer.number("RateLimit-Limit"), limit);
            assert_eq!(answer.number("RateLimit-Remaining"), left);
        }
    };
    ask(WARM);
    let (is_compiled, given_up) = report(nginx, query);
    assert!(is_compiled, "given up: {given_up}");
    ask(WARM / 3);
    assert_eq!(nginx.count("decisions.allowed"), limit - left);
    nginx.assert_calm_log();
}

#[test]
fn a_decision_in_memory_is_one_trace_from_the_call_to_the_headers() {
    let nginx = start("", "api = { limit = \"20000/1h\" }");
    assert_compiled(&nginx, "", 20_000);
}

#[test]
fn several_limits_and_a_key_of_two_sources_are_no_more() {
    let nginx = start(
        "",
        "api = { key = { \"$http_x_key\", \"$remote_addr\" }, limits = { { limit = \"20000/1h\" }, \
         { limit = \"30000/day\", algorithm = \"quota\" } } }",
    );
    assert_compiled(&nginx, "", 20_000);
}

#[test]
fn what_follows_a_decision_of_redis_is_one_trace() {
    let redis = Redis::start();
    let nginx = start(
        &format!("redis = {{ url = \"{}\", timeout = \"5s\" }},", redis.url()),
        "api = { limit = \"1000000/1h\", algorithm = \"sliding-counter\" }",
    );
    assert_compiled(&nginx, "?upvalue=follow", 1_000_000);
}
