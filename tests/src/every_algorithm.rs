//! A policy for each algorithm, and a location that asks for whatever there is.

use crate::Conf;

/// The algorithms, with a limit each: 5, but 60 of the compact log, which is
/// another one above 32. Windows are long, so that none ends under way.
const LIMITS: [&str; 5] = [
    "{ limit = \"5/366d\" }",
    "{ limit = \"60/366d\", algorithm = \"compact-log\" }",
    "{ limit = \"5/366d\", algorithm = \"sliding-counter\" }",
    "{ limit = \"5/90d\", algorithm = \"token-bucket\" }",
    "{ limit = \"5/month\", algorithm = \"quota\" }",
];

/// Their policies; the last has all the limits.
pub const POLICIES: [&str; 6] = ["log", "ring", "counter", "bucket", "quota", "several"];

/// A configuration with these fields of `redis`. `/run?policy=P&cost=N` decides for
/// the client `k`, or whom `key` names; with `refund=N` or `charge=N` a request that
/// passes is settled, and the answer says what that returned. All fails closed, so
/// that no failure hides, and no refusal is remembered, so that Redis is asked about
/// each request.
pub fn conf(redis: &str) -> Conf {
    let [log, ring, counter, bucket, quota] = LIMITS;
    let limits = [
        format!("limits = {{ {log} }}"),
        format!("limits = {{ {ring} }}"),
        format!("limits = {{ {counter} }}"),
        format!("limits = {{ {bucket} }}"),
        format!("limits = {{ {quota} }}"),
        format!("limits = {{ {log}, {ring}, {counter}, {bucket}, {quota} }}"),
    ];
    let policies: String = POLICIES
        .iter()
        .zip(limits)
        .map(|(name, limits)| {
            format!("{name} = {{ {limits}, on_error = \"closed\", remember_denials = false }}, ")
        })
        .collect();
    let lua = r#"
        local weir, arg = require "resty.weir", ngx.req.get_uri_args()
        weir.access(arg.policy, { key = arg.key or "k", cost = tonumber(arg.cost) })
        if arg.refund then
            ngx.ctx.afterwards = weir.refund(tonumber(arg.refund))
        elseif arg.charge then
            ngx.ctx.afterwards = weir.charge(tonumber(arg.charge))
        end"#;
    let mut conf = Conf::on(&format!("{redis}, timeout = \"5s\""), &policies).stats();
    conf.locations.push_str(&format!(
        "location /run {{ access_by_lua_block {{ {lua} }} \
         content_by_lua_block {{ ngx.print(tostring(ngx.ctx.afterwards)) }} }}\n"
    ));
    conf
}
