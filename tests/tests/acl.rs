//! The user that docs/redis.md makes: it suffices for all that Weir does, and
//! there is no command of it that nothing needs.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Connection, Value};
use tempfile::TempDir;
use weir_tests::{Conf, Nginx, Redis, process, wait_until};

const PASSWORD: &str = "a-password";

/// The algorithms, with a limit each that the steps below know of. Windows are
/// long, so that none ends under way.
const LIMITS: [&str; 5] = [
    "{ limit = \"5/366d\" }",
    "{ limit = \"60/366d\", algorithm = \"compact-log\" }",
    "{ limit = \"5/366d\", algorithm = \"sliding-counter\" }",
    "{ limit = \"5/90d\", algorithm = \"token-bucket\" }",
    "{ limit = \"5/month\", algorithm = \"quota\" }",
];

/// Their policies; the last has all the limits.
const POLICIES: [&str; 6] = ["log", "ring", "counter", "bucket", "quota", "several"];

fn docs() -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/redis.md");
    std::fs::read_to_string(file).expect("docs/redis.md")
}

/// The words behind `ACL SETUSER` in the line of the docs that has this word.
fn documented(word: &str) -> Vec<String> {
    let docs = docs();
    let line = docs
        .lines()
        .find(|line| line.contains("ACL SETUSER weir") && line.contains(word))
        .unwrap_or_else(|| panic!("docs/redis.md has no line with {word}"));
    let (_, rules) = line.split_once("ACL SETUSER ").expect("just seen");
    let rules = rules.split('`').next().expect("a first part");
    rules.replace("PASSWORD", PASSWORD).split(' ').map(str::to_owned).collect()
}

/// The commands that the docs add in the item beginning with this.
fn additions(item: &str) -> Vec<String> {
    let docs = docs();
    let line = docs.lines().find(|line| line.starts_with(&format!("- {item}"))).expect(item);
    let (_, added) = line.split_once("add `").expect(item);
    added.split('`').next().expect(item).split(' ').map(str::to_owned).collect()
}

/// The documented line, as this server takes it.
fn line(redis: &Redis) -> Vec<String> {
    as_taken_by(&mut redis.connect(), documented("~weir:*"))
}

/// Without what Redis 7.0 does not know.
fn as_taken_by(admin: &mut Connection, mut line: Vec<String>) -> Vec<String> {
    let info: String = redis::cmd("INFO").arg("server").query(admin).expect("INFO");
    if info.contains("redis_version:7.0.") {
        let mut command = redis::cmd("ACL");
        let refused = command.arg("SETUSER").arg(&line).exec(admin).expect_err("unknown to 7.0");
        assert!(refused.to_string().contains("+client|setinfo"), "{refused}");
        line.retain(|rule| rule != "+client|setinfo");
    }
    line
}

fn set_user(redis: &Redis, line: &[String]) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(line).exec(&mut redis.connect()).expect("the server takes it");
}

/// What the server has refused since the last time: in which context, and what.
fn refused(redis: &Redis) -> Vec<(String, String)> {
    let refused = log(redis);
    redis.command::<()>("ACL LOG RESET");
    refused
}

fn log(redis: &Redis) -> Vec<(String, String)> {
    let entries: Vec<HashMap<String, Value>> = redis.command("ACL LOG");
    let field = |entry: &HashMap<String, Value>, name: &str| -> String {
        redis::from_redis_value(entry[name].clone()).expect(name)
    };
    entries.iter().map(|entry| (field(entry, "context"), field(entry, "object"))).collect()
}

/// Asserts that the server has refused nothing at all.
fn assert_nothing_refused(redis: &Redis) {
    assert_eq!(refused(redis), []);
    let errors: String = redis.command("INFO errorstats");
    assert!(!errors.contains("NOPERM"), "{errors}");
}

fn url(redis: &Redis) -> String {
    redis.url().replace("127.0.0.1", &format!("weir:{PASSWORD}@127.0.0.1"))
}

fn conf(url: &str) -> Conf {
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
        .map(|(name, limits)| format!("{name} = {{ {limits}, on_error = \"closed\" }}, "))
        .collect();
    let lua = r#"
        local weir, arg = require "resty.weir", ngx.req.get_uri_args()
        weir.access(arg.policy, { key = "k", cost = tonumber(arg.cost) })
        if arg.refund then
            ngx.ctx.afterwards = weir.refund(tonumber(arg.refund))
        elseif arg.charge then
            ngx.ctx.afterwards = weir.charge(tonumber(arg.charge))
        end"#;
    let mut conf = Conf::new(url, &policies).stats();
    conf.locations.push_str(&format!(
        "location /run {{ access_by_lua_block {{ {lua} }} \
         content_by_lua_block {{ ngx.print(tostring(ngx.ctx.afterwards)) }} }}\n"
    ));
    conf
}

