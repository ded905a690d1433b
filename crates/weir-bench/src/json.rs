//! The report as other programs read it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::Serialize;
use weir_tests::Redis;

use crate::growth::{self, Growth};
use crate::options::Compare;
use crate::summary::Comparison;
use crate::targets::Verdict;

/// What results.json holds. A part that was not asked for is not in it.
#[derive(Serialize)]
pub struct Report<'a> {
    /// Where it was measured.
    pub machine: &'a Machine,
    /// How.
    pub options: Settings,
    /// Each load with all contenders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparisons: Option<&'a [Comparison]>,
    /// What a decision costs as the work grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<&'a Growth>,
    /// What the project has set out to reach.
    pub targets: &'a [Verdict],
    /// What was not as it should be.
    pub faults: &'a [String],
}

/// What figures depend on beside the contenders.
#[derive(Default, Serialize)]
pub struct Machine {
    weir: &'static str,
    nginx: String,
    redis: String,
    wrk: String,
    kernel: String,
    processor: String,
    cores: usize,
}

/// The options of a run.
#[derive(Serialize)]
pub struct Settings {
    /// Of the comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compare: Option<Rounds>,
    /// Of the growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<growth::Settings>,
}

/// The options of a comparison that are not a group's.
#[derive(Serialize)]
pub struct Rounds {
    rounds: u32,
    seconds: u32,
    full: bool,
}

impl Machine {
    /// This one.
    pub fn this(redis: &Redis) -> Self {
        let nginx = std::env::var("NGINX").unwrap_or_else(|_| "nginx".to_owned());
        let info: String = redis.command("INFO server");
        let server =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let redis = match (server("valkey_version"), server("redis_version")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, version) => format!("Redis {}", version.unwrap_or("")),
        };
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("", |(_, name)| name);
        Self {
            weir: env!("CARGO_PKG_VERSION"),
            nginx: first_line(&nginx, "-v").replace("nginx version: ", ""),
            redis: redis.trim().to_owned(),
            wrk: first_line("wrk", "-v").split(" Copyright").next().unwrap_or("").to_owned(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            processor: processor.trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(0, Into::into),
        }
    }

    /// In one line.
    pub fn text(&self) -> String {
        let Self { weir, nginx, redis, wrk, kernel, processor, cores } = self;
        format!("Weir {weir}, {nginx}, {redis}, {wrk}; Linux {kernel}, {cores} cores ({processor})")
    }
}

impl Rounds {
    /// Those of this command line.
    pub fn of(options: &Compare) -> Self {
        Self { rounds: options.rounds(), seconds: options.seconds(), full: options.full }
    }
}

/// The first line that a program says of itself.
fn first_line(program: &str, option: &str) -> String {
    let said = Command::new(program).arg(option).output();
    let said = said.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().next().unwrap_or("").to_owned()
}

/// Writes it.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write(report: &Report<'_>, file: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    fs::write(file, text).with_context(|| format!("{} is not written", file.display()))
}
