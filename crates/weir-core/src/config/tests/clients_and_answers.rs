//! Whom a policy counts, and what they are told.

use super::*;
use crate::address::Prefixes;
use crate::fields::HeaderStyle;
use crate::policy::{Charge, KeySource};

/// A policy with this field, or why there is none.
fn with(field: &str, value: Value) -> Result<Policy, String> {
    let config = with_policy(table([("limit", text("5/10s")), (field, value)]));
    check(config).map(|mut config| config.policies.remove(0)).map_err(|e| e.to_string())
}

fn valid(field: &str, value: Value) -> Policy {
    with(field, value).expect(field)
}

fn list<const N: usize>(texts: [&str; N]) -> Value {
    Value::List(texts.map(text).into())
}

fn number(number: f64) -> Value {
    Value::Number(number)
}

#[test]
fn a_key_has_one_template_or_parts() {
    let key = |value| match valid("key", value).key {
        KeyRule::Sources(sources) => sources
            .iter()
            .map(|KeySource(templates)| templates.iter().map(|t| t.text().to_owned()).collect())
            .collect::<Vec<Vec<String>>>(),
        KeyRule::Function => panic!("a function"),
    };
    let parts = || table([("parts", list(["$server_name", "$http_x_api_key"]))]);
    assert_eq!(key(text("everyone")), [["everyone"]]);
    assert_eq!(key(parts()), [["$server_name", "$http_x_api_key"]]);
    let mixed = Value::List(vec![parts(), text("$remote_addr")]);
    assert_eq!(key(mixed), [&["$server_name", "$http_x_api_key"][..], &["$remote_addr"]]);
}

#[test]
fn a_key_in_parts_cannot_be_taken_for_another() {
    let source = |templates: &[&str]| {
        let template = |text: &&str| crate::Template::parse(text).expect(text);
        String::from_utf8(KeySource(templates.iter().map(template).collect()).escaped())
            .expect("ASCII")
    };
    assert_eq!(source(&["$a", "$b"]), "$a&$b");
    assert_eq!(source(&["$a&$b"]), "$a%26$b");
}

#[test]
fn clients_are_taken() {
    let ip = table([("v4_prefix", number(24.0)), ("v6_prefix", number(56.0))]);
    assert_eq!(Some(valid("ip", ip).ip), Prefixes::new(24, 56));
    let ip = table([("v6_prefix", number(128.0))]);
    assert_eq!(Some(valid("ip", ip).ip), Prefixes::new(32, 128));

    let items = vec![text("10.0.0.0/8"), text("OPTIONS"), Value::Function, text("::1")];
    let exempt = valid("exempt", Value::List(items)).exempt;
    assert!(exempt.function && exempt.networks.contains("10.9.9.9"));
    assert!(exempt.networks.contains("::1") && !exempt.networks.contains("::2"));
    assert_eq!(exempt.methods, ["OPTIONS"]);
    assert_eq!(valid("exempt", text("OPTIONS")).exempt.methods, ["OPTIONS"]);
    assert!(valid("exempt", Value::Function).exempt.function);

    assert_eq!(valid("charge", text("always")).charge, Charge::Always);
    let statuses = Value::List(vec![number(401.0), number(403.0)]);
    assert_eq!(valid("charge", statuses).charge, Charge::Statuses(vec![401, 403]));
    assert!(valid("dry_run", Value::Boolean(true)).dry_run);
}

#[test]
fn answers_are_taken() {
    let headers = |value| valid("headers", value).answers.headers;
    assert_eq!(headers(text("none")), []);
    assert_eq!(headers(text("x")), [HeaderStyle::X]);
    let both = [HeaderStyle::Draft11, HeaderStyle::Separate];
    assert_eq!(headers(list(["draft-11", "separate"])), both);

    let body = || table([("type", text("text/plain; charset=utf-8")), ("text", text("Slow."))]);
    let own = valid("body", body()).answers.body.expect("a body");
    assert_eq!(
        (own.media_type.as_str(), own.text.as_str()),
        ("text/plain; charset=utf-8", "Slow.")
    );
    assert!(valid("error_body", body()).answers.error_body.is_some());
    assert!(valid("error_page", Value::Boolean(true)).answers.error_page);
    assert!(valid("expose", Value::Boolean(true)).answers.expose);
    assert_eq!(valid("grpc_status", number(14.0)).answers.grpc_status, 14);
    let header = valid("dry_run_header", text("X-Dry-Run")).answers.dry_run_header;
    assert_eq!(header.as_deref(), Some("X-Dry-Run"));
}

