use std::time::Duration;

use super::*;
use crate::Limit;
use crate::policy::{KeyRule, OnError};
use crate::template::Part;

mod clients_and_answers;
mod limits;
mod memory;
mod redis;
mod secrets;

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn table<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Table(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// A configuration with this policy `api`, and nothing else of note.
fn with_policy(policy: Value) -> Value {
    table([
        ("redis", table([("url", text("redis://localhost"))])),
        ("policies", table([("api", policy)])),
    ])
}

/// A configuration in which every secret stands itself.
fn check(config: Value) -> Result<Config, ConfigError> {
    Config::check(config, &|source| panic!("{source} is none of this configuration"))
}

fn refusal(config: Value) -> String {
    check(config).expect_err("it must be refused").to_string()
}

#[test]
fn the_defaults_are_the_documented_ones() {
    let config = check(with_policy(table([("limit", text("100/1m"))]))).expect("valid");
    let redis = config.redis.expect("a redis");
    assert_eq!(redis.timeout, Duration::from_millis(100));
    assert_eq!(redis.queue, 10_000);
    assert_eq!(redis.prefix, "weir");
    assert_eq!(config.runtime_dir, None);
    let policy = &config.policies[0];
    assert_eq!((policy.on_error, policy.error_status), (OnError::Open, 503));
    let KeyRule::Sources(key) = &policy.key else { panic!("a template by default") };
    assert_eq!(key[0].0[0].parts(), [Part::Variable("remote_addr".to_owned())]);
    // In all else a policy is as if nothing had been written.
    let expected = Policy { key: policy.key.clone(), ..Policy::new("api", policy.limits.clone()) };
    assert_eq!(policy, &expected);
}

#[test]
fn every_field_is_taken() {
    let config = check(table([
        (
            "redis",
            table([
                ("url", text("redis://localhost")),
                ("timeout", text("2s")),
                ("queue", Value::Number(7.0)),
                ("prefix", text("staging")),
            ]),
        ),
        ("runtime_dir", text("/run/weir")),
        (
            "policies",
            table([
                ("b", table([("limit", text("1/s")), ("key", Value::Function)])),
                (
                    "a",
                    table([
                        ("limit", text("5/10s")),
                        ("key", Value::List(vec![text("$http_x"), text("$remote_addr")])),
                        ("on_error", text("closed")),
                        ("error_status", Value::Number(500.0)),
                    ]),
                ),
            ]),
        ),
    ]))
    .expect("valid");
    let redis = config.redis.expect("a redis");
    assert_eq!(redis.timeout, Duration::from_secs(2));
    assert_eq!(redis.queue, 7);
    assert_eq!(redis.prefix, "staging");
    assert_eq!(config.runtime_dir.as_deref(), Some("/run/weir"));
    let [a, b] = &config.policies[..] else { panic!("two policies") };
    assert_eq!((a.name.as_str(), a.on_error, a.error_status), ("a", OnError::Closed, 500));
    assert_eq!(a.limits, [Limit::SlidingLog("5/10s".parse().expect("a rate"))]);
    assert!(matches!(&a.key, KeyRule::Sources(key) if key.len() == 2));
    assert_eq!(b.key, KeyRule::Function);
}

#[test]
fn a_wrong_policy_is_refused_by_the_name_of_its_field() {
    let limit = || ("limit", text("5/10s"));
    for (policy, message) in [
        (table([]), "policies.api.limit: missing; it must be a string like \"100/1m\""),
        (text("5/10s"), "policies.api: must be a table of named fields, not a string"),
        (
            table([("limit", text("5/0s"))]),
            "policies.api.limit: \"5/0s\": the window must be at least 1ms",
        ),
        (
            table([("limit", Value::Number(5.0))]),
            "policies.api.limit: must be a string like \"100/1m\", not a number",
        ),
        (
            table([limit(), ("on_error", text("ignore"))]),
            "policies.api.on_error: \"ignore\": must be \"open\", \"closed\" or \"local\"",
        ),
        (
            table([limit(), ("on_error", Value::Boolean(true))]),
            "policies.api.on_error: must be a string, not a boolean",
        ),
        (
            table([limit(), ("error_status", Value::Number(200.0))]),
            "policies.api.error_status: 200: must be a whole number from 400 to 599",
        ),
        (
            table([limit(), ("error_status", Value::Number(503.5))]),
            "policies.api.error_status: 503.5: must be a whole number from 400 to 599",
        ),
        (
            table([limit(), ("error_status", Value::Number(f64::NAN))]),
            "policies.api.error_status: NaN: must be a whole number from 400 to 599",
        ),
        (
            table([limit(), ("key", text("$"))]),
            "policies.api.key: \"$\": a variable name must follow every \"$\", \
             as in \"$remote_addr\" or \"${remote_addr}\"",
        ),
        (
            table([limit(), ("key", Value::List(vec![text("$a"), Value::Number(1.0)]))]),
            "policies.api.key[2]: must be a string, not a number",
        ),
        (
            table([limit(), ("key", table([]))]),
            "policies.api.key: must be a string, a list, { parts = { ... } } or a function, \
             not an empty list",
        ),
        (
            table([limit(), ("onerror", text("open"))]),
            "policies.api.onerror: unknown field; known here are limit, algorithm, burst, limits, \
             key, ip, hash_keys, exempt, plans, bucket, charge, dry_run, on_error, error_status, \
             local_share, remember_denials, headers, partition_key, expose, dry_run_header, error_page, body, error_body, \
             grpc_status",
        ),
    ] {
        assert_eq!(refusal(with_policy(policy)), message);
    }
}

#[test]
fn a_wrong_whole_is_refused() {
    assert_eq!(refusal(table([])), "policies: missing; it must be a table");
    assert_eq!(refusal(Value::Function), "must be a table of named fields, not a function");
    let redis = || ("redis", table([("url", text("redis://localhost"))]));
    assert_eq!(refusal(table([redis()])), "policies: missing; it must be a table");
    assert_eq!(
        refusal(table([redis(), ("policies", table([]))])),
        "policies: must name at least one policy"
    );
    let limit = || table([("limit", text("1/s"))]);
    assert_eq!(
        refusal(table([redis(), ("policies", table([("a b", limit())]))])),
        "policies[\"a b\"]: the name must be 1 to 64 letters, digits, \"_\", \"-\" or \".\""
    );
    assert_eq!(
        refusal(table([
            redis(),
            ("policies", table([("a", limit())])),
            ("runtime_dir", text("x"))
        ])),
        "runtime_dir: must be an absolute path"
    );
    assert_eq!(
        refusal(table([redis(), ("policies", table([("a", limit())])), ("polices", table([]))])),
        "polices: unknown field; known here are store, redis, memory, local_share, \
         remember_denials, runtime_dir, secret, policies"
    );
}
