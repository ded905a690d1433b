//! What the project has set out to reach, and whether it has.

use serde::Serialize;

use crate::contenders::{self, Limiter};
use crate::growth::Growth;
use crate::plan::Group;
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
    pub contender: String,
    /// Under what load, limit or distance.
    pub under: String,
    /// Over all rounds.
    pub measured: Spread,
    /// What its median is to be.
    pub target: Bound,
    /// Whether it is.
    pub is_met: bool,
}

impl Verdict {
    fn new(
        figure: &'static str,
        contender: &str,
        under: String,
        measured: Spread,
        target: Bound,
    ) -> Self {
        let is_met = target.is_met_by(measured.median);
        Self { figure, contender: contender.to_owned(), under, measured, target, is_met }
    }
}

use Bound::{AtLeast, AtMost};

/// Of a comparison.
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

/// Microseconds of the script for a decision, at a limit of 100 and in batches of 64:
/// 1.2 times what trial scripts took, which did less, on the machine that the targets
/// were set on.
const SCRIPT_US: [(&str, Bound); 4] = [
    ("sliding-log", AtMost(5.4)),
    ("compact-log", AtMost(3.84)),
    ("token-bucket", AtMost(1.8)),
    ("sliding-counter", AtMost(1.32)),
];

/// Of a compact log, what a sorted set with members of 50 bytes takes being 1.
const MEMORY: Bound = AtMost(0.06);

/// Of the p50, in microseconds, beyond the way to a Redis so many milliseconds away.
const BEYOND_US: (u64, Bound) = (1, AtMost(100.0));

/// A verdict for each target that was measured.
pub fn judge(comparisons: &[Comparison], growth: Option<&Growth>) -> Vec<Verdict> {
    let mut verdicts = of_comparisons(comparisons);
    verdicts.extend(growth.into_iter().flat_map(of_growth));
    verdicts
}

fn of_comparisons(comparisons: &[Comparison]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for Target { figure, contenders, bounds } in TARGETS {
        for id in contenders {
            for &(connections, target) in bounds {
                let group = Group { workers: 1, clients: 1000, connections };
                let found = comparisons.iter().find(|comparison| comparison.group == group);
                let Some(row) = found.and_then(|found| found.row(id)) else { continue };
                let (name, measured) = (figure.name(), figure.of(row));
                verdicts.push(Verdict::new(name, row.name, group.to_string(), measured, target));
            }
        }
    }
    verdicts
}

fn of_growth(growth: &Growth) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (series, target) in SCRIPT_US {
        let point = growth.limits.iter().find(|point| point.series == series && point.x == 100);
        verdicts.extend(point.map(|point| {
            Verdict::new(
                "script time, µs (of the same machine only)",
                &format!("Weir, {series}"),
                "a limit of 100, batches of 64".to_owned(),
                point.time_us,
                target,
            )
        }));
    }
    verdicts.extend(growth.memory.as_ref().map(|memory| {
        Verdict::new(
            "bytes of a client, of a sorted set's with members of 50",
            "Weir, compact-log",
            format!("{} requests in the window", memory.requests),
            Spread::of([memory.compact_log / memory.members_of_50]),
            MEMORY,
        )
    }));
    let (delay_ms, beyond) = BEYOND_US;
    // The glue stands beside them to compare with.
    let is_weir =
        |id| contenders::find(id).is_some_and(|contender| matches!(contender.by, Limiter::Weir(_)));
    let judged = growth.delay.iter().filter(|each| each.place.delay_ms == delay_ms);
    verdicts.extend(judged.filter(|each| is_weir(each.id)).map(|each| {
        let under = each.place.to_string();
        Verdict::new("p50 added beyond the way, µs", each.name, under, each.beyond_us, beyond)
    }));
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::{Distance, Memory, Place};
    use crate::summary::tests::comparison;

    const GROUP: Group = Group { workers: 1, clients: 1000, connections: 64 };

    #[test]
    fn a_target_is_met_or_not_as_its_median_says() {
        let verdicts = judge(&[comparison(GROUP)], None);
        let told: Vec<_> =
            verdicts.iter().map(|verdict| (verdict.measured.median, verdict.is_met)).collect();
        // A limiter's CPU of 0.25, 2.5 times the requests per second, no script calls.
        assert_eq!(told, [(0.25, true), (2.5, true), (0.0, true)]);
        let slow = comparison(Group { connections: 256, ..GROUP });
        assert!(!judge(&[slow], None)[0].is_met, "0.25 of at most 0.24");
    }

    #[test]
    fn targets_are_of_many_clients_and_one_worker() {
        assert!(judge(&[comparison(Group { clients: 1, ..GROUP })], None).is_empty());
        assert!(judge(&[comparison(Group { workers: 2, ..GROUP })], None).is_empty());
    }

    #[test]
    fn every_target_is_of_a_contender() {
        let mut named = TARGETS.iter().flat_map(|target| target.contenders);
        assert!(named.all(|id| contenders::find(id).is_some()));
    }

    #[test]
    fn a_target_of_the_growth_is_met_up_to_what_it_says() {
        let is_met = |compact_log| {
            let memory = Memory {
                requests: 1_000,
                members_of_21: 70_000.0,
                members_of_40: 80_000.0,
                members_of_50: 100_000.0,
                sliding_log: 50_000.0,
                compact_log,
            };
            let growth = Growth { memory: Some(memory), ..Growth::default() };
            judge(&[], Some(&growth)).remove(0).is_met
        };
        assert!(is_met(6_000.0));
        assert!(!is_met(6_001.0));
    }

    #[test]
    fn weir_is_judged_at_a_distance_of_1_ms_and_the_glue_beside_it_is_not() {
        let steady = |value| Spread::of([value]);
        let distance = |id: &'static str, delay_ms, beyond_us| Distance {
            id,
            name: id,
            place: Place { delay_ms, connections: 1 },
            away_us: steady(1_000.0),
            none_us: steady(100.0),
            limited_us: steady(1_100.0 + beyond_us),
            beyond_us: steady(beyond_us),
            cpu_us: steady(10.0),
            script_calls: steady(1.0),
            proxy_us: steady(100.0),
        };
        let delay = vec![
            distance("glue-evalsha", 1, 50.0),
            distance("sliding-log", 0, 50.0),
            distance("sliding-log", 1, 101.0),
            distance("token-bucket", 1, 100.0),
        ];
        let verdicts = judge(&[], Some(&Growth { delay, ..Growth::default() }));
        let told: Vec<_> = verdicts
            .iter()
            .map(|verdict| (&*verdict.contender, &*verdict.under, verdict.is_met))
            .collect();
        let under = "Redis 1 ms away, 1 connection";
        assert_eq!(told, [("sliding-log", under, false), ("token-bucket", under, true)]);
    }
}
