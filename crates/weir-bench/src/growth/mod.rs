//! What a decision costs as the work grows: larger limits, more clients, larger
//! batches, more limits for each request, a Redis further away.
//!
//! All but the last call the script directly, with a clock of their own: clients are
//! just below their limit all the time, whatever the machine's speed. What is told is
//! the time that Redis itself counts for the script, and beside it a multiple of a
//! yardstick that is measured in the same rounds ([`work::Yardstick`]): that can be
//! compared between machines, where microseconds cannot.

mod clients;
mod crowds;
mod delay;
mod meter;
mod paint;
mod parts;
mod report;
mod targets;
mod work;

use std::fs;
use std::io::{IsTerminal as _, stderr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use weir_tests::Redis;

use crate::json::Machine;
use report::Growth;

/// What can grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Limits, from 10 to 10,000 units; and the memory of a client's log.
    Limits,
    /// Clients, from 1 to 1,000,000.
    Clients,
    /// Requests for each script call, from 1 to 128.
    Batches,
    /// Limits for each request, from 1 to 4.
    Several,
    /// The distance of Redis: 0, 1 and 5 ms.
    Delay,
}

/// How much is measured.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// What grows [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    parts: Vec<Part>,

    /// Rounds, beside a first one that is not counted
    #[arg(long, default_value_t = 7, value_name = "NUMBER")]
    #[arg(value_parser = at_least_one())]
    rounds: u32,

    /// Script calls of 64 requests, or as many requests, of each contender in a round
    #[arg(long, default_value_t = 100, value_name = "NUMBER")]
    #[arg(value_parser = at_least_one())]
    calls: u32,

    /// The highest limit
    #[arg(long, default_value_t = 10_000, value_name = "UNITS")]
    #[arg(value_parser = clap::value_parser!(u64).range(10..=100_000))]
    most_units: u64,

    /// The most clients
    #[arg(long, default_value_t = 1_000_000, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    most_clients: u64,

    /// How far away Redis is, in milliseconds there and back
    #[arg(long, value_delimiter = ',', default_value = "0,1,5", value_name = "NUMBERS")]
    delays_ms: Vec<u64>,

    /// Connections that wrk keeps busy at each of these distances
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_name = "NUMBERS")]
    connections: Vec<u32>,

    /// Rounds of each distance and number of connections, beside a first one
    #[arg(long, default_value_t = 3, value_name = "NUMBER")]
    #[arg(value_parser = at_least_one())]
    delay_rounds: u32,

    /// How long such a round takes, in seconds
    #[arg(long, default_value_t = 2, value_name = "NUMBER")]
    #[arg(value_parser = at_least_one())]
    seconds: u32,

    /// Where growth.json and the plots are written
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench")]
    output: PathBuf,

    /// Writes the tables and the plots to docs/bench too
    #[arg(long)]
    docs: bool,
}

fn at_least_one() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1000)
}

impl Options {
    fn has(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

/// Measures, prints, and writes what was measured.
///
/// # Errors
///
/// If a server or the load fails, or a decision is not what it should be.
pub fn run(options: &Options) -> Result<()> {
    let redis = Redis::start();
    let mut growth = Growth::new(Machine::this(&redis));
    println!("{}", growth.machine.text());
    if options.has(Part::Limits) {
        growth.limits = parts::limits(&redis, options)?;
        growth.memory = Some(parts::memory(&redis)?);
    }
    if options.has(Part::Batches) {
        growth.batches = parts::batches(&redis, options)?;
    }
    if options.has(Part::Several) {
        growth.several = parts::several(&redis, options)?;
    }
    if options.has(Part::Clients) {
        growth.clients = crowds::measure(&redis, options)?;
    }
    drop(redis);
    if options.has(Part::Delay) {
        growth.delay = delay::measure(options)?;
    }
    progress("");
    growth.targets = targets::of(&growth);
    for table in report::tables(&growth) {
        print!("{}", table.terminal());
    }
    write(options, &growth)
}

fn write(options: &Options, growth: &Growth) -> Result<()> {
    let output = &options.output;
    fs::create_dir_all(output).with_context(|| format!("{} is not made", output.display()))?;
    let file = output.join("growth.json");
    fs::write(&file, serde_json::to_string_pretty(growth)?)
        .with_context(|| format!("{} is not written", file.display()))?;
    paint::all(output, growth)?;
    if options.docs {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bench");
        fs::create_dir_all(&docs)?;
        paint::all(&docs, growth)?;
        fs::write(docs.join("growth.md"), report::page(growth))?;
    }
    println!("\nWritten to {}: growth.json and plots (SVG)", output.display());
    Ok(())
}

/// What is being done: on a terminal one line that changes.
fn progress(what: &str) {
    if stderr().is_terminal() {
        eprint!("\r{what}\x1b[K");
    }
}
