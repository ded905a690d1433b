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
mod report;
mod run;
mod summary;
mod table;
mod targets;
mod wrk;

use std::process::ExitCode;

use clap::Parser as _;

use crate::options::Options;

fn main() -> ExitCode {
    let options = Options::parse();
    if options.is_list() {
        for contender in contenders::all() {
            println!("{:<20} {}", contender.id, contender.name);
        }
        return ExitCode::SUCCESS;
    }
    match report::run(&options.wanted()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
