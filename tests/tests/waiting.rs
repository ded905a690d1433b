//! Where a decision of Redis can be waited for, and where not.

use std::thread::scope;
use std::time::Duration;

use weir_tests::{Conf, Nginx, Redis, wait_until};

/// Lua cannot leave a function of C to wait: the call fails, as `on_error` has it, and
/// nginx goes on with the wait.
#[test]
fn a_wait_that_lua_cannot_leave_spoils_no_other_request() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), "api = { limit = \"1000/1m\", on_error = \"closed\" }")
        .limited("/api", "api")
        .content(
            "/mistake",
            "local weir = require(\"resty.weir\")
            string.gsub(\"x\", \"x\", function() weir.check(\"api\") end)
            weir.check(\"api\")
            ngx.print(\"ok\")",
        )
        .stats();
    let nginx = Nginx::start(&conf);
    let client = nginx.client();
    assert_eq!(client.get("/api").status, 200);

    // All that is asked while another waits leaves together, and its answers come so.
    redis.freeze();
    scope(|scope| {
        let ask = |path| {
            let nginx = &nginx;
            scope.spawn(move || nginx.client().get(path).status)
        };
        let under_way = |count| {
            wait_until("they wait", Duration::from_secs(5), || nginx.count("waiting") == count);
        };
        let first = ask("/api");
        under_way(1);
        let mistake = ask("/mistake");
        under_way(3);
        redis.thaw();
        assert_eq!((first.join().unwrap(), mistake.join().unwrap()), (200, 200));
    });
    assert_eq!(nginx.count("errors.fault"), 1);
    assert_eq!(nginx.log_lines("attempt to yield across C-call boundary").len(), 1);

    let statuses: Vec<u16> = (0..10).map(|_| client.get("/api").status).collect();
    assert_eq!(statuses, [200; 10]);
    wait_until("nobody waits", Duration::from_secs(5), || nginx.count("waiting") == 0);
}
