//! A wrong configuration stops a start, by the name of its field and in one
//! line; on a reload the old workers go on.

use std::time::Duration;

use weir_core::{Config, Value};
use weir_tests::{Conf, Nginx, Redis, wait_until};

const REDIS: &str = "redis = { url = \"redis://127.0.0.1:1\" }";

fn policy(fields: &str) -> String {
    format!("{{ {REDIS}, policies = {{ login = {{ {fields} }} }} }}")
}

fn refused() -> Vec<(String, &'static str)> {
    let policies = "policies = { api = { limit = \"1/s\" } }";
    vec![
        (
            policy("limit = \"5/0s\""),
            "policies.login.limit: \"5/0s\": the window must be at least 1ms",
        ),
        (
            policy("limit = \"0/1s\""),
            "policies.login.limit: \"0/1s\": the limit must be a whole number",
        ),
        (
            policy("limit = \"-1/1s\""),
            "policies.login.limit: \"-1/1s\": the limit must be a whole number",
        ),
        (
            policy("limit = \"1.5/1s\""),
            "policies.login.limit: \"1.5/1s\": the limit must be a whole",
        ),
        (policy("limit = \"abc\""), "policies.login.limit: \"abc\": expected N/W"),
        (policy("limit = \"9007199254740992/1s\""), "from 1 to 9007199254740991"),
        (
            policy("limit = \"5/367d\""),
            "policies.login.limit: \"5/367d\": the window must be at most 366d",
        ),
        (
            policy("limit = 5"),
            "policies.login.limit: must be a string like \"100/1m\", not a number",
        ),
        (policy(""), "policies.login.limit: missing"),
        (
            policy("limit = \"1/s\", key = 7"),
            "policies.login.key: must be a string, a list, { parts = { ... } } or a function, not",
        ),
        (
            policy("limit = \"1/s\", key = { \"$a\", false }"),
            "policies.login.key[2]: must be a string",
        ),
        (
            policy("limit = \"1/s\", key = { \"$a\", nil, \"$b\" }"),
            "policies.login.key: is a list with holes",
        ),
        (
            policy("limit = \"1/s\", key = { \"$a\", x = 1 }"),
            "policies.login.key: mixes a list with named",
        ),
        (
            policy("limit = \"1/s\", key = \"$\""),
            "policies.login.key: \"$\": a variable name must follow",
        ),
        (
            policy("limit = \"1/s\", on_error = \"shut\""),
            "policies.login.on_error: \"shut\": must be",
        ),
        (
            policy("limit = \"1/s\", error_status = 200"),
            "policies.login.error_status: 200: must be",
        ),
        (
            policy("limit = \"1/s\", brust = 5"),
            "policies.login.brust: unknown field; known here are",
        ),
        (policy("limit = \"1/s\\255\""), "policies.login.limit: is not valid UTF-8"),
        (policy("limit = \"1/month\""), "month is a period of the algorithm \"quota\""),
        (policy("limit = \"1/1h\", algorithm = \"quota\""), "must be hour, day or month"),
        (
            policy("limit = \"1/s\", algorithm = \"gcra\""),
            "policies.login.algorithm: \"gcra\": must be one of \"sliding-log\"",
        ),
        (
            policy("limit = \"1/s\", algorithm = \"token-bucket\", burst = 0"),
            "policies.login.burst: 0: must be a whole number from 1 to 9007199254740991",
        ),
        (
            policy("limit = \"1/s\", burst = 2"),
            "policies.login.burst: is for the algorithm \"token-bucket\" alone",
        ),
        (
            policy("limits = { { limit = \"1/s\" }, { limit = \"2/1s\" } }"),
            "policies.login.limits[2]: has the algorithm and window of limits[1], and so its key",
        ),
        (
            policy("limits = { { limit = \"1/s\" }, { limit = \"0/1m\" } }"),
            "policies.login.limits[2].limit: \"0/1m\": the limit must be a whole number",
        ),
        (policy("limits = {}"), "policies.login.limits: must have at least one limit"),
        (
            policy("limit = \"1/s\", plans = { gold = \"9/1m\" }"),
            "policies.login.plans.gold.limit: is a log:1m, and the policy's own limit a log:1s",
        ),
        (
            policy("limit = \"1/s\", plans = { \"9/1s\" }"),
            "policies.login.plans: must be a table of named fields, not a list",
        ),
        (policy("limit = \"1/s\", bucket = \"a b\""), "policies.login.bucket: must be 1 to 64"),
        (
            policy("limit = \"1/s\", key = \"remote_addr\""),
            "policies.login.key: \"remote_addr\": would be one budget for everybody",
        ),
        (
            policy("limit = \"1/s\", key = { { parts = { \"$a\", 7 } } }"),
            "policies.login.key[1].parts[2]: must be a string, not a number",
        ),
        (
            policy("limit = \"1/s\", ip = { v6_prefix = 0 }"),
            "policies.login.ip.v6_prefix: 0: must be a whole number from 1 to 128",
        ),
        (
            policy("limit = \"1/s\", hash_keys = true"),
            "secret: missing; it must be at least 16 bytes, as",
        ),
        (
            policy("limit = \"1/s\", exempt = { \"10.0.0.0/8\", \"option\" }"),
            "policies.login.exempt[2]: \"option\": must be a network such as",
        ),
        (
            policy("limit = \"1/s\", charge = { 401, 4 }"),
            "policies.login.charge[2]: 4: must be a status from 100 to 599",
        ),
        (
            policy("limit = \"1/s\", dry_run = \"yes\""),
            "policies.login.dry_run: must be true or false, not a string",
        ),
        (
            policy("limit = \"1/s\", headers = { \"draft-12\" }"),
            "policies.login.headers: \"draft-12\": must be one or a list of \"separate\",",
        ),
        (
            policy("limit = \"1/s\", partition_key = true"),
            "policies.login.partition_key: is for the headers \"draft-11\" alone",
        ),
        (
            policy("limit = \"1/s\", dry_run_header = \"\""),
            "policies.login.dry_run_header: \"\": must be the name of a header",
        ),
        (
            policy("limit = \"1/s\", error_page = true, body = { type = \"a/b\", text = \"\" }"),
            "policies.login.body: cannot stand beside error_page",
        ),
        (
            policy("limit = \"1/s\", error_body = { text = \"\" }"),
            "policies.login.error_body.type: missing; it must be a media type",
        ),
        (
            policy("limit = \"1/s\", grpc_status = 17"),
            "policies.login.grpc_status: 17: must be a whole number from 1 to 16",
        ),
        (policy("limit = \"1/s\", expose = 1"), "policies.login.expose: must be true or false"),
        (
            format!("{{ {REDIS}, secret = \"hunter2\", {policies} }}"),
            "secret: must be at least 16 bytes long",
        ),
        (format!("{{ {REDIS} }}"), "policies: missing"),
        (format!("{{ {REDIS}, policies = {{}} }}"), "policies: must name at least one policy"),
        (
            format!("{{ {REDIS}, policies = {{ [\"a b\"] = {{}} }} }}"),
            "policies[\"a b\"]: the name must",
        ),
        (format!("{{ {REDIS}, {policies}, colour = 1 }}"), "colour: unknown field; known here are"),
        (format!("{{ {REDIS}, {policies}, [1] = 1 }}"), "mixes a list with named fields"),
        (format!("{{ {REDIS}, {policies}, [true] = 1 }}"), "has a key that is not a name"),
        (
            format!("{{ {REDIS}, {policies}, runtime_dir = \"tmp\" }}"),
            "runtime_dir: must be an absolute",
        ),
        (
            format!("{{ {REDIS}, {policies}, runtime_dir = \"/{}\" }}", "x".repeat(70)),
            "runtime_dir: must be at most 70 bytes long",
        ),
        (
            format!("{{ {REDIS}, {policies}, runtime_dir = \"/no/such/dir\" }}"),
            "runtime_dir: \"/no/such/dir\" is not a directory",
        ),
        (format!("{{ {REDIS}, policy = {{}} }}"), "policy: unknown field; known here are store,"),
        (policy("limt = \"1/s\""), "policies.login.limt: unknown field; known here are limit,"),
        (
            format!("{{ redis = {{ url = \"redis://h:0\" }}, {policies} }}"),
            "redis.url: the port must be from 1 to 65535",
        ),
        (format!("{{ store = \"redis\", {policies} }}"), "redis: missing"),
        (
            format!("{{ store = \"disk\", {policies} }}"),
            "store: \"disk\": must be \"redis\" or \"memory\"",
        ),
        (
            format!("{{ memory = {{ size = \"1023k\" }}, {policies} }}"),
            "memory.size: \"1023k\": must be from 1m to 64g",
        ),
        (format!("{{ redis = {{}}, {policies} }}"), "redis.url: missing"),
        (
            format!("{{ redis = {{ url = \"localhost\" }}, {policies} }}"),
            "redis.url: must begin with redis://",
        ),
        (
            format!("{{ redis = {{ url = \"redis://:hunter2@h:port\" }}, {policies} }}"),
            "redis.url: cannot be read; expected redis://",
        ),
        (
            format!("{{ redis = {{ url = \"redis://h\", timeout = \"1\" }}, {policies} }}"),
            "redis.timeout: \"1\": the unit must be one of",
        ),
        (
            format!("{{ redis = {{ url = \"redis://h\", timeout = \"5m\" }}, {policies} }}"),
            "redis.timeout: must be from 1ms to 60s",
        ),
        (
            format!("{{ redis = {{ url = \"redis://h\", queue = 0 }}, {policies} }}"),
            "redis.queue: 0: must be a whole number",
        ),
        (
            format!(
                "{{ redis = {{ url = \"redis://h\", cluster = {{ \"redis://h\" }} }}, {policies} }}"
            ),
            "redis.cluster: cannot stand beside url",
        ),
        (
            format!("{{ redis = {{ sentinels = {{ \"redis://h\" }} }}, {policies} }}"),
            "redis.master: missing; it must be the name",
        ),
        (
            format!(
                "{{ redis = {{ cluster = {{ \"redis://a\", \"rediss://b\" }} }}, {policies} }}"
            ),
            "redis.cluster[2]: must begin as cluster[1] does: TLS and plain are never mixed",
        ),
        (
            format!("{{ redis = {{ url = \"redis://h\", tls = {{}} }}, {policies} }}"),
            "redis.tls: is for rediss:// addresses alone",
        ),
        (
            format!("{{ redis = {{ url = \"redis://h\", connections = 33 }}, {policies} }}"),
            "redis.connections: 33: must be a whole number from 1 to 32",
        ),
        (
            format!(
                "{{ redis = {{ url = \"redis://h\", breaker = {{ pause = \"0ms\" }} }}, {policies} }}"
            ),
            "redis.breaker.pause: must be from 1ms to 60s",
        ),
        (
            format!("{{ redis = {{ url = \"redis://h/0\", database = 1 }}, {policies} }}"),
            "redis.database: cannot stand beside a url that has one",
        ),
        ("nil".to_owned(), "must be a table of named fields, not nil"),
        ("(function() local t = {} t.t = t return t end)()".to_owned(), "is nested too deeply"),
    ]
}

