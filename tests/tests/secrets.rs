//! Secrets lie in files or in the environment, are read anew at a reload, and
//! are shown to nobody.

use std::fs::{Permissions, create_dir, set_permissions, write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use weir_tests::{Conf, Nginx, Redis, wait_until};

/// With what a URL or Lua could stumble over.
const PASSWORD: &str = "p@ss/w:rd?%41#&=ö\\'";

/// What a secret has in it that must not be shown.
const MARK: &str = "hunter2";

/// A directory for secrets. Only its owner can enter, and workers are not that.
struct Secrets(TempDir);

impl Secrets {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a secret, and says in Lua where it lies.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        write(self.path(name), content).unwrap();
        self.lua(name)
    }

    fn lua(&self, name: &str) -> String {
        format!("{{ file = \"{}\" }}", self.path(name).display())
    }
}

fn set_user(redis: &Redis, password: &str) {
    redis.command::<()>(&format!("ACL SETUSER weir reset on >{password} ~weir:* +@all"));
}

/// A limit on this `redis` table that fails closed, so that a request without a
/// decision cannot pass for one with.
fn conf(redis: &str) -> Conf {
    let policies = "api = { limit = \"1000/1h\", on_error = \"closed\" }";
    let setup =
        format!("{{ redis = {{ timeout = \"5s\", {redis} }}, policies = {{ {policies} }} }}");
    Conf::with_setup(&setup).limited("/api", "api").stats()
}

fn with_environment(mut conf: Conf, value: &str) -> Conf {
    conf.environment.push(("WEIR_TEST_SECRET", value.to_owned()));
    conf
}

const VARIABLE: &str = "{ env = \"WEIR_TEST_SECRET\" }";

fn assert_limits(nginx: &Nginx, redis: &Redis) {
    let answer = nginx.client().get("/api");
    assert_eq!(answer.status, 200, "{}", nginx.error_log());
    let clients: String = redis.command("CLIENT LIST");
    assert!(clients.lines().any(|client| client.contains(" user=weir ")), "{clients}");
}

#[test]
fn a_password_or_an_address_lies_in_a_file_or_in_the_environment() {
    let secrets = Secrets::new();
    let redis = Redis::start();
    set_user(&redis, PASSWORD);
    let url = redis.url();
    let beside = |password: &str| conf(&format!("url = \"{url}\", user = \"weir\", {password}"));
    let within = |url: &str| conf(&format!("url = {url}"));
    let escaped = "p%40ss%2Fw%3Ard%3F%2541%23%26%3D%C3%B6%5C%27";
    let whole = url.replace("redis://", &format!("redis://weir:{escaped}@"));
    for conf in [
        beside(&format!("password = [==[{PASSWORD}]==]")),
        beside(&format!("password = {}", secrets.file("password", PASSWORD))),
        beside(&format!("password = {}", secrets.file("line", format!("{PASSWORD}\n")))),
        with_environment(beside(&format!("password = {VARIABLE}")), PASSWORD),
        within(&secrets.file("url", &whole)),
        with_environment(within(VARIABLE), &whole),
    ] {
        let nginx = Nginx::start(&conf);
        assert_limits(&nginx, &redis);
        // No "env" line keeps the variable for a reload, and none is needed.
        nginx.reload_and_wait(&conf);
        assert_limits(&nginx, &redis);
        nginx.assert_calm_log();
    }
}

#[test]
fn a_password_without_a_user_is_that_of_the_default_user() {
    let secrets = Secrets::new();
    let redis = Redis::start();
    redis.command::<()>(&format!("CONFIG SET requirepass {PASSWORD}"));
    let password = secrets.file("password", PASSWORD);
    let url = redis.url();
    let nginx = Nginx::start(&conf(&format!("url = \"{url}\", password = {password}")));
    assert_eq!(nginx.client().get("/api").status, 200, "{}", nginx.error_log());
}

#[test]
fn a_reload_reads_a_changed_password() {
    let secrets = Secrets::new();
    let redis = Redis::start();
    set_user(&redis, "old");
    let password = secrets.file("password", "old\n");
    let url = redis.url();
    let conf = conf(&format!("url = \"{url}\", user = \"weir\", password = {password}"));
    let nginx = Nginx::start(&conf);
    assert_limits(&nginx, &redis);

    set_user(&redis, "new");
    redis.command::<()>("CLIENT KILL USER weir");
    wait_until("the old password is refused", Duration::from_secs(5), || {
        nginx.client().get("/api").status == 503 && !nginx.log_lines("WRONGPASS").is_empty()
    });
    secrets.file("password", "new\n");
    nginx.reload_and_wait(&conf);
    assert_limits(&nginx, &redis);
    nginx.assert_calm_log();
}

