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
mod options;
mod paint;
mod parts;
mod report;
mod work;

use anyhow::Result;
use weir_tests::Redis;

pub use options::{Options, Settings};
pub use paint::all as paint;
#[cfg(test)]
pub use report::{Distance, Memory, Place};
pub use report::{Growth, tables};

use crate::progress::Progress;
use options::Part;

/// What a part is measured with.
struct Bench<'a> {
    redis: &'a Redis,
    settings: &'a Settings,
    progress: &'a mut Progress,
}

/// Measures each part that is wanted, on a Redis of its own. What fails does not end the
/// run: it is among the faults, which are returned too.
pub fn measure(settings: &Settings, progress: &mut Progress) -> (Growth, Vec<String>) {
    let mut growth = Growth::default();
    let mut faults = Vec::new();
    for &part in &settings.parts {
        progress.begins(&format!("growth, {part}"));
        let redis = Redis::start();
        let mut bench = Bench { redis: &redis, settings, progress };
        if let Err(error) = growth.add(part, &mut bench, &mut faults) {
            let fault = format!("growth, {part}: {error:#}");
            progress.says(&fault);
            faults.push(fault);
        }
    }
    (growth, faults)
}

impl Growth {
    fn add(&mut self, part: Part, bench: &mut Bench<'_>, faults: &mut Vec<String>) -> Result<()> {
        match part {
            Part::Limits => {
                self.limits = parts::limits(bench)?;
                self.memory = Some(parts::memory(bench)?);
            }
            Part::Batches => self.batches = parts::batches(bench)?,
            Part::Several => self.several = parts::several(bench)?,
            Part::Clients => self.clients = crowds::measure(bench)?,
            Part::Delay => self.delay = delay::measure(bench, faults)?,
        }
        Ok(())
    }
}
