//! What the command line says.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

use crate::contenders::{self, BASE, Contender, GLUE};
use crate::growth;
use crate::report::Wanted;

/// Measures what the limiter adds to a request, side by side with what would be run
/// instead, and then what a decision costs as the work grows. docs/bench.md says how to
/// read it.
#[derive(Debug, Parser)]
#[command(name = "weir-bench", args_conflicts_with_subcommands = true)]
pub struct Options {
    /// One part alone
    #[command(subcommand)]
    part: Option<Part>,

    #[command(flatten)]
    whole: Whole,
}

/// One part of the report.
#[derive(Debug, Subcommand)]
enum Part {
    /// The comparison alone: what the limiter adds to a request
    Compare {
        #[command(flatten)]
        options: Compare,
        #[command(flatten)]
        to: Output,
    },
    /// The growth alone: what a decision costs by limits, clients, batches, limits for
    /// each request, and the distance of Redis
    Growth {
        #[command(flatten)]
        options: growth::Options,
        #[command(flatten)]
        to: Output,
    },
}

/// All of it.
#[derive(Debug, Args)]
struct Whole {
    /// A first look at both parts, in under four minutes: what `compare --quick` and
    /// `growth --quick` are
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// The comparison as with `compare --full`: all of it takes forty minutes
    #[arg(long)]
    full: bool,

    /// Writes the tables and the plots to docs/bench too
    #[arg(long)]
    docs: bool,

    /// Lists the contenders, and measures nothing
    #[arg(long)]
    list: bool,

    #[command(flatten)]
    to: Output,
}

#[derive(Debug, Args)]
struct Output {
    /// Where results.json and the plots are written
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench")]
    output: PathBuf,
}

/// What is compared, and for how long.
#[derive(Debug, Default, Args)]
// clap makes a group of this name for the subcommand already.
#[group(skip)]
pub struct Compare {
    /// Contenders, by their ids (see --list); "none" and "glue-eval", which the others
    /// are compared with, run in any case [default: all]
    #[arg(long, value_delimiter = ',', value_name = "IDS", value_parser = contender)]
    contenders: Vec<&'static Contender>,

    /// Connections that wrk keeps busy [default: 1,16,64,256]
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: Vec<u32>,

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
}

fn contender(id: &str) -> Result<&'static Contender, String> {
    contenders::find(id).ok_or_else(|| "no such contender: --list shows them".to_owned())
}

impl Options {
    /// Whether contenders are to be listed, and nothing else.
    pub fn is_list(&self) -> bool {
        self.whole.list
    }

    /// What is measured, and where it is written.
    pub fn wanted(self) -> Wanted {
        let Whole { quick, full, docs, list: _, to } = self.whole;
        let docs = docs.then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bench"));
        match self.part {
            None => Wanted {
                compare: Some(Compare { quick, full, ..Compare::default() }),
                growth: Some(growth::Options::all(quick)),
                output: to.output,
                docs,
            },
            Some(Part::Compare { options, to }) => {
                Wanted { compare: Some(options), growth: None, output: to.output, docs: None }
            }
            Some(Part::Growth { options, to }) => {
                Wanted { compare: None, growth: Some(options), output: to.output, docs: None }
            }
        }
    }
}

impl Compare {
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

    /// How many connections.
    pub fn connections(&self) -> Vec<u32> {
        or_default(&self.connections, false, &[1, 16, 64, 256])
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
pub mod tests {
    use super::*;

    /// What is wanted by these words.
    pub fn wanted(arguments: &[&str]) -> Wanted {
        let words = ["weir-bench"].iter().chain(arguments);
        Options::try_parse_from(words).unwrap().wanted()
    }

    /// The options of the comparison by these words.
    pub fn compare(arguments: &[&str]) -> Compare {
        wanted(&[&["compare"], arguments].concat()).compare.unwrap()
    }

    fn ids(arguments: &[&str]) -> Vec<&'static str> {
        compare(arguments).contenders().iter().map(|contender| contender.id).collect()
    }

    #[test]
    fn what_the_others_are_compared_with_runs_in_any_case() {
        assert_eq!(ids(&["--contenders", "quota"]), [BASE, GLUE, "quota"]);
        assert_eq!(ids(&[]).len(), contenders::all().len());
    }

    #[test]
    fn a_contender_that_does_not_exist_is_an_error() {
        let words = ["weir-bench", "compare", "--contenders", "fastest"];
        assert!(Options::try_parse_from(words).is_err());
    }

    #[test]
    fn what_is_given_goes_before_what_quick_means() {
        let options = compare(&["--quick", "--seconds", "5", "--workers", "2"]);
        assert_eq!((options.rounds(), options.seconds()), (1, 5));
        assert_eq!((options.clients(), options.workers()), (vec![1000], vec![2]));
    }

    #[test]
    fn without_a_part_all_is_measured_and_only_all_goes_to_the_docs() {
        let parts = |arguments| {
            let Wanted { compare, growth, docs, .. } = wanted(arguments);
            (compare.is_some(), growth.is_some(), docs.is_some())
        };
        assert_eq!(parts(&[]), (true, true, false));
        assert_eq!(parts(&["--full", "--docs"]), (true, true, true));
        assert_eq!(parts(&["compare"]), (true, false, false));
        assert_eq!(parts(&["growth"]), (false, true, false));
        for words in [["compare", "--docs"], ["--docs", "growth"], ["--quick", "--full"]] {
            let words = [&["weir-bench"], &words[..]].concat();
            assert!(Options::try_parse_from(&words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn quick_and_full_are_of_the_parts() {
        let both = wanted(&["--quick"]);
        assert_eq!(both.compare.unwrap().rounds(), 1);
        assert_eq!(both.growth.unwrap().settings().rounds, 1);
        assert!(wanted(&["--full"]).compare.unwrap().full);
    }
}