#[test]
fn what_cannot_be_read_stops_a_start() {
    let secrets = Secrets::new();
    create_dir(secrets.path("directory")).unwrap();
    let pipe = Command::new("mkfifo").arg(secrets.path("pipe")).status().unwrap();
    assert!(pipe.success());
    let problem = |name: &str, problem: &str| {
        format!("the file \"{}\" {problem}", secrets.path(name).display())
    };
    let not_set = "the variable \"WEIR_TEST_SECRET\" is not set in nginx's own environment";
    let large = vec![b'x'; 64 * 1024 + 1];
    for (secret, problem) in [
        (
            secrets.lua("missing"),
            problem("missing", "cannot be read: No such file or directory (os error 2)"),
        ),
        (secrets.lua("directory"), problem("directory", "is not a regular file")),
        (secrets.lua("pipe"), problem("pipe", "is not a regular file")),
        (secrets.file("large", &large), problem("large", "is larger than 64 KiB")),
        (secrets.file("empty", "\n"), problem("empty", "is empty")),
        (VARIABLE.to_owned(), not_set.to_owned()),
    ] {
        let url = "url = \"redis://127.0.0.1:1\"";
        let policies = "policies = { api = { limit = \"1/s\" } }";
        let setup = format!("{{ redis = {{ {url} }}, secret = {secret}, {policies} }}");
        for (field, mut conf) in [
            ("redis.password", conf(&format!("{url}, password = {secret}"))),
            ("secret", Conf::with_setup(&setup)),
        ] {
            // A value of nginx.conf's own is none of nginx's environment.
            conf.main = "env WEIR_TEST_SECRET=0123456789abcdef;".to_owned();
            let log = Nginx::refuse(&conf);
            assert!(log.contains(&format!("weir: {field}: {problem}")), "{log}");
        }
    }
    // The largest that is taken.
    let largest = secrets.file("largest", &large[1..]);
    let largest = conf(&format!("url = \"redis://127.0.0.1:1\", password = {largest}"));
    assert_eq!(Nginx::start(&largest).client().get("/plain").status, 200);
}

#[test]
fn a_reload_that_finds_no_password_leaves_the_old_one_at_work() {
    let secrets = Secrets::new();
    let redis = Redis::start();
    set_user(&redis, PASSWORD);
    let password = secrets.file("password", PASSWORD);
    let url = redis.url();
    let conf = conf(&format!("url = \"{url}\", user = \"weir\", password = {password}"));
    let nginx = Nginx::start(&conf);
    let workers = nginx.workers();
    std::fs::remove_file(secrets.path("password")).unwrap();
    nginx.reload(&conf);
    wait_until("the error is logged", Duration::from_secs(5), || {
        !nginx.log_lines("weir: redis.password: the file ").is_empty()
    });
    assert_limits(&nginx, &redis);
    assert_eq!(nginx.workers(), workers);
}

/// Where a secret would most likely slip out: where it is wrong.
#[test]
fn no_error_log_line_or_statistic_shows_a_secret() {
    let secrets = Secrets::new();
    let redis = Redis::start();
    redis.command::<()>("CONFIG SET requirepass another");
    let port = redis.port();
    let password = secrets.file("password", MARK);
    let wrong = [
        format!("url = \"redis://127.0.0.1:{port}\", password = {password}"),
        format!("url = \"redis://127.0.0.1:{port}\", user = \"weir\", password = \"{MARK}\""),
        format!("url = \"redis://:{MARK}@127.0.0.1:{port}\""),
        format!("url = {}", secrets.file("url", format!("redis://weir:{MARK}@127.0.0.1:{port}"))),
    ];
    for redis in wrong {
        let nginx = Nginx::start(&conf(&redis));
        let answer = nginx.client().get("/api");
        assert_eq!(answer.status, 503);
        wait_until("the log says so", Duration::from_secs(5), || {
            !nginx.log_lines("WRONGPASS").is_empty()
        });
        let stats = nginx.client().get("/stats").body;
        assert!(stats.contains("redis=down"), "{stats}");
        for shown in [format!("{answer:?}"), stats, nginx.error_log()] {
            assert!(!shown.contains(MARK), "{shown}");
        }
    }
    for refused in [
        format!("url = {}", secrets.file("port", format!("redis://:{MARK}@127.0.0.1:port"))),
        format!("url = {}", secrets.file("scheme", format!("http://:{MARK}@127.0.0.1"))),
        format!("url = \"redis://127.0.0.1\", password = {{ \"{MARK}\" }}"),
        format!("sentinels = {{ \"redis://:{MARK}@127.0.0.1\" }}, master = \"m\""),
        format!("cluster = {{ \"redis://me:{MARK}/@127.0.0.1\" }}"),
    ] {
        let log = Nginx::refuse(&conf(&refused));
        assert!(log.contains("weir: redis.") && !log.contains(MARK), "{log}");
    }
}

/// Redis repeats the arguments of a command that it does not know, and a password
/// is one of `HELLO`: of servers before Redis 6, and where it was renamed.
#[test]
fn a_server_that_repeats_the_password_does_not_bring_it_into_the_log() {
    let mut redis = Redis::absent().with(&["--rename-command", "HELLO", ""]);
    redis.launch();
    set_user(&redis, MARK);
    let url = redis.url();
    let nginx =
        Nginx::start(&conf(&format!("url = \"{url}\", user = \"weir\", password = \"{MARK}\"")));
    wait_until("the log says what is wrong", Duration::from_secs(5), || {
        nginx.log_lines("unreachable: ").iter().any(|line| line.contains("HELLO"))
    });
    assert!(!nginx.error_log().contains(MARK), "{}", nginx.error_log());
}
