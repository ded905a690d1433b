//! Contenders of one round, and how they are compared.

use std::time::Duration;

use anyhow::{Result, ensure};
use redis::{Connection, Script};
use weir_tests::Redis;

use super::meter::{Meter, Spent};
use crate::summary::Spread;

/// Something that has Redis decide, in calls of one batch each.
pub trait Work {
    /// Makes one call; how many decisions that were.
    fn call(&mut self) -> Result<usize>;
}

/// What a decision costs Redis.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Microseconds in the script.
    pub script_us: Spread,
    /// The same as a multiple of the yardstick of the same round.
    pub yardsticks: Spread,
    /// Microseconds of CPU in all. Counted too coarsely for a round alone.
    pub cpu_us: f64,
}

/// Runs rounds of the yardstick and of all of these, interleaved, so that a noisy
/// machine is noisy for all. The first round is not counted.
pub fn compare(
    redis: &Redis,
    works: &mut [Box<dyn Work>],
    (rounds, calls): (usize, usize),
    batch: usize,
) -> Result<(Spread, Vec<Cost>)> {
    let mut meter = Meter::of(redis);
    let mut yardstick = Yardstick::new(redis, batch);
    let mut rulers = Vec::new();
    let mut sums = vec![(Vec::new(), Spent::default(), 0); works.len()];
    for round in 0..=rounds {
        let (spent, decisions) = run(&mut meter, &mut yardstick, calls)?;
        let ruler = micros(spent.script, decisions);
        if round > 0 {
            rulers.push(ruler);
        }
        for (work, (shares, total, count)) in works.iter_mut().zip(&mut sums) {
            let (spent, decisions) = run(&mut meter, work.as_mut(), calls)?;
            if round > 0 {
                let script_us = micros(spent.script, decisions);
                shares.push((script_us, script_us / ruler));
                total.cpu += spent.cpu;
                *count += decisions;
            }
        }
    }
    let cost = |(shares, total, count): (Vec<(f64, f64)>, Spent, usize)| Cost {
        script_us: Spread::of(shares.iter().map(|share| share.0)),
        yardsticks: Spread::of(shares.iter().map(|share| share.1)),
        cpu_us: micros(total.cpu, count),
    };
    Ok((Spread::of(rulers), sums.into_iter().map(cost).collect()))
}

fn run(meter: &mut Meter, work: &mut dyn Work, calls: usize) -> Result<(Spent, usize)> {
    let before = meter.so_far()?;
    let mut decisions = 0;
    for _ in 0..calls {
        decisions += work.call()?;
    }
    Ok((meter.so_far()?.since(before), decisions))
}

fn micros(spent: Duration, decisions: usize) -> f64 {
    spent.as_secs_f64() * 1e6 / decisions as f64
}

/// What it takes to keep a client's state as one string that is written anew each time:
/// it reads 20 bytes and writes as many, with a time to live, and decides nothing.
pub struct Yardstick {
    connection: Connection,
    script: Script,
    keys: Vec<String>,
}

const LEAST: &str = r#"
    local call = redis.call
    local value, lifetime = ARGV[1], ARGV[2]
    for i = 1, #KEYS do
        call("GET", KEYS[i])
        call("SET", KEYS[i], value, "PX", lifetime)
    end
    return #KEYS
"#;

impl Yardstick {
    /// For batches of this size.
    pub fn new(redis: &Redis, batch: usize) -> Self {
        let keys = (0..batch).map(|client| format!("yardstick:{{client-{client}}}")).collect();
        Self { connection: redis.connect(), script: Script::new(LEAST), keys }
    }
}

impl Work for Yardstick {
    fn call(&mut self) -> Result<usize> {
        let mut call = self.script.prepare_invoke();
        for key in &self.keys {
            call.key(key);
        }
        call.arg("12345678901234567890").arg(3_600_000);
        let done: usize = call.invoke(&mut self.connection)?;
        ensure!(done == self.keys.len(), "the yardstick did {done}");
        Ok(done)
    }
}
