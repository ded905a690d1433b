//! How TLS is spoken.

use super::*;

fn tls_url() -> (&'static str, Value) {
    ("url", text("rediss://localhost"))
}

#[test]
fn tls_has_everything_in_its_table() {
    assert_eq!(valid([tls_url()]).tls, Tls::default());
    assert_eq!(valid([tls_url(), ("tls", table([]))]).tls, Tls::default());
    let all = valid([
        ("cluster", addresses(["rediss://a", "rediss://b"])),
        (
            "tls",
            table([
                ("ca_file", text("/etc/ca.pem")),
                ("cert_file", text("/etc/weir.pem")),
                ("key_file", text("/etc/weir.key")),
                ("server_name", text("redis.internal")),
                ("insecure_skip_verify", Value::Boolean(true)),
            ]),
        ),
    ]);
    let path = |path: &str| Some(path.to_owned());
    let expected = Tls {
        ca_file: path("/etc/ca.pem"),
        cert_file: path("/etc/weir.pem"),
        key_file: path("/etc/weir.key"),
        server_name: Some("redis.internal".to_owned()),
        insecure_skip_verify: true,
    };
    assert_eq!(all.tls, expected);
    let sentinels = ("sentinels", addresses(["rediss://a"]));
    let tls = ("tls", table([("ca_file", text("/etc/ca.pem"))]));
    assert_eq!(valid([sentinels, master(), tls]).tls.ca_file.as_deref(), Some("/etc/ca.pem"));
}

#[test]
fn tls_is_refused_where_it_would_not_be_spoken_or_not_be_verified() {
    let tls = |fields| with([tls_url(), ("tls", fields)]);
    assert_refused([
        (with([url(), ("tls", table([]))]), "redis.tls: is for rediss:// addresses alone"),
        (with([cluster(), ("tls", table([]))]), "redis.tls: is for rediss:// addresses alone"),
        (
            with([("url", text("unix:///run/redis.sock")), ("tls", table([]))]),
            "redis.tls: is for rediss:// addresses alone",
        ),
        (tls(Value::Boolean(true)), "redis.tls: must be a table of named fields, not a boolean"),
        (
            tls(table([("verify", Value::Boolean(false))])),
            "redis.tls.verify: unknown field; known here are ca_file, cert_file, key_file, \
             server_name, insecure_skip_verify",
        ),
        (tls(table([("ca_file", text("ca.pem"))])), "redis.tls.ca_file: must be an absolute path"),
        (
            tls(table([("cert_file", text("/c")), ("key_file", text("k"))])),
            "redis.tls.key_file: must be an absolute path",
        ),
        (
            tls(table([("cert_file", text("/c"))])),
            "redis.tls.key_file: missing; it must be the path of cert_file's private key",
        ),
        (
            tls(table([("key_file", text("/k"))])),
            "redis.tls.cert_file: missing; it must be the path of key_file's certificate",
        ),
        (
            tls(table([("server_name", text(""))])),
            "redis.tls.server_name: \"\": must be the name of a host, as \"redis.internal\"",
        ),
        (
            tls(table([("server_name", text("rediss://a"))])),
            "redis.tls.server_name: \"rediss://a\": must be the name of a host, as \
             \"redis.internal\"",
        ),
        (
            with([
                ("sentinels", addresses(["rediss://a"])),
                master(),
                ("tls", table([("server_name", text("redis.internal"))])),
            ]),
            "redis.tls.server_name: cannot stand beside sentinels: there are several hosts to \
             verify",
        ),
        (
            tls(table([("insecure_skip_verify", text("yes"))])),
            "redis.tls.insecure_skip_verify: must be true or false, not a string",
        ),
    ]);
    let long = "x".repeat(254);
    let refused = refusal(tls(table([("server_name", text(&long))])));
    let wanted = "must be the name of a host, as \"redis.internal\"";
    assert_eq!(refused, format!("redis.tls.server_name: \"{long}\": {wanted}"));
}