#[test]
fn limits_have_names() {
    let limit = |name: Option<&str>, limit| {
        let name = name.map(|name| ("name".to_owned(), text(name)));
        Value::Table([("limit".to_owned(), text(limit))].into_iter().chain(name).collect())
    };
    let names = |limits: Vec<Value>| {
        let config = with_policy(table([("limits", Value::List(limits))]));
        check(config).map(|mut config| config.policies.remove(0).limit_names)
    };
    assert_eq!(valid("dry_run", Value::Boolean(false)).limit_names, ["api"]);
    assert_eq!(names(vec![limit(None, "5/1s")]).expect("valid"), ["api"]);
    assert_eq!(
        names(vec![limit(Some("burst"), "5/1s"), limit(None, "9/1h")]).expect("valid"),
        ["burst", "api:log:1h"]
    );
    for (limits, message) in [
        (
            vec![limit(Some("a"), "5/1s"), limit(Some("a"), "9/1h")],
            "policies.api.limits[2].name: \"a\": another limit has that name",
        ),
        (
            vec![limit(Some("a b"), "5/1s")],
            "policies.api.limits[1].name: \"a b\": must be 1 to 64 letters, digits, \"_\", \"-\" or \".\"",
        ),
    ] {
        assert_eq!(names(limits).expect_err("refused").to_string(), message);
    }
}

