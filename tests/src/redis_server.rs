//! A Redis server of the test's own.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use redis::{Connection, ConnectionLike as _, FromRedisValue, IntoConnectionInfo as _};
use tempfile::TempDir;

use crate::certificates::{Authority, Certificate};
use crate::network::Network;
use crate::process::{self, free_port, free_port_of_a_node};
use crate::wait_until;

/// A running server; killed on drop.
pub struct Redis {
    host: String,
    port: u16,
    tls_port: Option<u16>,
    password: Option<String>,
    /// What the server is run by; empty for nothing.
    run_by: Vec<String>,
    /// More of its options.
    options: Vec<String>,
    /// What it keeps its own notes in, if it is a sentinel.
    sentinel_conf: Option<String>,
    dir: TempDir,
    child: Option<Child>,
}

impl Redis {
    /// Starts a server on a free port.
    pub fn start() -> Self {
        let mut redis = Self::absent();
        redis.launch();
        redis
    }

    /// A server that is not running yet; its port is known.
    pub fn absent() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: free_port(),
            tls_port: None,
            password: None,
            run_by: Vec::new(),
            options: Vec::new(),
            sentinel_conf: None,
            dir: TempDir::new().expect("a directory"),
            child: None,
        }
    }

    /// Starts a server in this network.
    pub fn start_in(network: &Network) -> Self {
        // Without a password it would serve its own host only.
        let mut redis = Self::absent().with(&["--protected-mode", "no"]);
        redis.host = network.address().to_owned();
        redis.run_by = network.inside();
        redis.launch();
        redis
    }

    /// Starts a server that knows `DEBUG`.
    pub fn start_with_debug() -> Self {
        // Redis 6.2 always knows it, and does not know the option.
        let option: &[&str] = match major_version() {
            6 => &[],
            _ => &["--enable-debug-command", "yes"],
        };
        let mut redis = Self::absent().with(option);
        redis.launch();
        redis
    }

    /// With more options, as on its command line.
    pub fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|&option| option.to_owned()));
        self
    }

    /// At this address of the loopback network, from which it also connects to
    /// others.
    pub fn at(mut self, host: &str) -> Self {
        host.clone_into(&mut self.host);
        // Without a password it would serve 127.0.0.1 only.
        let this = self.with(&["--protected-mode", "no"]);
        // Redis 6.2 does so by itself.
        match major_version() {
            6 => this,
            _ => this.with(&["--bind-source-addr", host]),
        }
    }

    /// On this port.
    pub fn on_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// With a password, which it also gives to its primary.
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.with(&["--requirepass", password, "--masterauth", password])
    }

    /// Also with TLS, on a port of its own, on which it then speaks to its
    /// replicas too.
    pub fn with_tls(mut self, authority: &Authority, certificate: &Certificate) -> Self {
        let port = free_port_of_a_node();
        self.tls_port = Some(port);
        let path = |path: &std::path::Path| path.display().to_string();
        self.with(&["--tls-port", &port.to_string(), "--tls-replication", "yes"])
            .with(&["--tls-ca-cert-file", &path(&authority.file())])
            .with(&["--tls-cert-file", &path(certificate.file())])
            .with(&["--tls-key-file", &path(certificate.key_file())])
            .with(&["--tls-auth-clients", "no"])
    }

    /// As a sentinel with these lines of sentinel.conf.
    pub fn as_sentinel(mut self, conf: &str) -> Self {
        self.sentinel_conf = Some(conf.to_owned());
        self
    }

    /// Starts it, empty, and waits until it answers.
    pub fn launch(&mut self) {
        self.spawn(&[]);
        wait_until("Redis answers", Duration::from_secs(10), || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("a child"));
            if let Some(status) = ended {
                let said = std::fs::read_to_string(self.output()).unwrap_or_default();
                panic!("{} on {}:{} ended with {status}:\n{said}", program(), self.host, self.port);
            }
            self.try_connect().is_some_and(|connection| self.is_at(connection))
        });
    }

    /// Whether it is this server's process that answers, and none that had its
    /// port before.
    fn is_at(&self, mut connection: Connection) -> bool {
        let told: String = redis::cmd("INFO").arg("server").query(&mut connection).expect("INFO");
        let pid = told.lines().find_map(|line| line.strip_prefix("process_id:"));
        pid.expect("a pid").trim() == self.pid().to_string()
    }

    /// Starts it with these arguments besides, and does not wait.
    pub fn spawn(&mut self, arguments: &[&str]) {
        assert!(self.child.is_none(), "it runs already");
        let server = program();
        let words: Vec<&String> = self.run_by.iter().chain([&server]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        if let Some(conf) = &self.sentinel_conf {
            let path = self.dir.path().join("sentinel.conf");
            std::fs::write(&path, conf).expect("sentinel.conf");
            command.arg(path).arg("--sentinel");
        } else {
            command.args(["--save", "", "--appendonly", "no"]);
        }
        let child = command
            .args(["--port", &self.port.to_string(), "--bind", &self.host])
            .args(["--loglevel", "warning"])
            .args(&self.options)
            .arg("--dir")
            .arg(self.dir.path())
            .args(arguments)
            .stdout(File::create(self.output()).expect("a file for what it prints"))
            .spawn()
            .unwrap_or_else(|error| panic!("{server} does not start: {error}"));
        self.child = Some(child);
    }

    /// Where what it prints is kept.
    fn output(&self) -> PathBuf {
        self.dir.path().join("stdout")
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("{}/0", self.address())
    }

    /// The same without a database.
    pub fn address(&self) -> String {
        format!("redis://{}:{}", self.host, self.port)
    }

    /// The same with TLS.
    pub fn tls_address(&self) -> String {
        format!("rediss://{}:{}", self.host, self.tls_port())
    }

    /// Its port with TLS.
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("it has TLS")
    }

    /// The port at which others of its kind find it.
    pub fn tls_or_plain_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Its password.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Its host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("Redis runs").id()
    }

    /// Whether it was started and not killed since.
    pub fn is_launched(&self) -> bool {
        self.child.is_some()
    }

    /// A connection to it.
    pub fn connect(&self) -> Connection {
        self.try_connect().expect("Redis answers")
    }

    /// The same, if it answers.
    pub fn try_connect(&self) -> Option<Connection> {
        let mut info = self.url().into_connection_info().ok()?;
        if let Some(password) = &self.password {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        let client = redis::Client::open(info).ok()?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(1)).ok()?;
        connection.check_connection().then_some(connection)
    }

    /// Runs one command, such as `"PTTL key"`, on a connection of its own.
    pub fn command<T: FromRedisValue>(&self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().expect("a command"));
        cmd.arg(words.collect::<Vec<_>>());
        cmd.query(&mut self.connect()).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// A number from `INFO`.
    pub fn info(&self, field: &str) -> u64 {
        self.command::<String>("INFO everything")
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .map(|value| value.trim().parse().expect("a number"))
            .unwrap_or_else(|| panic!("no {field} in INFO"))
    }

    /// How often it has run this command since its start.
    pub fn calls(&self, command: &str) -> u64 {
        calls_in(&self.command::<String>("INFO commandstats"), command)
    }

    /// How often it has answered with an error of this kind, such as `MOVED`,
    /// since its start.
    pub fn errors(&self, kind: &str) -> u64 {
        let prefix = format!("errorstat_{kind}:count=");
        let stats: String = self.command("INFO errorstats");
        let count = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        count.map_or(0, |count| count.trim().parse().expect("a number"))
    }

    /// Stops it where it stands (SIGSTOP): connections stay open, nothing is
    /// answered.
    pub fn freeze(&self) {
        process::signal(self.pid(), libc::SIGSTOP);
        wait_until("Redis is stopped", Duration::from_secs(5), || {
            process::status(self.pid(), "State").starts_with('T')
        });
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        process::signal(self.pid(), libc::SIGCONT);
    }

    /// Kills it. What it held is lost.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            process::end(&mut child, libc::SIGKILL);
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How often a server has run this command, as its `INFO commandstats` says.
pub(crate) fn calls_in(stats: &str, command: &str) -> u64 {
    let prefix = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

fn program() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// As in `Redis server v=7.0.15 sha=...`.
fn major_version() -> u32 {
    let output = Command::new(program()).arg("--version").output().expect("its version");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_once("v=").and_then(|(_, version)| version.split('.').next());
    version.and_then(|major| major.parse().ok()).unwrap_or_else(|| panic!("a version in {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "ended with")]
    fn a_server_whose_port_another_has_is_not_taken_for_that_one() {
        let first = Redis::start();
        Redis::absent().on_port(first.port()).launch();
    }
}