fn wait_until_up(nginx: &Nginx) {
    wait_until("it is up", Duration::from_secs(3), || nginx.stat("redis") == "up");
}

/// One connection's life with all that may be asked of it. Returns what was not as
/// it should be: a user who may not do something does not get that far.
fn core(redis: &Redis, nginx: &Nginx, may_connect: bool) -> Vec<String> {
    let (before, refused) = (nginx.count("connects"), log(redis).len());
    let settled = |nginx: &Nginx| nginx.count("settled") + nginx.count("unsettled");
    let (mut sent, mut amiss) = (settled(nginx), Vec::new());
    let client = nginx.client();
    redis.command::<()>("FLUSHALL");
    redis.command::<()>("CLIENT KILL TYPE normal");
    wait_until("it is connected again or may not be", Duration::from_secs(5), || {
        nginx.count("connects") > before || !may_connect && log(redis).len() > refused
    });

    let mut step = |policy: &str, rest: &str, status: u16| {
        let answer = client.get(&format!("/run?policy={policy}&{rest}"));
        let afterwards = rest.split_once("refund=").or(rest.split_once("charge="));
        let body = afterwards.map_or("nil", |(_, units)| units);
        if status == 200 && answer.status == 200 && answer.body == body && body != "nil" {
            sent += 1;
        }
        if answer.status != status || status == 200 && answer.body != body {
            amiss.push(format!("{policy} {rest}: {} {}", answer.status, answer.body));
        }
    };
    for policy in POLICIES {
        // A log of 60 becomes a ring of slots above 32.
        let most = if policy == "ring" { 60 } else { 5 };
        step(policy, &format!("cost={}", most - 4), 200);
        step(policy, "cost=1", 200);
        step(policy, "cost=4", 429);
        step(policy, "cost=0", 200);
        step(policy, "cost=2&refund=2", 200);
        step(policy, "cost=1&charge=9", 200);
        step(policy, "cost=1", 429);
        redis.command::<()>("SCRIPT FLUSH");
    }

    // A log with entries that have left, beside one that has not, and alone; and
    // what is given back to the last unit.
    redis.command::<()>("FLUSHALL");
    let log = "weir:{=k}:log:log:366d";
    step("log", "cost=1", 200);
    redis.command::<()>(&format!("ZADD {log} 1 left"));
    step("log", "cost=1", 200);
    redis.command::<()>(&format!("DEL {log}"));
    redis.command::<()>(&format!("ZADD {log} 1 left"));
    step("log", "cost=1", 200);
    for policy in POLICIES {
        redis.command::<()>("FLUSHALL");
        step(policy, "cost=2&refund=2", 200);
    }

    wait_until("all is settled or lost", Duration::from_secs(6), || settled(nginx) == sent);
    amiss
}

#[test]
fn the_documented_user_suffices() {
    let redis = Redis::start();
    set_user(&redis, &line(&redis));
    redis.command::<()>("CONFIG RESETSTAT");
    let nginx = Nginx::start(&conf(&url(&redis)));
    wait_until_up(&nginx);
    for _ in 0..2 {
        assert_eq!(core(&redis, &nginx, true), Vec::<String>::new());
    }
    assert_nothing_refused(&redis);
    assert_eq!(nginx.count("unsettled"), 0);
    assert!(nginx.count("settled") >= 2 * 18);
    assert_eq!(nginx.log_lines("answers with an error"), Vec::<String>::new());
    nginx.assert_calm_log();
}

/// Without any one of its commands something is refused, and it is that command.
#[test]
fn no_command_of_it_is_superfluous() {
    let redis = Redis::start();
    let line = line(&redis);
    set_user(&redis, &line);
    let nginx = Nginx::start(&conf(&url(&redis)));
    wait_until_up(&nginx);
    let commands: Vec<&String> = line.iter().filter(|rule| rule.starts_with('+')).collect();
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        let without: Vec<String> = line.iter().filter(|rule| *rule != command).cloned().collect();
        set_user(&redis, &without);
        refused(&redis);
        let lost = nginx.count("unsettled");
        let amiss = core(&redis, &nginx, command != "+script|load");
        let refused = refused(&redis);
        assert!(!refused.is_empty(), "nothing needs {command}");
        // Of a command with subcommands 6.2 names the command.
        let word = |name: &str| name.split('|').next().unwrap_or_default().to_owned();
        for (_, object) in &refused {
            assert_eq!(word(object), word(&command[1..]), "{command}: {refused:?}");
        }
        let is_needed = command != "+client|setinfo";
        assert_eq!(!amiss.is_empty() || nginx.count("unsettled") > lost, is_needed, "{command}");
        set_user(&redis, &line);
        wait_until_up(&nginx);
    }
    assert_eq!(core(&redis, &nginx, true), Vec::<String>::new(), "with all of them");
    nginx.assert_calm_log();
}