#[test]
fn what_is_wrong_is_refused_by_the_name_of_its_field() {
    let no_headers = "policies.api.headers: must be one or a list of \"separate\", \"draft-11\", \
                      \"x\", or \"none\", not a boolean";
    for (field, value, message) in [
        (
            "key",
            text("remote_addr"),
            "policies.api.key: \"remote_addr\": would be one budget for everybody; the variable \
             is \"$remote_addr\"",
        ),
        (
            "key",
            list(["http_x_key"]),
            "policies.api.key[1]: \"http_x_key\": would be one budget for everybody; the variable \
             is \"$http_x_key\"",
        ),
        (
            "key",
            table([("part", list(["$a"]))]),
            "policies.api.key.part: unknown field; known here are parts",
        ),
        (
            "key",
            table([("parts", text("$a"))]),
            "policies.api.key.parts: must be a list of strings, as { \"$host\", \"$arg_k\" }, \
             not a string",
        ),
        (
            "key",
            Value::List(vec![text("$a"), table([("parts", list(["$b", "$"]))])]),
            "policies.api.key[2].parts[2]: \"$\": a variable name must follow every \"$\", \
             as in \"$remote_addr\" or \"${remote_addr}\"",
        ),
        (
            "ip",
            table([("v6_prefix", number(129.0))]),
            "policies.api.ip.v6_prefix: 129: must be a whole number from 1 to 128",
        ),
        (
            "ip",
            table([("v4_prefix", number(0.0))]),
            "policies.api.ip.v4_prefix: 0: must be a whole number from 1 to 32",
        ),
        (
            "ip",
            number(64.0),
            "policies.api.ip: must be a table, as { v4_prefix = 32, v6_prefix = 64 }, not a number",
        ),
        (
            "exempt",
            list(["10.0.0.0/8", "10.0.0.1/8"]),
            "policies.api.exempt[2]: \"10.0.0.1/8\": must be a network such as \"10.0.0.0/8\" \
             (with no bit set behind its prefix), an address, or a method such as \"OPTIONS\"",
        ),
        (
            "exempt",
            text("options"),
            "policies.api.exempt[1]: \"options\": must be a network such as \"10.0.0.0/8\" \
             (with no bit set behind its prefix), an address, or a method such as \"OPTIONS\"",
        ),
        (
            "exempt",
            Value::List(vec![Value::Function, Value::Function]),
            "policies.api.exempt[2]: is a second function; one is the most",
        ),
        (
            "exempt",
            Value::Boolean(true),
            "policies.api.exempt: must be a list, as { \"10.0.0.0/8\", \"OPTIONS\" }, a string or a function, \
             not a boolean",
        ),
        (
            "hash_keys",
            Value::Boolean(true),
            "secret: missing; it must be at least 16 bytes, as \"openssl rand -hex 32\" prints them, since \
             there is policies.api.hash_keys",
        ),
        (
            "charge",
            text("never"),
            "policies.api.charge: must be \"always\" or a list of statuses, as { 401, 403 }, \
             not a string",
        ),
        (
            "charge",
            Value::List(vec![number(401.0), number(600.0)]),
            "policies.api.charge[2]: 600: must be a status from 100 to 599",
        ),
        (
            "charge",
            table([]),
            "policies.api.charge: must be \"always\" or a list of statuses, as { 401, 403 }, \
             not an empty table",
        ),
        (
            "charge",
            Value::List(vec![text("401")]),
            "policies.api.charge[1]: must be a status, not a string",
        ),
        (
            "error_status",
            number(499.0),
            "policies.api.error_status: 499: has a meaning of its own in nginx; 503 is the usual one",
        ),
        (
            "dry_run_header",
            text("Content-Length"),
            "policies.api.dry_run_header: \"Content-Length\": has another meaning; take a name \
             such as \"X-Dry-Run\"",
        ),
        (
            "dry_run_header",
            text("ratelimit"),
            "policies.api.dry_run_header: \"ratelimit\": has another meaning; take a name \
             such as \"X-Dry-Run\"",
        ),
        ("dry_run", text("yes"), "policies.api.dry_run: must be true or false, not a string"),
        ("headers", Value::Boolean(false), no_headers),
        (
            "headers",
            list(["separate", "none"]),
            "policies.api.headers: \"none\": must be one or a list of \"separate\", \"draft-11\", \
             \"x\", or \"none\"",
        ),
        ("headers", list(["x", "x"]), "policies.api.headers: \"x\" stands there twice"),
        (
            "partition_key",
            Value::Boolean(true),
            "policies.api.partition_key: is for the headers \"draft-11\" alone",
        ),
        (
            "dry_run_header",
            text("X Dry"),
            "policies.api.dry_run_header: \"X Dry\": must be the name of a header, as \"X-Dry-Run\"",
        ),
        (
            "body",
            text("no"),
            "policies.api.body: must be a table, as { type = \"text/plain\", text = \"Slow \
             down.\\n\" }, not a string",
        ),
        (
            "body",
            table([("type", text("plain")), ("text", text("x"))]),
            "policies.api.body.type: \"plain\": must be a media type, as \"application/json\"",
        ),
        (
            "error_body",
            table([("type", text("text/plain"))]),
            "policies.api.error_body.text: missing; it must be a string",
        ),
        (
            "grpc_status",
            number(0.0),
            "policies.api.grpc_status: 0: must be a whole number from 1 to 16",
        ),
    ] {
        assert_eq!(with(field, value).expect_err(field), message);
    }
    let both = with_policy(table([
        ("limit", text("1/s")),
        ("error_page", Value::Boolean(true)),
        ("body", table([("type", text("text/plain")), ("text", text("x"))])),
    ]));
    assert_eq!(
        refusal(both),
        "policies.api.body: cannot stand beside error_page, which has the last word"
    );
}

#[test]
fn a_secret_is_long_enough_and_never_shown() {
    let config = |secret: &str| {
        check(table([
            ("redis", table([("url", text("redis://localhost"))])),
            ("secret", text(secret)),
            (
                "policies",
                table([(
                    "api",
                    table([("limit", text("1/s")), ("hash_keys", Value::Boolean(true))]),
                )]),
            ),
        ]))
    };
    let refused = config("hunter2").expect_err("too short").to_string();
    assert_eq!(refused, "secret: must be at least 16 bytes long");
    let taken = config("hunter2hunter2hunter2").expect("long enough");
    assert!(taken.secret.is_some() && taken.policies[0].hash_keys);
    assert!(!format!("{taken:?}").contains("hunter2"));
}
