//! An nginx of the test's own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{self, free_port};
use crate::{Client, wait_until};

mod installed;

pub use installed::library;
use installed::{MODULES, program, search_path};

/// What a test's nginx.conf says.
#[derive(Clone)]
pub struct Conf {
    /// The argument of `setup`: a Lua table.
    pub setup: String,
    /// The server block's locations.
    pub locations: String,
    /// Directives of the main context.
    pub main: String,
    /// Directives of the http context.
    pub http: String,
    /// Lua before `setup()` in init.
    pub init: String,
    /// Lua before `start()` in init_worker.
    pub init_worker: String,
    /// One more directory of Lua files.
    pub lua_files: Option<PathBuf>,
    /// Worker processes.
    pub workers: u32,
    /// `worker_connections`.
    pub connections: u32,
    /// Environment variables that it is started with.
    pub environment: Vec<(&'static str, String)>,
}

impl Conf {
    /// A configuration with these policies (Lua fields) on this Redis. The
    /// timeout is long: on a busy machine a decision may take a while, and only
    /// tests of failures want `on_error` to decide.
    pub fn new(redis_url: &str, policies: &str) -> Self {
        Self::with_timeout("5s", redis_url, policies)
    }

    /// The same with this `redis.timeout`.
    pub fn with_timeout(timeout: &str, redis_url: &str, policies: &str) -> Self {
        Self::with_setup(&format!(
            "{{ redis = {{ url = \"{redis_url}\", timeout = \"{timeout}\" }}, \
             policies = {{ {policies} }} }}"
        ))
    }

    /// A configuration with these fields of `redis`.
    pub fn on(redis: &str, policies: &str) -> Self {
        Self::with_setup(&format!("{{ redis = {{ {redis} }}, policies = {{ {policies} }} }}"))
    }

    /// A configuration with this argument of `setup`.
    pub fn with_setup(setup: &str) -> Self {
        Self {
            setup: setup.to_owned(),
            locations: String::new(),
            main: String::new(),
            http: String::new(),
            init: String::new(),
            init_worker: String::new(),
            lua_files: None,
            workers: 1,
            connections: 4096,
            environment: Vec::new(),
        }
    }

    /// With a location that is limited and answers `ok`.
    pub fn limited(self, path: &str, policy: &str) -> Self {
        self.access(path, &format!("require(\"resty.weir\").access(\"{policy}\")"))
    }

    /// With a location that runs this in its access phase and answers `ok`.
    pub fn access(mut self, path: &str, lua: &str) -> Self {
        self.locations.push_str(&format!(
            "location {path} {{ access_by_lua_block {{ {lua} }} \
             content_by_lua_block {{ ngx.print(\"ok\") }} }}\n"
        ));
        self
    }

    /// With a location that answers with what this Lua prints.
    pub fn content(mut self, path: &str, lua: &str) -> Self {
        self.locations
            .push_str(&format!("location {path} {{ content_by_lua_block {{ {lua} }} }}\n"));
        self
    }

    /// With `/stats`: a line `name=value` for each of `stats()`.
    pub fn stats(self) -> Self {
        self.content(
            "/stats",
            r#"
            local function say(prefix, fields)
                for name, value in pairs(fields) do
                    if type(value) == "table" then
                        say(name .. ".", value)
                    else
                        ngx.say(prefix, name, "=", value)
                    end
                end
            end
            say("", require("resty.weir").stats())"#,
        )
    }

    /// With any other location or directive of the server block.
    pub fn server(mut self, text: &str) -> Self {
        self.locations.push_str(text);
        self.locations.push('\n');
        self
    }

    /// With HTTP/2 in cleartext at this port. (nginx from 1.25.1 on warns of the
    /// parameter, and takes it.)
    pub fn http2(self, port: u16) -> Self {
        self.server(&format!("listen 127.0.0.1:{port} http2;"))
    }

    /// With this many workers.
    pub fn workers(self, workers: u32) -> Self {
        Self { workers, ..self }
    }

    fn text(&self, port: u16) -> String {
        let Self { setup, locations, main, http, init, init_worker, workers, connections, .. } =
            self;
        let modules = &*MODULES;
        let (mut lua_path, lua_cpath) = (search_path("lua"), search_path("so"));
        if let Some(dir) = &self.lua_files {
            lua_path.push_str(&format!(";{}/?.lua", dir.display()));
        }
        format!(
            r#"{modules}
            daemon off;
            worker_processes {workers};
            pid nginx.pid;
            error_log error.log notice;
            {main}
            events {{ worker_connections {connections}; }}
            http {{
                access_log off;
                client_body_temp_path body;
                proxy_temp_path proxy;
                fastcgi_temp_path fastcgi;
                uwsgi_temp_path uwsgi;
                scgi_temp_path scgi;
                keepalive_requests 1000000;
                lua_package_path "{lua_path};;";
                lua_package_cpath "{lua_cpath};;";
                init_by_lua_block {{ {init} require("resty.weir").setup({setup}) }}
                init_worker_by_lua_block {{ {init_worker} require("resty.weir").start() }}
                {http}
                server {{
                    listen 127.0.0.1:{port} backlog=4096;
                    location = /plain {{ content_by_lua_block {{ ngx.print("plain") }} }}
                    {locations}
                }}
            }}"#
        )
    }
}

/// A running nginx; stopped on drop.
pub struct Nginx {
    dir: TempDir,
    child: Child,
    port: u16,
}

impl Nginx {
    /// Starts it, and waits until it answers.
    pub fn start(conf: &Conf) -> Self {
        Self::start_answering(conf, "/plain")
    }

    /// Starts it, and waits until this path answers.
    pub fn start_answering(conf: &Conf, path: &str) -> Self {
        Self::start_with(Command::new(program()), conf, path, Duration::from_secs(10))
    }

