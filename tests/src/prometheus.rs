//! A Prometheus of the test's own.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{self, free_port};
use crate::{Client, wait_until};

/// What it asks for, and how often: short, so that tests need not wait for long.
const INTERVAL: &str = "500ms";

/// A running Prometheus; killed on drop.
pub struct Prometheus {
    dir: TempDir,
    child: Child,
    client: Client,
}

/// What it reads: a job of one target.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The label `job`.
    pub name: &'a str,
    /// The target's port.
    pub port: u16,
    /// The target's path.
    pub path: &'a str,
}

/// One element of what a query gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its labels, `__name__` included.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

impl Prometheus {
    /// Starts one that reads these and evaluates the rules of this file, and waits
    /// until it is ready.
    pub fn start(jobs: &[Job<'_>], rules: &Path) -> Self {
        let (dir, port) = (TempDir::new().expect("a directory"), free_port());
        let rules = rules.canonicalize().expect("the rules");
        let mut conf = format!(
            "global: {{ scrape_interval: {INTERVAL}, evaluation_interval: {INTERVAL} }}\n\
             rule_files: ['{}']\n\
             scrape_configs:\n",
            rules.display()
        );
        for Job { name, port, path } in jobs {
            conf.push_str(&format!(
                "- {{ job_name: {name}, metrics_path: {path}, \
                     static_configs: [{{ targets: ['127.0.0.1:{port}'] }}] }}\n"
            ));
        }
        let file = dir.path().join("prometheus.yml");
        std::fs::write(&file, conf).expect("prometheus.yml");
        let log = File::create(dir.path().join("log")).expect("a log");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=warn")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus starts (`make setup` installs it)");
        let mut this = Self { dir, child, client: Client::new(port) };
        wait_until("Prometheus is ready", Duration::from_secs(30), || {
            if let Ok(Some(status)) = this.child.try_wait() {
                panic!("Prometheus ended with {status}: {}", this.log());
            }
            this.client.try_ask("GET", "/-/ready", &[]).is_ok_and(|it| it.status == 200)
        });
        this
    }

    /// What an expression gives now. Panics, with what is wrong, if it is none.
    pub fn query(&self, expression: &str) -> Vec<Sample> {
        let data = self.api(&format!("query?query={}", percent_encoded(expression)));
        let samples = match data["resultType"].as_str() {
            Some("vector") => data["result"].as_array().expect("a list"),
            other => panic!("{expression} is a {other:?}"),
        };
        samples
            .iter()
            .map(|sample| {
                let labels = sample["metric"].as_object().expect("labels").iter();
                let labels = labels.map(|(name, value)| (name.clone(), text(value).to_owned()));
                let value = text(&sample["value"][1]).parse().expect("a number");
                Sample { labels: labels.collect(), value }
            })
            .collect()
    }

    /// The value of an expression that gives one sample; `None` where it gives
    /// none yet.
    pub fn number(&self, expression: &str) -> Option<f64> {
        match &self.query(expression)[..] {
            [] => None,
            [sample] => Some(sample.value),
            several => panic!("{expression} gives {several:?}"),
        }
    }

    /// Its targets, as its API tells of them.
    pub fn targets(&self) -> Vec<Value> {
        self.api("targets")["activeTargets"].as_array().expect("targets").clone()
    }

    /// Its alert rules, as its API tells of them.
    pub fn rules(&self) -> Vec<Value> {
        let groups = self.api("rules")["groups"].as_array().expect("groups").clone();
        groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
    }

    /// What it has logged: warnings and errors.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn api(&self, path: &str) -> Value {
        let answer = self.client.get(&format!("/api/v1/{path}"));
        let mut told: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(told["status"], "success", "{path}: {}", answer.body);
        told["data"].take()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        process::end(&mut self.child, libc::SIGKILL);
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}
