//! What the project has set out to reach, and whether it has.

use serde::Serialize;

use crate::summary::{Comparison, Row, Spread};

/// What is compared.
#[derive(Clone, Copy)]
enum Figure {
    Limiter,
    RateToGlue,
    P50,
    RateToNone,
    ScriptCalls,
}

/// What it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

impl Bound {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

/// A target and what was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Of what.
    pub figure: &'static str,
    /// By whom.
    pub contender: &'static str,
    /// With how many connections.
    pub connections: u32,
    /// Over all rounds.
    pub measured: Spread,
    /// What its median is to be.
    pub target: Bound,
    /// Whether it is.
    pub is_met: bool,
}

use Bound::{AtLeast, AtMost};

struct Target {
    figure: Figure,
    /// Each of these.
    contenders: &'static [&'static str],
    /// With so many connections.
    bounds: &'static [(u32, Bound)],
}

const fn target(
    figure: Figure,
    contenders: &'static [&'static str],
    bounds: &'static [(u32, Bound)],
) -> Target {
    Target { figure, contenders, bounds }
}

/// With 1,000 clients and one worker.
const TARGETS: [Target; 6] = [
    target(Figure::Limiter, &["sliding-log"], &[(64, AtMost(0.33)), (256, AtMost(0.24))]),
    target(
        Figure::Limiter,
        &["token-bucket", "sliding-counter"],
        &[(64, AtMost(0.25)), (256, AtMost(0.18))],
    ),
    target(Figure::RateToGlue, &["sliding-log"], &[(64, AtLeast(1.8)), (256, AtLeast(2.2))]),
    target(Figure::P50, &["sliding-log"], &[(1, AtMost(1.05))]),
    target(
        Figure::RateToNone,
        &["refused", "embedded-log", "embedded-counter", "embedded-bucket", "embedded-refused"],
        &[(1, AtLeast(0.85)), (16, AtLeast(0.85)), (64, AtLeast(0.85)), (256, AtLeast(0.85))],
    ),
    target(
        Figure::ScriptCalls,
        &["sliding-log"],
        &[(16, AtMost(0.18)), (64, AtMost(0.052)), (256, AtMost(0.024))],
    ),
];

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Self::Limiter => "limiter CPU, of the glue's",
            Self::RateToGlue => "requests/s, of the glue's",
            Self::P50 => "p50, of the glue's",
            Self::RateToNone => "requests/s, of no limiter's",
            Self::ScriptCalls => "script calls per decision",
        }
    }

    fn of(self, row: &Row) -> Spread {
        match self {
            Self::Limiter => row.limiter_to_glue,
            Self::RateToGlue => row.rate_to_glue,
            Self::P50 => row.p50_to_glue,
            Self::RateToNone => row.rate_to_none,
            Self::ScriptCalls => row.script_calls,
        }
    }
}

/// A verdict for each target that was measured.
pub fn judge(comparisons: &[Comparison]) -> Vec<Verdict> {
    let comparison = |connections| {
        comparisons.iter().find(|comparison| {
            let group = comparison.group;
            (group.workers, group.clients, group.connections) == (1, 1000, connections)
        })
    };
    let mut verdicts = Vec::new();
    for Target { figure, contenders, bounds } in TARGETS {
        for id in contenders {
            for &(connections, target) in bounds {
                let Some(row) = comparison(connections).and_then(|found| found.row(id)) else {
                    continue;
                };
                let measured = figure.of(row);
                verdicts.push(Verdict {
                    figure: figure.name(),
                    contender: row.name,
                    connections,
                    measured,
                    target,
                    is_met: target.is_met_by(measured.median),
                });
            }
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contenders;
    use crate::plan::Group;
    use crate::summary::tests::comparison;

    const GROUP: Group = Group { workers: 1, clients: 1000, connections: 64 };

    #[test]
    fn a_target_is_met_or_not_as_its_median_says() {
        let verdicts = judge(&[comparison(GROUP)]);
        let told: Vec<_> =
            verdicts.iter().map(|verdict| (verdict.measured.median, verdict.is_met)).collect();
        // A limiter's CPU of 0.25, 2.5 times the requests per second, no script calls.
        assert_eq!(told, [(0.25, true), (2.5, true), (0.0, true)]);
        let slow = comparison(Group { connections: 256, ..GROUP });
        assert!(!judge(&[slow])[0].is_met, "0.25 of at most 0.24");
    }

    #[test]
    fn targets_are_of_many_clients_and_one_worker() {
        assert!(judge(&[comparison(Group { clients: 1, ..GROUP })]).is_empty());
        assert!(judge(&[comparison(Group { workers: 2, ..GROUP })]).is_empty());
    }

    #[test]
    fn every_target_is_of_a_contender() {
        let mut named = TARGETS.iter().flat_map(|target| target.contenders);
        assert!(named.all(|id| contenders::find(id).is_some()));
    }
}
