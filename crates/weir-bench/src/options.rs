//! What the command line says.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::contenders::{self, BASE, Contender, GLUE};
use crate::growth;

/// Measures what the limiter adds to a request, side by side with what would be run
/// instead. docs/bench.md says how to read it.
#[derive(Debug, Parser)]
#[command(name = "weir-bench", args_conflicts_with_subcommands = true)]
pub struct Options {
    /// Something else that is measured
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Contenders, by their ids (see --list); "none" and "glue-eval", which the others
    /// are compared with, run in any case [default: all]
    #[arg(long, value_delimiter = ',', value_name = "IDS", value_parser = contender)]
    pub contenders: Vec<&'static Contender>,

    /// Connections that wrk keeps busy
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", default_value = "1,16,64,256")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    pub connections: Vec<u32>,

    /// Clients that the requests are of, in turn; 1 is a hot one [default: 1000,1]
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: Vec<u32>,

    /// Workers of nginx [default: 1,2]
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: Vec<u32>,

    /// Rounds of each contender, interleaved [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// How long a round takes, in seconds [default: 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,

    /// Other clients and workers than the first of each list with all connections, not
    /// with 64 only, and together
    #[arg(long)]
    pub full: bool,

    /// A first look: one round of one second, 1,000 clients, one worker
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// Where results.json and the plots are written
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench")]
    pub output: PathBuf,

    /// Writes the tables and the plots to docs/bench too
    #[arg(long)]
    pub docs: bool,

    /// Lists the contenders, and measures nothing
    #[arg(long)]
    pub list: bool,
}

/// What is measured in place of the contenders.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measures what a decision costs as the work grows: limits, clients, batches, limits
    /// for each request, the distance of Redis
    Growth(growth::Options),
}

fn contender(id: &str) -> Result<&'static Contender, String> {
    contenders::find(id).ok_or_else(|| "no such contender: --list shows them".to_owned())
}

impl Options {
    /// Who runs, in their order.
    pub fn contenders(&self) -> Vec<&'static Contender> {
        let is_wanted = |id| {
            self.contenders.is_empty()
                || id == BASE
                || id == GLUE
                || self.contenders.iter().any(|wanted| wanted.id == id)
        };
        contenders::all().iter().filter(|contender| is_wanted(contender.id)).collect()
    }

    /// How many clients; the first is what is measured with all connections.
    pub fn clients(&self) -> Vec<u32> {
        or_default(&self.clients, self.quick, &[1000, 1])
    }

    /// How many workers; the first is what is measured with all connections.
    pub fn workers(&self) -> Vec<u32> {
        or_default(&self.workers, self.quick, &[1, 2])
    }

    /// Rounds of each contender.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// How long a round takes, in seconds.
    pub fn seconds(&self) -> u32 {
        self.seconds.unwrap_or(if self.quick { 1 } else { 2 })
    }
}

/// What was given, or all of these, or the first of them for a quick look.
fn or_default(given: &[u32], quick: bool, default: &[u32]) -> Vec<u32> {
    match (given, quick) {
        ([], true) => default[..1].to_vec(),
        ([], false) => default.to_vec(),
        (given, _) => given.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(arguments: &[&str]) -> Vec<&'static str> {
        let words = ["weir-bench"].iter().chain(arguments);
        let options = Options::try_parse_from(words).unwrap();
        options.contenders().iter().map(|contender| contender.id).collect()
    }

    #[test]
    fn what_the_others_are_compared_with_runs_in_any_case() {
        assert_eq!(ids(&["--contenders", "quota"]), [BASE, GLUE, "quota"]);
        assert_eq!(ids(&[]).len(), contenders::all().len());
    }

    #[test]
    fn a_contender_that_does_not_exist_is_an_error() {
        assert!(Options::try_parse_from(["weir-bench", "--contenders", "fastest"]).is_err());
    }

    #[test]
    fn what_is_given_goes_before_what_quick_means() {
        let options =
            Options::try_parse_from(["weir-bench", "--quick", "--seconds", "5", "--workers", "2"]);
        let options = options.unwrap();
        assert_eq!((options.rounds(), options.seconds()), (1, 5));
        assert_eq!((options.clients(), options.workers()), (vec![1000], vec![2]));
    }
}