#[test]
fn nginx_does_not_start_and_says_why_in_one_line() {
    for (setup, message) in refused() {
        let log = Nginx::refuse(&Conf::with_setup(&setup));
        let lines: Vec<&str> =
            log.lines().filter(|line| !line.contains("[notice]") && !line.is_empty()).collect();
        assert_eq!(lines.len(), 1, "{setup}: {log}");
        assert!(lines[0].contains("weir: ") && lines[0].contains(message), "{setup}: {log}");
        assert!(!log.contains("hunter2"), "the password is in the log");
    }
}

#[test]
fn on_a_reload_the_old_configuration_goes_on_serving() {
    let redis = Redis::start();
    let good = Conf::new(&redis.url(), "api = { limit = \"1000/1h\" }").limited("/api", "api");
    let nginx = Nginx::start(&good);
    let workers = nginx.workers();
    for (setup, message) in refused().into_iter().take(5) {
        let mut bad = good.clone();
        bad.setup = setup;
        nginx.reload(&bad);
        wait_until("the error is logged", Duration::from_secs(5), || {
            !nginx.log_lines(message).is_empty()
        });
        let answer = nginx.client().get("/api");
        assert_eq!((answer.status, answer.header("RateLimit-Limit")), (200, Some("1000")));
        assert_eq!(nginx.workers(), workers);
    }
    let mut better = good.clone();
    better.setup = better.setup.replace("1000/1h", "2000/1h");
    nginx.reload_and_wait(&better);
    assert_eq!(nginx.client().get("/api").header("RateLimit-Limit"), Some("2000"));
}

