//! Rounds of all contenders, interleaved.

use anyhow::{Context as _, Result};
use weir_tests::{Nginx, Redis};

use crate::conf::{self, Servers};
use crate::contenders::Contender;
use crate::measure::{Figures, measure};
use crate::options::Compare;
use crate::plan::Group;
use crate::progress::Progress;
use crate::summary::Comparison;
use crate::wrk::Load;

/// Measures every group: a comparison for each. A round in which something was not as it
/// should be does not end the run, of which it may be the last minute; it is among the
/// faults, which are returned too.
///
/// # Errors
///
/// If a contender does not answer as it should before its round, or wrk fails.
pub fn compare(
    options: &Compare,
    groups: &[Group],
    progress: &mut Progress,
) -> Result<(Vec<Comparison>, Vec<String>)> {
    let redis = Redis::start();
    let contenders = options.contenders();
    let rounds = options.rounds();
    let mut comparisons = Vec::new();
    let mut faults = Vec::new();
    let mut servers: Option<(u32, Servers)> = None;
    for &group in groups {
        progress.begins(&group.to_string());
        // One pair at a time: an idle worker is still one that wakes up.
        let servers = match &mut servers {
            Some((workers, servers)) if *workers == group.workers => servers,
            other => {
                *other = None;
                let started = Servers::start(&contenders, &redis, group.workers);
                &mut other.insert((group.workers, started)).1
            }
        };
        let load = Load {
            connections: group.connections,
            threads: group.workers,
            seconds: options.seconds(),
            clients: group.clients,
        };
        let mut measured: Vec<_> =
            contenders.iter().map(|&contender| (contender, Vec::new())).collect();
        for round in 1..=rounds {
            for (contender, figures) in &mut measured {
                progress.goes_on(&format!("round {round} of {rounds}, {}", contender.name));
                let (measured, right) = one_round(servers.of(contender), &redis, &load, contender)
                    .with_context(|| format!("{} ({group})", contender.name))?;
                figures.push(measured);
                // Why an answer is not as it should be is said in the log.
                if let Err(fault) = servers.must_be_calm().and(right) {
                    progress.says(&format!("{}: {fault:#}", contender.name));
                    faults.push(format!("{}, {group}, round {round}: {fault:#}", contender.name));
                }
            }
        }
        comparisons.push(Comparison::new(group, measured));
    }
    Ok((comparisons, faults))
}

fn one_round(
    nginx: &Nginx,
    redis: &Redis,
    load: &Load,
    contender: &Contender,
) -> Result<(Figures, Result<()>)> {
    // What others left would be somebody's to expire.
    redis.command::<()>("FLUSHALL SYNC");
    conf::ask_first(nginx, contender, load.clients)?;
    measure(nginx, redis, load, &contender.path(), contender.expected.is_refusal())
}
