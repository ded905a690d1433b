//! Locations that are limited, and what was charged there.

use crate::{Nginx, Redis};

/// A directive that limits its location.
pub fn access(policy: &str) -> String {
    format!("access_by_lua_block {{ require(\"resty.weir\").access(\"{policy}\") }}")
}

/// A directive that answers `ok`.
pub const OK: &str = "content_by_lua_block { ngx.print(\"ok\") }";

/// What the policy has charged to this client.
pub fn charged(redis: &Redis, policy: &str) -> usize {
    redis.command(&format!("ZCARD weir:{{$remote_addr=127.0.0.1}}:{policy}:log:1h"))
}

/// Asks for each path, and asserts what that charges under the policy `api`.
pub fn assert_charges(nginx: &Nginx, redis: &Redis, cases: &[(&str, usize)]) {
    let client = nginx.client();
    for (path, units) in cases {
        let before = charged(redis, "api");
        let answer = client.get(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert!(answer.body.starts_with("ok"), "{path}: {answer:?}");
        assert_eq!(charged(redis, "api") - before, *units, "{path}");
    }
    nginx.assert_calm_log();
}