/// Each option has one row, with what it is by default.
#[test]
fn the_readme_has_a_row_for_every_option() {
    let readme = include_str!("../../README.md");
    let options = readme.split_once("\n## Options\n").expect("options").1;
    let options = options.split_once("\n### Whom a request counts for\n").expect("an end").0;
    let rows: Vec<&str> = options.lines().filter(|line| line.starts_with("| `")).collect();

    // Who gives an unknown field is told the known ones.
    let table = |name: &str, inner| Value::Table([(name.to_owned(), inner)].into());
    let wrong = || table("?", Value::Boolean(true));
    let redis = || table("url", Value::String("redis://localhost".to_owned()));
    let policy = Value::Table(
        [("redis".to_owned(), redis()), ("policies".to_owned(), table("api", wrong()))].into(),
    );
    let memory = Value::Table([("memory".to_owned(), wrong())].into());
    for (config, prefix) in
        [(wrong(), ""), (table("redis", wrong()), "redis."), (memory, "memory."), (policy, "")]
    {
        let no_secret = |_: &_| Err("is none of this test".to_owned());
        let refusal = Config::check(config, &no_secret).expect_err("refused").to_string();
        let (_, known) = refusal.split_once("known here are ").expect("the known ones");
        for option in known.split(", ").filter(|option| !["redis", "memory"].contains(option)) {
            let option = match option {
                "policies" => "`policies.NAME`".to_owned(),
                _ => format!("`{prefix}{option}`"),
            };
            let has_it = |row: &&&str| row.split(" | ").next().unwrap().contains(&option);
            assert_eq!(rows.iter().filter(has_it).count(), 1, "{option}");
        }
    }
}