#[test]
fn other_keys_are_out_of_its_reach() {
    let redis = Redis::start();
    set_user(&redis, &line(&redis));
    let mut conf = conf(&url(&redis));
    conf.setup = conf.setup.replacen("redis = {", "redis = { prefix = \"weirs\",", 1);
    let nginx = Nginx::start(&conf);
    for policy in POLICIES {
        assert_eq!(nginx.client().get(&format!("/run?policy={policy}&cost=1")).status, 503);
    }
    assert_eq!(redis.command::<usize>("DBSIZE"), 0);
    let refused = refused(&redis);
    assert!(refused.iter().any(|(_, key)| key == "weirs:{=k}:log:log:366d"), "{refused:?}");
    assert_eq!(nginx.log_lines("NOPERM").len(), 1, "{}", nginx.error_log());
}

#[test]
fn another_database_takes_select_and_no_more() {
    let redis = Redis::start();
    let line = line(&redis);
    set_user(&redis, &line);
    let url = url(&redis).replace("/0", "/3");
    let without = Nginx::start(&conf(&url));
    assert_eq!(without.client().get("/run?policy=log&cost=1").status, 503);
    let selects = refused(&redis);
    assert!(!selects.is_empty() && selects.iter().all(|(_, object)| object == "select"));
    drop(without);

    set_user(&redis, &[line, additions("A database other than 0")].concat());
    redis.command::<()>("ACL LOG RESET");
    redis.command::<()>("CONFIG RESETSTAT");
    let with = Nginx::start(&conf(&url));
    assert_eq!(with.client().get("/run?policy=log&cost=1").status, 200);
    assert_nothing_refused(&redis);
}

/// Whether the server refuses this for want of permission; any other answer is
/// one to a user who may ask.
fn is_refused(connection: &mut Connection, command: &str) -> bool {
    let mut cmd = redis::Cmd::new();
    cmd.arg(command.split(' ').collect::<Vec<_>>());
    cmd.query::<Value>(connection).is_err_and(|error| error.code() == Some("NOPERM"))
}

/// What a server is asked of Sentinel and Cluster is refused without the additions,
/// and only without them.
#[test]
fn sentinel_and_cluster_take_what_is_added() {
    let redis = Redis::start();
    let line = line(&redis);
    for (item, asked) in [("Sentinel", vec!["ROLE"]), ("Cluster", vec!["CLUSTER SLOTS", "ASKING"])]
    {
        let additions = additions(item);
        assert_eq!(additions.len(), asked.len(), "{item}");
        for added in [&[][..], &additions] {
            set_user(&redis, &[&line[..], added].concat());
            let client = redis::Client::open(url(&redis)).unwrap();
            let mut connection = client.get_connection().unwrap();
            for command in &asked {
                assert_eq!(is_refused(&mut connection, command), added.is_empty(), "{command}");
            }
        }
    }
}

/// A sentinel that watches nothing; killed on drop.
struct Sentinel {
    child: Child,
    _dir: TempDir,
}

impl Sentinel {
    fn start(port: u16) -> Self {
        let dir = TempDir::new().unwrap();
        let conf = dir.path().join("sentinel.conf");
        std::fs::write(&conf, format!("port {port}\nbind 127.0.0.1\n")).unwrap();
        let server = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new(server);
        command.arg(&conf).arg("--sentinel").stdout(Stdio::null());
        Self { child: command.spawn().unwrap(), _dir: dir }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        process::end(&mut self.child, libc::SIGKILL);
    }
}

#[test]
fn a_sentinel_is_asked_for_its_masters_and_no_more() {
    let port = process::free_port();
    let _sentinel = Sentinel::start(port);
    let connect = |user: &str| {
        let client = redis::Client::open(format!("redis://{user}127.0.0.1:{port}")).ok()?;
        client.get_connection().ok()
    };
    let mut admin = None;
    wait_until("the sentinel answers", Duration::from_secs(10), || {
        admin = connect("");
        admin.is_some()
    });
    let mut admin = admin.unwrap();
    let line = as_taken_by(&mut admin, documented("+sentinel|masters"));
    redis::cmd("ACL").arg("SETUSER").arg(&line).exec(&mut admin).unwrap();

    let mut connection = connect(&format!("weir:{PASSWORD}@")).unwrap();
    assert!(!is_refused(&mut connection, "SENTINEL MASTERS"));
    let refused: Vec<Value> = redis::cmd("ACL").arg("LOG").query(&mut admin).unwrap();
    assert_eq!(refused, [], "CLIENT SETINFO neither");
    for command in ["SENTINEL CKQUORUM none", "SENTINEL REMOVE none", "PING", "INFO"] {
        assert!(is_refused(&mut connection, command), "{command}");
    }
}
