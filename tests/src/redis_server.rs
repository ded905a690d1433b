//! A Redis server of the test's own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Connection, ConnectionLike as _, FromRedisValue};
use tempfile::TempDir;

use crate::process::{self, free_port};
use crate::wait_until;

/// A running server; killed on drop.
pub struct Redis {
    port: u16,
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
        let dir = TempDir::new().expect("a directory");
        Self { port: free_port(), dir, child: None }
    }

    /// Starts it, empty, and waits until it answers.
    pub fn launch(&mut self) {
        self.spawn(&[]);
        wait_until("Redis answers", Duration::from_secs(10), || self.try_connect().is_some());
    }

    /// Starts it with these arguments besides, and does not wait.
    pub fn spawn(&mut self, arguments: &[&str]) {
        assert!(self.child.is_none(), "it runs already");
        let server = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let child = Command::new(&server)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
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
        format!("redis://127.0.0.1:{}/0", self.port)
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
