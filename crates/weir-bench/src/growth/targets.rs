//! What was promised of these figures.

use serde::Serialize;

use super::report::Growth;
use crate::summary::Spread;

/// A figure, and what it may be at most.
#[derive(Debug, Serialize)]
pub struct Target {
    /// What is measured, and in what.
    pub figure: String,
    /// What it is.
    pub measured: Spread,
    /// What it may be.
    pub at_most: f64,
}

impl Target {
    /// Whether its median is no more.
    pub fn is_met(&self) -> bool {
        self.measured.median <= self.at_most
    }
}

/// Microseconds that trial scripts took for a decision, at a limit of 100 and in
/// batches of 64, on the machine that the targets were set on.
const TRIALS_US: [(&str, f64); 4] =
    [("sliding-log", 4.5), ("compact-log", 3.2), ("token-bucket", 1.5), ("sliding-counter", 1.1)];

/// How much more the script may take, which does more.
const ALLOWANCE: f64 = 1.2;

/// Of what was measured.
pub fn of(growth: &Growth) -> Vec<Target> {
    let mut targets = Vec::new();
    for (series, trial_us) in TRIALS_US {
        let point = growth.limits.iter().find(|point| point.series == series && point.x == 100);
        targets.extend(point.map(|point| Target {
            figure: format!("{series}: script time, µs (compare with the same machine only)"),
            measured: point.time_us,
            at_most: trial_us * ALLOWANCE,
        }));
    }
    targets.extend(growth.memory.as_ref().map(|memory| Target {
        figure: "compact-log: bytes of a client, against a sorted set with members of 50".into(),
        measured: Spread::of([memory.compact_log / memory.members_of_50]),
        at_most: 0.06,
    }));
    let near = growth.delay.iter().filter(|distance| distance.delay_ms == 1);
    targets.extend(near.map(|distance| Target {
        figure: format!(
            "{}, Redis 1 ms away, {} connections: p50 added beyond that, µs",
            distance.series, distance.connections
        ),
        measured: distance.beyond_us,
        at_most: 100.0,
    }));
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::report::Memory;
    use crate::json::Machine;

    #[test]
    fn a_target_is_met_up_to_what_it_says() {
        let memory = |compact_log| {
            let growth = Growth {
                memory: Some(Memory {
                    requests: 1_000,
                    members_of_40: 80_000.0,
                    members_of_50: 100_000.0,
                    sliding_log: 50_000.0,
                    compact_log,
                }),
                ..Growth::new(Machine::default())
            };
            of(&growth).remove(0)
        };
        assert!(memory(6_000.0).is_met());
        assert!(!memory(6_001.0).is_met());
    }
}
