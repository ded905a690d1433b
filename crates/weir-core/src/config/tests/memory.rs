use super::*;

/// The `api` policy under these fields beside the policies.
fn with(fields: &[(&str, Value)]) -> Value {
    with_policy_and(&[], fields)
}

fn with_policy_and(policy: &[(&str, Value)], fields: &[(&str, Value)]) -> Value {
    let owned = |fields: &[(&str, Value)]| {
        fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    };
    let mut api: std::collections::BTreeMap<String, Value> = owned(policy);
    api.insert("limit".to_owned(), text("100/1m"));
    let mut config: std::collections::BTreeMap<String, Value> = owned(fields);
    config.insert("policies".to_owned(), table([("api", Value::Table(api))]));
    Value::Table(config)
}

fn redis() -> (&'static str, Value) {
    ("redis", table([("url", text("redis://localhost"))]))
}

#[test]
fn the_store_is_the_memory_unless_there_is_a_redis() {
    let is_redis = |fields: &[_]| check(with(fields)).expect("valid").redis.is_some();
    assert!(!is_redis(&[]));
    assert!(!is_redis(&[("store", text("memory"))]));
    assert!(is_redis(&[redis()]));
    assert!(is_redis(&[redis(), ("store", text("redis"))]));
    assert!(!is_redis(&[redis(), ("store", text("memory"))]), "the word decides");
    for (fields, message) in [
        (
            vec![("store", text("redis"))],
            "redis: missing; it must be a table, since store is \"redis\"",
        ),
        (vec![("store", text("file"))], "store: \"file\": must be \"redis\" or \"memory\""),
        (vec![("store", Value::Boolean(true))], "store: must be a string, not a boolean"),
        // What is not used is checked all the same.
        (
            vec![("store", text("memory")), ("redis", table([]))],
            "redis.url: missing; it must be a string like \"redis://127.0.0.1:6379/0\", \
             where there is neither sentinels nor cluster",
        ),
    ] {
        assert_eq!(refusal(with(&fields)), message);
    }
}

#[test]
fn memory_has_a_size() {
    let size = |text_: &str| {
        check(with(&[("memory", table([("size", text(text_))]))])).map(|config| config.memory.size)
    };
    assert_eq!(check(with(&[])).expect("valid").memory.size, 32 << 20);
    assert_eq!(size("1m").expect("valid"), 1 << 20);
    assert_eq!(size("64g").expect("valid"), 64 << 30);
    for (text, message) in [
        ("1023k", "memory.size: \"1023k\": must be from 1m to 64g"),
        ("65g", "memory.size: \"65g\": must be from 1m to 64g"),
        ("32", "memory.size: \"32\": expected a whole number and k, m or g, as in \"32m\""),
    ] {
        assert_eq!(size(text).expect_err(text).to_string(), message);
    }
    let message = refusal(with(&[("memory", table([("size", Value::Number(32.0))]))]));
    assert_eq!(message, "memory.size: must be a string, not a number");
    let message = refusal(with(&[("memory", table([("sise", text("32m"))]))]));
    assert_eq!(message, "memory.sise: unknown field; known here are size");
}

#[test]
fn a_policy_shares_and_remembers_as_the_configuration_says_unless_it_says_so_itself() {
    let policy = |policy: &[_], fields: &[_]| {
        let config = check(with_policy_and(policy, fields)).expect("valid");
        let api = &config.policies[0];
        (api.local_share, api.remember_denials)
    };
    let share = |number: f64| ("local_share", Value::Number(number));
    let remember = |flag| ("remember_denials", Value::Boolean(flag));
    assert_eq!(policy(&[], &[]), (1, true));
    assert_eq!(policy(&[], &[share(4.0), remember(false)]), (4, false));
    assert_eq!(policy(&[share(2.0), remember(true)], &[share(4.0), remember(false)]), (2, true));
    let message = refusal(with(&[share(0.0)]));
    assert_eq!(message, "local_share: 0: must be a whole number from 1 to 10000");
    let message = refusal(with_policy_and(&[("remember_denials", text("no"))], &[]));
    assert_eq!(message, "policies.api.remember_denials: must be true or false, not a string");
}

#[test]
fn on_error_may_be_local() {
    let config = check(with_policy_and(&[("on_error", text("local"))], &[])).expect("valid");
    assert_eq!(config.policies[0].on_error, OnError::Local);
}

/// In the fallback too: its rate is the limit divided by the share.
#[test]
fn a_shared_token_bucket_has_one_share() {
    let policy = |share: f64, on_error: &str, algorithm: &str| {
        table([
            ("limit", text("10/1s")),
            ("algorithm", text(algorithm)),
            ("bucket", text("both")),
            ("local_share", Value::Number(share)),
            ("on_error", text(on_error)),
        ])
    };
    let both = |one: Value, other: Value| {
        check(table([redis(), ("policies", table([("a", one), ("b", other)]))])).map(|_| ())
    };
    let bucket = |share, on_error| policy(share, on_error, "token-bucket");
    let error = both(bucket(2.0, "open"), bucket(3.0, "local")).expect_err("two rates");
    assert_eq!(
        error.to_string(),
        "policies.b.local_share: 3: a token bucket that is shared has one rate, \
         but in policies.a local_share is 2"
    );
    assert!(both(bucket(2.0, "open"), bucket(2.0, "local")).is_ok());
    assert!(both(bucket(2.0, "open"), bucket(3.0, "closed")).is_ok(), "not used");
    let log = |share| policy(share, "local", "sliding-log");
    assert!(both(log(2.0), log(3.0)).is_ok(), "a log has no rate");
}
