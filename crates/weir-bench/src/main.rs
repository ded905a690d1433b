//! What the limiter adds to a request, in CPU and in time, side by side with what
//! would be run instead: docs/bench.md.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod conf;
mod contenders;
mod json;
mod measure;
mod options;
mod plan;
mod plot;
mod progress;
mod run;
mod summary;
mod table;
mod targets;
mod wrk;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use weir_tests::Redis;

use crate::json::{Machine, Report, Settings};
use crate::options::Options;

fn main() -> Result<()> {
    let options = Options::parse();
    if options.list {
        for contender in contenders::all() {
            println!("{:<20} {}", contender.id, contender.name);
        }
        return Ok(());
    }
    compare(&options)
}

fn compare(options: &Options) -> Result<()> {
    fs::create_dir_all(&options.output)
        .with_context(|| format!("{} is not made", options.output.display()))?;
    let groups = plan::groups(options);
    let redis = Redis::start();
    let machine = Machine::this(&redis);
    println!("{}", machine.text());
    println!(
        "{} contenders, {} rounds of {} s each under {} loads: about {} minutes",
        options.contenders().len(),
        options.rounds(),
        options.seconds(),
        groups.len(),
        progress::minutes(plan::estimate(options, groups.len())),
    );

    let comparisons = run::compare(options, &groups, &redis)?;
    let targets = targets::judge(&comparisons);
    for comparison in &comparisons {
        print!("{}", table::comparison(comparison));
    }
    print!("{}", table::targets(&targets));

    let results = options.output.join("results.json");
    let report = Report {
        machine,
        options: Settings::of(options),
        comparisons: &comparisons,
        targets: &targets,
    };
    json::write(&report, &results)?;
    plot::write(&comparisons, &options.output)?;
    if options.docs {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bench");
        fs::create_dir_all(&docs)?;
        plot::write(&comparisons, &docs)?;
    }
    println!("\nWritten to {}: results.json and plots (SVG)", options.output.display());
    Ok(())
}
