//! How much of it is measured, and how long that takes.

use std::fmt;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::clients::ALGORITHMS;
use super::crowds;
use super::delay::{CONTENDERS, PINGS};
use super::parts::{BATCH, BATCHES, UNITS, steps};
use crate::plan::AROUND_A_ROUND;

/// What can grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Limits, from 10 to 10,000 units; and the memory of a client's log.
    Limits,
    /// Requests for each script call, from 1 to 128.
    Batches,
    /// Limits for each request, from 1 to 4.
    Several,
    /// Clients, from 1 to 1,000,000.
    Clients,
    /// The distance of Redis: 0, 1 and 5 ms.
    Delay,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// What the command line says of it.
#[derive(Clone, Debug, Default, Args)]
pub struct Options {
    /// What grows [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    parts: Vec<Part>,

    /// Rounds, beside a first one that is not counted [default: 7]
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one())]
    rounds: Option<u32>,

    /// Script calls of 64 requests, or as many requests, of each contender in a round
    /// [default: 100]
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one())]
    calls: Option<u32>,

    /// The highest limit [default: 10000]
    #[arg(long, value_name = "UNITS", value_parser = clap::value_parser!(u64).range(10..=100_000))]
    most_units: Option<u64>,

    /// The most clients [default: 1000000]
    #[arg(long, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    most_clients: Option<u64>,

    /// How far away Redis is, in milliseconds there and back [default: 0,1,5]
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=1000))]
    delays_ms: Vec<u64>,

    /// Connections that wrk keeps busy at each of these distances [default: 1,16,64]
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: Vec<u32>,

    /// Rounds of each distance and number of connections, beside a first one that is not
    /// counted [default: 3]
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one())]
    delay_rounds: Option<u32>,

    /// How long such a round takes, in seconds [default: 2]
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one())]
    seconds: Option<u32>,

    /// A first look: one round that counts, of 20 calls or a second, limits up to 1,000
    /// units, 10,000 clients, 1 and 64 connections
    #[arg(long)]
    quick: bool,
}

fn at_least_one() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1000)
}

/// What is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// In their order.
    pub parts: Vec<Part>,
    /// Beside one that is not counted.
    pub rounds: u32,
    /// Script calls in a round.
    pub calls: u32,
    /// The highest limit.
    pub most_units: u64,
    /// The most clients.
    pub most_clients: u64,
    /// How far away Redis is, there and back.
    pub delays_ms: Vec<u64>,
    /// At each of these distances.
    pub connections: Vec<u32>,
    /// Of each of both, beside one that is not counted.
    pub delay_rounds: u32,
    /// How long such a round takes.
    pub seconds: u32,
}

impl Options {
    /// Of every part.
    pub fn all(quick: bool) -> Self {
        Self { quick, ..Self::default() }
    }

    /// What was given, and what is meant where nothing was.
    pub fn settings(&self) -> Settings {
        let is_wanted = |part: &Part| self.parts.is_empty() || self.parts.contains(part);
        let or = |quick, otherwise| if self.quick { quick } else { otherwise };
        Settings {
            parts: Part::value_variants().iter().copied().filter(is_wanted).collect(),
            rounds: self.rounds.unwrap_or(or(1, 7)),
            calls: self.calls.unwrap_or(or(20, 100)),
            most_units: self.most_units.unwrap_or(if self.quick { 1_000 } else { 10_000 }),
            most_clients: self.most_clients.unwrap_or(if self.quick { 10_000 } else { 1_000_000 }),
            delays_ms: match &*self.delays_ms {
                [] => vec![0, 1, 5],
                given => given.to_vec(),
            },
            connections: match (&*self.connections, self.quick) {
                ([], true) => vec![1, 64],
                ([], false) => vec![1, 16, 64],
                (given, _) => given.to_vec(),
            },
            delay_rounds: self.delay_rounds.unwrap_or(or(1, 3)),
            seconds: self.seconds.unwrap_or(or(1, 2)),
        }
    }
}

/// What a decision takes here, the making of the call and the reading of the reply
/// included: enough to say how long all of them will take.
const DECISION: Duration = Duration::from_micros(8);

/// Contenders of a round, and the yardstick.
const IN_A_ROUND: u64 = ALGORITHMS.len() as u64 + 1;

impl Settings {
    /// How long a part takes.
    pub fn expected(&self, part: Part) -> Duration {
        let calls = u64::from(self.rounds + 1) * u64::from(self.calls);
        let rounds = calls * BATCH as u64 * IN_A_ROUND;
        // Only logs are filled one by one.
        let filled = |units: u64| 2 * units * BATCH as u64;
        let decisions = match part {
            Part::Limits => {
                steps(10, self.most_units).map(|units| rounds + filled(units)).sum::<u64>()
            }
            Part::Batches => BATCHES.len() as u64 * rounds,
            Part::Several => (1..=4).map(|limits| limits * (rounds + filled(limits * UNITS))).sum(),
            Part::Clients => crowds::sizes(self.most_clients)
                .map(|clients| rounds + ALGORITHMS.len() as u64 * clients)
                .sum(),
            Part::Delay => return self.expected_far_away(),
        };
        // Of nanoseconds there are enough for centuries.
        Duration::from_nanos(DECISION.as_nanos() as u64 * decisions)
    }

    fn expected_far_away(&self) -> Duration {
        let load = Duration::from_secs(self.seconds.into()) + AROUND_A_ROUND;
        let loads = load * CONTENDERS.len() as u32;
        let rounds = (self.delay_rounds + 1) * self.connections.len() as u32;
        let pings = |ms: &u64| Duration::from_millis(*ms) * PINGS as u32;
        self.delays_ms.iter().map(|ms| (loads + pings(ms)) * rounds).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_goes_before_what_quick_means() {
        let given = Options { quick: true, calls: Some(7), ..Options::default() }.settings();
        assert_eq!((given.calls, given.rounds, given.most_clients), (7, 1, 10_000));
        let parts = vec![Part::Delay, Part::Limits];
        let given = Options { parts, ..Options::default() }.settings();
        // In the order in which they are measured.
        assert_eq!((given.parts, given.rounds), (vec![Part::Limits, Part::Delay], 7));
    }

    #[test]
    fn more_work_is_expected_to_take_longer() {
        let (quick, all) = (Options::all(true).settings(), Options::all(false).settings());
        for part in &all.parts {
            assert!(quick.expected(*part) < all.expected(*part) / 3, "{part}");
        }
        let sum = |settings: &Settings| -> Duration {
            settings.parts.iter().map(|part| settings.expected(*part)).sum()
        };
        let minutes = |span: Duration| span.as_secs() / 60;
        assert_eq!((minutes(sum(&quick)), minutes(sum(&all))), (1, 7));
    }
}