/// What the README shows is taken as it stands.
#[test]
fn the_readme_shows_configurations_that_work() {
    let readme = include_str!("../../README.md");
    let between = |start: &str, end: &str| {
        let text = readme.split_once(start).expect(start).1;
        text.split_once(end).expect(end).0.to_owned()
    };
    let first = between("require(\"resty.weir\").setup {", "        }\n    }\n");
    let second = between("```lua\npolicies = {", "-- for a request");
    for setup in [format!("{{ {first} }}"), format!("{{ {REDIS}, policies = {{ {second} }}")] {
        let nginx = Nginx::start(&Conf::with_setup(&setup));
        assert_eq!(nginx.client().get("/plain").status, 200);
    }
}

#[test]
fn calls_in_the_wrong_phase_are_refused() {
    let redis = Redis::start();
    let conf = Conf::new(&redis.url(), "api = { limit = \"1/s\" }");
    let early =
        Conf { setup: format!("{}) require(\"resty.weir\").start(", conf.setup), ..conf.clone() };
    let log = Nginx::refuse(&early);
    assert!(log.contains("weir: start() belongs in init_worker_by_lua"), "{log}");

    let setup = conf.setup.clone();
    let late = conf
        .content("/setup", &format!("require(\"resty.weir\").setup({setup})"))
        .content("/start", "require(\"resty.weir\").start()")
        .content("/policy", "require(\"resty.weir\").access(\"nope\")");
    let nginx = Nginx::start(&late);
    for (path, message) in [
        ("/setup", "weir: setup() belongs in init_by_lua"),
        ("/start", "weir: start() belongs in init_worker_by_lua"),
        ("/policy", "weir: no such policy: nope"),
    ] {
        assert_eq!(nginx.client().get(path).status, 500);
        assert_eq!(nginx.log_lines(message).len(), 1, "{message}");
    }
}

#[test]
fn a_lua_vm_for_each_request_is_refused() {
    let redis = Redis::start();
    let mut conf = Conf::new(&redis.url(), "api = { limit = \"1/s\" }").limited("/api", "api");
    conf.http = "lua_code_cache off;".to_owned();
    // Here it is the worker that loads the Lua files, wherever they lie.
    conf.main = "user root;".to_owned();
    // It never answers, so it cannot be started by `Nginx::start`.
    let plain = conf.server("location = /html { return 204; }");
    let nginx = Nginx::start_answering(&plain, "/html");
    assert_eq!(nginx.client().get("/api").status, 500);
    assert!(
        !nginx.log_lines("weir: lua_code_cache must be on").is_empty(),
        "{}",
        nginx.error_log()
    );
}
