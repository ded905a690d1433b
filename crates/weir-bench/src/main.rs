//! What the limiter adds to a request, in CPU and in time, side by side with what
//! would be run instead: docs/bench.md.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod conf;
mod contenders;
mod growth;
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
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use weir_tests::Redis;

use crate::json::{Machine, Report, Settings};
use crate::options::{Command, Options};
use crate::run::Outcome;
use crate::table::Table;

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list {
        for contender in contenders::all() {
            println!("{:<20} {}", contender.id, contender.name);
        }
        return ExitCode::SUCCESS;
    }
    let ran = match &options.command {
        Some(Command::Growth(options)) => growth::run(options),
        None => compare(&options),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<()> {
    fs::create_dir_all(&options.output)
        .with_context(|| format!("{} is not made", options.output.display()))?;
    let groups = plan::groups(options);
    let redis = Redis::start();
    let machine = Machine::this(&redis);
    let how = format!("rounds: {} of {} s", options.rounds(), options.seconds());
    println!("{}", machine.text());
    println!(
        "contenders: {}; loads: {}; {how}; it takes about {} minutes",
        options.contenders().len(),
        groups.len(),
        progress::minutes(plan::estimate(options, groups.len())),
    );

    let Outcome { comparisons, faults } = run::compare(options, &groups, &redis)?;
    let targets = targets::judge(&comparisons);
    let mut tables: Vec<Table> = comparisons.iter().map(Table::of_comparison).collect();
    if !targets.is_empty() {
        tables.push(Table::of_targets(&targets));
    }
    for table in &tables {
        print!("{}", table.terminal());
    }
    let page = table::page(&machine, &how, &tables);

    let results = options.output.join("results.json");
    let report = Report {
        machine,
        options: Settings::of(options),
        comparisons: &comparisons,
        targets: &targets,
        faults: &faults,
    };
    json::write(&report, &results)?;
    plot::write(&comparisons, &options.output)?;
    println!("\nWritten to {}: results.json and plots (SVG)", options.output.display());
    if !faults.is_empty() {
        bail!("not all was as it should be:\n{}", faults.join("\n"));
    }
    if options.docs {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bench");
        fs::create_dir_all(&docs)?;
        plot::write(&comparisons, &docs)?;
        fs::write(docs.join("results.md"), page)?;
    }
    Ok(())
}
