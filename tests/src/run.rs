//! A configuration of `nginx/`, started as `make run CONF=...` starts it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{self, free_port};
use crate::{Client, wait_until};

/// The ports that the files in `nginx/` name.
const PORTS: [&str; 3] = ["8080", "8081", "50051"];

/// The timeout, written and left out, and a long one: on a busy machine a decision
/// may take a while, and `on_error` is not what these runs are about.
const TIMEOUTS: [(&str, &str); 2] =
    [("\"100ms\"", "\"5s\""), ("redis = { url", "redis = { timeout = \"5s\", url")];

/// A running `scripts/run.sh`, with nginx and Redis; all are stopped on drop.
pub struct Run {
    dir: TempDir,
    script: Child,
    port: u16,
    redis_port: u16,
}

impl Run {
    /// Starts this file of `nginx/`, such as `recipes/per-ip.conf`, on free
    /// ports, and waits until it answers.
    pub fn start(conf: &str) -> Self {
        Self::start_with(conf, "", &[])
    }

    /// The same with more directives of the http context, which come in beside
    /// the stand-in for an upstream, and with environment variables.
    pub fn start_with(conf: &str, http: &str, environment: &[(&str, &str)]) -> Self {
        let dir = TempDir::new().expect("a directory");
        let ports = PORTS.map(|_| free_port());
        copy(&directory(), dir.path(), &ports);
        copy(&directory().join("recipes"), &dir.path().join("recipes"), &ports);
        std::fs::write(dir.path().join("upstream-test.conf"), http).expect("a file");
        let redis_port = free_port();
        let output = |name| {
            let options = File::options().create(true).append(true).open(dir.path().join(name));
            options.expect("a file")
        };
        let script = directory().join("../scripts/run.sh");
        let script = process::heed_ctrl_c(&mut Command::new(script))
            .env("CONF", dir.path().join(conf))
            .env("REDIS_PORT", redis_port.to_string())
            .envs(environment.iter().copied())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .expect("run.sh starts");
        let mut run = Self { dir, script, port: ports[0], redis_port };
        wait_until("run.sh says that Weir runs", Duration::from_secs(20), || {
            if let Ok(Some(status)) = run.script.try_wait() {
                panic!("run.sh ended with {status}: {}", run.stderr());
            }
            run.stdout().contains("Weir runs on")
        });
        run
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of its Redis.
    pub fn redis_port(&self) -> u16 {
        self.redis_port
    }

    /// The script's process.
    pub fn pid(&self) -> u32 {
        self.script.id()
    }

    /// What it has printed, an access log on /dev/stdout included.
    pub fn stdout(&self) -> String {
        self.read("stdout")
    }

    /// What it has printed on stderr, the error log included.
    pub fn stderr(&self) -> String {
        self.read("stderr")
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Stops all, as Ctrl-C does.
    pub fn stop(&mut self) {
        process::signal(self.script.id(), libc::SIGINT);
        // It gives nginx and Redis five seconds each.
        if !process::ends_within(&mut self.script, Duration::from_secs(15)) {
            process::end(&mut self.script, libc::SIGKILL);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where the configurations are: `nginx/`.
pub fn directory() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "nginx"].iter().collect()
}

/// Copies the configurations of a directory, with these ports in place of
/// [`PORTS`], and the long ones of [`TIMEOUTS`].
fn copy(from: &Path, to: &Path, ports: &[u16; 3]) {
    std::fs::create_dir_all(to).expect("a directory");
    for file in std::fs::read_dir(from).expect("a directory") {
        let path = file.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == "conf") {
            let mut text = std::fs::read_to_string(&path).expect("text");
            for (theirs, ours) in PORTS.iter().zip(ports) {
                text = text.replace(theirs, &ours.to_string());
            }
            for (short, long) in TIMEOUTS {
                text = text.replace(short, long);
            }
            std::fs::write(to.join(path.file_name().expect("a name")), text).expect("a file");
        }
    }
}
