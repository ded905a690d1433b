//! What `metrics()` answers with, taken apart.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::{Client, Nginx};

/// A location that answers with `metrics()`, and in a header with the worker that
/// did.
pub const LOCATION: &str = "location = /metrics { content_by_lua_block { \
     ngx.header[\"X-Worker\"] = ngx.worker.pid() require(\"resty.weir\").metrics() } }";

/// The samples of one answer in Prometheus's text, version 0.0.4.
#[derive(Debug)]
pub struct Metrics {
    /// The worker that answered.
    pub worker: u32,
    /// The whole text.
    pub text: String,
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    /// Those of this nginx, which has [`LOCATION`].
    pub fn of(nginx: &Nginx) -> Self {
        // A new connection, so that any worker may answer.
        let answer = Client::without_keepalive(nginx.port()).get("/metrics");
        assert_eq!(answer.status, 200, "{answer:?}");
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            (name.to_owned(), value.parse().expect("a number"))
        };
        let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
        Self {
            worker: answer.number("X-Worker") as u32,
            samples: lines.map(sample).collect(),
            text: answer.body,
        }
    }

    /// The value of a sample, by its name with its labels.
    pub fn get(&self, sample: &str) -> Option<f64> {
        self.samples.get(sample).copied()
    }

    /// The same of one that must be there.
    pub fn value(&self, sample: &str) -> f64 {
        self.get(sample).unwrap_or_else(|| panic!("no {sample} in {}", self.text))
    }

    /// The decisions of a policy with this outcome.
    pub fn decisions(&self, policy: &str, outcome: &str) -> f64 {
        self.value(&format!("weir_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}"))
    }

    /// The requests without a decision for this reason.
    pub fn errors(&self, reason: &str) -> f64 {
        self.value(&format!("weir_errors_total{{reason=\"{reason}\"}}"))
    }

    /// How many a histogram has counted, by its name and its labels.
    pub fn count(&self, histogram: &str, labels: &str) -> f64 {
        self.value(&format!("{histogram}_count{{{labels}}}"))
    }

    /// The samples that only grow.
    pub fn counters(&self) -> impl Iterator<Item = (&str, f64)> {
        let ends = ["_total", "_count", "_sum", "_bucket"];
        let grows = move |name: &str| {
            let name = name.split('{').next().unwrap_or_default();
            ends.iter().any(|end| name.ends_with(end))
        };
        self.samples
            .iter()
            .map(|(name, &value)| (name.as_str(), value))
            .filter(move |it| grows(it.0))
    }
}

/// Asserts that `promtool check metrics`, of Debian's `prometheus`, finds nothing
/// wrong with a text.
pub fn assert_promtool_accepts(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool, of prometheus");
    // Written whole before anything is read: it says nothing before the end.
    promtool.stdin.take().expect("its input").write_all(text.as_bytes()).expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{text}");
}
