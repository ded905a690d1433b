//! Secrets that lie elsewhere, and that nobody is shown.

use super::*;

const FIELDS: [&str; 4] = ["redis.url", "redis.password", "redis.sentinel_password", "secret"];

/// What every secret here has in it.
const MARK: &str = "hunter2";

/// A configuration with this value for this field, in whose place it is.
fn with(field: &str, value: Value) -> Value {
    let redis = match field {
        "redis.url" => table([("url", value)]),
        "redis.password" => table([("url", text("redis://localhost")), ("password", value)]),
        "redis.sentinel_password" => table([
            ("sentinels", Value::List(vec![text("redis://localhost")])),
            ("master", text("mymaster")),
            ("sentinel_password", value),
        ]),
        _ => {
            let policy = table([("limit", text("1/s")), ("hash_keys", Value::Boolean(true))]);
            return table([
                ("redis", table([("url", text("redis://localhost"))])),
                ("secret", value),
                ("policies", table([("api", policy)])),
            ]);
        }
    };
    table([("redis", redis), ("policies", table([("api", table([("limit", text("1/s"))]))]))])
}

fn file(path: &str) -> Value {
    table([("file", text(path))])
}

fn variable(name: &str) -> Value {
    table([("env", text(name))])
}

/// What the field has become, but for `secret`, which is only a key by now.
fn taken(field: &str, redis: RedisConfig) -> SecretString {
    match (field, redis.deployment) {
        ("redis.url", Deployment::Single { url }) => url,
        (_, Deployment::Single { .. }) => redis.password.expect("a password"),
        (_, Deployment::Sentinel { password, .. }) => password.expect("a password"),
        (_, other) => panic!("{other:?}"),
    }
}

#[test]
fn every_secret_stands_there_or_lies_in_a_file_or_the_environment() {
    let secret = format!("redis://{MARK}-{MARK}");
    for field in FIELDS {
        for (value, source) in [
            (text(&secret), None),
            (file("/run/s"), Some(SecretSource::File("/run/s".to_owned()))),
            (variable("S"), Some(SecretSource::Env("S".to_owned()))),
        ] {
            let read = |asked: &SecretSource| {
                assert_eq!(Some(asked), source.as_ref());
                Ok(secret.clone().into_bytes())
            };
            let config = Config::check(with(field, value), &read).expect("valid");
            match field {
                "secret" => assert!(config.secret.is_some()),
                _ => assert_eq!(taken(field, config.redis.expect("a redis")).expose(), secret),
            }
        }
    }
}

#[test]
fn one_newline_at_the_end_of_a_file_is_not_part_of_the_secret() {
    let password = |value, content: &str| {
        let read = |_: &SecretSource| Ok(content.as_bytes().to_vec());
        let config = Config::check(with("redis.password", value), &read).expect("valid");
        taken("redis.password", config.redis.expect("a redis")).expose().to_owned()
    };
    for (content, expected) in [("pw\n", "pw"), ("pw\n\n", "pw\n"), ("\npw ", "\npw ")] {
        assert_eq!(password(file("/run/s"), content), expected);
    }
    assert_eq!(password(variable("S"), "pw\n"), "pw\n");
}

#[test]
fn a_secret_that_cannot_be_had_is_refused_by_field_and_place() {
    let (file, variable) = (|| file("/run/s"), || variable("S"));
    for field in FIELDS {
        for (value, content, problem) in [
            (file(), Ok(&b""[..]), "the file \"/run/s\" is empty"),
            (file(), Ok(b"\n"), "the file \"/run/s\" is empty"),
            (file(), Ok(b"hunter2\xff"), "the file \"/run/s\" is not valid UTF-8"),
            (file(), Err("cannot be read"), "the file \"/run/s\" cannot be read"),
            (variable(), Ok(b""), "the variable \"S\" is empty"),
            (variable(), Ok(b"hunter2\xff"), "the variable \"S\" is not valid UTF-8"),
            (variable(), Err("is not set"), "the variable \"S\" is not set"),
        ] {
            let read = |_: &SecretSource| {
                content.map(<[u8]>::to_vec).map_err(|problem| problem.to_owned())
            };
            let refused = Config::check(with(field, value), &read).expect_err(problem);
            assert_eq!(refused.to_string(), format!("{field}: {problem}"));
        }
    }
}

#[test]
fn what_does_not_say_where_a_secret_lies_is_refused() {
    const WANTED: &str = "must be text, { file = \"/path\" } or { env = \"NAME\" }";
    let both = table([("file", text("/run/s")), ("env", text("S"))]);
    for field in FIELDS {
        for (value, inner, problem) in [
            (text(""), "", "is empty".to_owned()),
            (Value::Number(1.0), "", format!("{WANTED}, not a number")),
            (Value::List(vec![text(MARK)]), "", format!("{WANTED}, not a list")),
            (table([]), "", WANTED.to_owned()),
            (both.clone(), ".env", "cannot stand beside file".to_owned()),
            (file("run/s"), ".file", "must be an absolute path".to_owned()),
            (variable(""), ".env", "must be the name of a variable".to_owned()),
            (variable("A=B"), ".env", "must be the name of a variable".to_owned()),
            (
                table([("path", text("/run/s"))]),
                ".path",
                "unknown field; known here are file, env".to_owned(),
            ),
            (
                table([("file", Value::Boolean(true))]),
                ".file",
                "must be a string, not a boolean".to_owned(),
            ),
        ] {
            assert_eq!(refusal(with(field, value)), format!("{field}{inner}: {problem}"));
        }
    }
}

#[test]
fn a_secret_is_never_shown() {
    let secret = format!("redis://:{MARK}@{MARK}");
    for field in FIELDS {
        let config = with(field, text(&secret));
        assert!(!format!("{config:?}").contains(MARK));
        let config = check(config).expect("valid");
        assert!(!format!("{config:?} {config:#?}").contains(MARK), "{field}");
    }
    assert_eq!(format!("{:?}", SecretString::new(MARK)), "SecretString");
    let short = refusal(with("secret", text(MARK)));
    assert_eq!(short, "secret: must be at least 16 bytes long");
}
