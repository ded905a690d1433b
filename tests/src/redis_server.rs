//! A Redis server of the test's own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Connection, ConnectionLike as _, FromRedisValue};
use tempfile::TempDir;

use crate::network::Network;
use crate::process::{self, free_port};
use crate::wait_until;

/// A running server; killed on drop.
pub struct Redis {
    host: String,
    port: u16,
    /// What the server is run by; empty for nothing.
    run_by: Vec<String>,
    /// More of its options.
    options: Vec<String>,
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
            run_by: Vec::new(),
            options: Vec::new(),
            dir: TempDir::new().expect("a directory"),
            child: None,
        }
    }

    /// Starts a server in this network.
    pub fn start_in(network: &Network) -> Self {
        let mut redis = Self::absent();
        redis.host = network.address().to_owned();
        redis.run_by = network.inside();
        // Without a password it would serve its own host only.
        redis.options = ["--protected-mode", "no"].map(str::to_owned).to_vec();
        redis.launch();
        redis
    }

    /// Starts a server that knows `DEBUG`.
    pub fn start_with_debug() -> Self {
        let mut redis = Self::absent();
        // Redis 6.2 always knows it, and does not know the option.
        if major_version() >= 7 {
            redis.options = ["--enable-debug-command", "yes"].map(str::to_owned).to_vec();
        }
        redis.launch();
        redis
    }

    /// Starts it, empty, and waits until it answers.
    pub fn launch(&mut self) {
        self.spawn(&[]);
        wait_until("Redis answers", Duration::from_secs(10), || self.try_connect().is_some());
    }

    /// Starts it with these arguments besides, and does not wait.
    pub fn spawn(&mut self, arguments: &[&str]) {
        assert!(self.child.is_none(), "it runs already");
        let server = program();
        let words: Vec<&String> = self.run_by.iter().chain([&server]).collect();
        let child = Command::new(words[0])
            .args(&words[1..])
            .args(["--port", &self.port.to_string(), "--bind", &self.host])
            .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
            .args(&self.options)
            .arg("--dir")
            .arg(self.dir.path())
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{server} does not start: {error}"));
        self.child = Some(child);
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://{}:{}/0", self.host, self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("Redis runs").id()
    }

    /// A connection to it.
    pub fn connect(&self) -> Connection {
        self.try_connect().expect("Redis answers")
    }

    fn try_connect(&self) -> Option<Connection> {
        let client = redis::Client::open(self.url()).ok()?;
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
        let prefix = format!("cmdstat_{command}:calls=");
        let stats: String = self.command("INFO commandstats");
        let calls = stats.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
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