    /// Starts it as the last argument of this command, which becomes it as a
    /// debugger does, and waits until it answers. (Its processes do not have the
    /// titles by which [`Nginx::workers`] tells them.)
    pub fn start_under(mut command: Command, conf: &Conf) -> Self {
        command.arg(program());
        Self::start_with(command, conf, "/plain", Duration::from_secs(60))
    }

    fn start_with(command: Command, conf: &Conf, path: &str, limit: Duration) -> Self {
        let (dir, port) = (prefix(), free_port());
        write(&dir, conf, port);
        let child = arguments(command, conf, dir.path()).spawn().expect("nginx starts");
        let mut nginx = Self { dir, child, port };
        let client = nginx.client();
        wait_until("nginx answers", limit, || {
            if let Ok(Some(status)) = nginx.child.try_wait() {
                panic!("nginx ended with {status}: {}", nginx.error_log());
            }
            client.try_ask("GET", path, &[]).is_ok()
        });
        nginx
    }

    /// Starts it with a configuration that it must refuse; returns its error
    /// log.
    pub fn refuse(conf: &Conf) -> String {
        let (dir, port) = (prefix(), free_port());
        write(&dir, conf, port);
        let command = Command::new(program());
        let mut child = arguments(command, conf, dir.path()).spawn().expect("nginx starts");
        let ended = process::ends_within(&mut child, Duration::from_secs(10));
        if !ended {
            // Not by force: the workers would stay.
            process::end(&mut child, libc::SIGTERM);
        }
        let log = read(&dir.path().join("error.log"));
        assert!(ended, "nginx took the configuration; its log: {log}");
        log
    }

    /// Writes another configuration and reloads; does not wait.
    pub fn reload(&self, conf: &Conf) {
        write(&self.dir, conf, self.port);
        process::signal(self.child.id(), libc::SIGHUP);
    }

    /// The same, until the old workers are gone.
    pub fn reload_and_wait(&self, conf: &Conf) {
        let old = self.workers();
        self.reload(conf);
        wait_until("the old workers have left", Duration::from_secs(20), || {
            !old.iter().any(|&pid| process::runs(pid))
        });
        self.wait_for_workers(conf.workers as usize);
    }

    /// Waits until so much has been charged or given back afterwards, and nothing was
    /// lost.
    pub fn wait_until_settled(&self, count: u64) {
        wait_until("all is settled", Duration::from_secs(5), || self.count("settled") >= count);
        assert_eq!((self.count("settled"), self.count("unsettled")), (count, 0));
    }

    /// Waits until there are this many workers.
    pub fn wait_for_workers(&self, count: usize) {
        wait_until("all workers run", Duration::from_secs(10), || self.workers().len() == count);
    }

    /// Tells it to quit, and waits for the end: how long that took.
    pub fn quit(&mut self, limit: Duration) -> Duration {
        process::signal(self.child.id(), libc::SIGQUIT);
        let child = &mut self.child;
        wait_until("nginx has quit", limit, || matches!(child.try_wait(), Ok(Some(_))))
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The master.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The worker processes that are not shutting down.
    pub fn workers(&self) -> Vec<u32> {
        self.processes("worker process")
            .into_iter()
            .filter(|&pid| !title(pid).contains("shutting down"))
            .collect()
    }

    /// The master's children whose title begins with `nginx: ` and this.
    pub fn processes(&self, kind: &str) -> Vec<u32> {
        process::children(self.child.id())
            .into_iter()
            .filter(|&pid| process::runs(pid))
            .filter(|&pid| title(pid).starts_with(&format!("nginx: {kind}")))
            .collect()
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(self.port)
    }

    /// What `/stats` says under this name.
    pub fn stat(&self, name: &str) -> String {
        let answer = self.client().get("/stats");
        answer
            .body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned)
            .unwrap_or_else(|| panic!("no {name} in {}", answer.body))
    }

    /// The same as a number.
    pub fn count(&self, name: &str) -> u64 {
        let value = self.stat(name);
        value.parse().unwrap_or_else(|_| panic!("{name}={value}"))
    }

    /// The error log so far.
    pub fn error_log(&self) -> String {
        read(&self.dir.path().join("error.log"))
    }

    /// Writes a file into its directory, where the configuration can name it.
    pub fn write_file(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).expect("the file");
    }

    /// A file in its directory; empty if there is none.
    pub fn file(&self, name: &str) -> String {
        read(&self.dir.path().join(name))
    }

    /// The lines of the error log that hold this text.
    pub fn log_lines(&self, text: &str) -> Vec<String> {
        self.error_log().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Asserts what no run may leave in the log.
    pub fn assert_calm_log(&self) {
        for trouble in ["attempt to", "exited on signal", "[alert]", "[crit]", "[emerg]"] {
            assert_eq!(self.log_lines(trouble), Vec::<String>::new());
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        process::end(&mut self.child, libc::SIGTERM);
    }
}

fn prefix() -> TempDir {
    let dir = TempDir::new().expect("a directory");
    // Workers run as somebody else, and must be able to enter.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("permissions");
    dir
}

fn write(dir: &TempDir, conf: &Conf, port: u16) {
    std::fs::write(dir.path().join("nginx.conf"), conf.text(port)).expect("nginx.conf");
}

fn arguments(mut command: Command, conf: &Conf, dir: &Path) -> Command {
    command
        // nginx takes this for sockets that it inherits.
        .env_remove("NGINX")
        .envs(conf.environment.iter().map(|(name, value)| (name, value)))
        .arg("-p")
        .arg(dir)
        .args(["-c", "nginx.conf", "-e", "error.log"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn title(pid: u32) -> String {
    read(Path::new(&format!("/proc/{pid}/cmdline")))
}
