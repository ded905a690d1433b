//! The more clients there are, the more memory they take, and the less of it is in a
//! cache: in Redis, and in the memory that the workers of a host share.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use weir_core::{Limit, Timestamp};
use weir_redis::Ask;
use weir_shm::{Moment, Store, Uptime};
use weir_tests::Redis;
use weir_tests::script::{Script, limit};

use super::clients::{ALGORITHMS, HOUR_US, START_US, decide, hours, name};
use super::meter::Meter;
use super::parts::steps;
use super::report::Point;
use super::work::{Work, compare};
use super::{Bench, Settings};
use crate::summary::Spread;

/// Requests for each call of a crowd.
const BATCH: usize = 64;

/// Enough for a log of each of a million clients.
const STORE_BYTES: usize = 512 << 20;

/// From 1 to 1,000,000 clients, by factors of 1,000, and the most of all.
pub fn sizes(most: u64) -> impl Iterator<Item = u64> {
    steps(1, most).filter(move |count| count.ilog10().is_multiple_of(3) || *count == most)
}

/// As many clients as that.
pub fn measure(bench: &mut Bench<'_>) -> Result<Vec<Point>> {
    let Bench { redis, settings, .. } = *bench;
    let mut points = Vec::new();
    for count in sizes(settings.most_clients) {
        for (word, name) in ALGORITHMS {
            let habit = Habit::of(word, count);
            bench.progress.goes_on(&format!("{name}: {count} clients in Redis"));
            points.push(in_redis(redis, settings, name, habit, count)?);
            bench.progress.goes_on(&format!("{name}: {count} clients in shared memory"));
            points.push(embedded(settings, name, habit, count)?);
        }
    }
    Ok(points)
}

fn in_redis(
    redis: &Redis,
    settings: &Settings,
    name: &str,
    habit: Habit,
    count: u64,
) -> Result<Point> {
    redis.command::<()>("FLUSHALL SYNC");
    let crowd = Crowd::gather(redis, habit, count)?;
    let bytes_per_client = crowd.bytes;
    let amount = (settings.rounds as usize, settings.calls as usize);
    let (yardstick_us, costs) = compare(redis, &mut [Box::new(crowd)], amount, BATCH)?;
    let cost = costs.first().context("one cost")?;
    Ok(Point {
        series: name.to_owned(),
        x: count,
        time_us: cost.script_us,
        yardsticks: Some(cost.yardsticks),
        yardstick_us: Some(yardstick_us),
        redis_cpu_us: Some(cost.cpu_us),
        bytes_per_client,
    })
}

/// The same number of decisions, by one process that does nothing else.
fn embedded(settings: &Settings, name: &str, habit: Habit, count: u64) -> Result<Point> {
    let (store, _) = Store::open(&format!("{name} {count}"), STORE_BYTES)?;
    let terms = store.terms(&[habit.limit], &["bench"]);
    let (mut now_us, mut client) = (START_US, 0_u64);
    let step_us = habit.every_us / count;
    let mut decide = || -> Result<()> {
        now_us += step_us;
        client = (client + 1) % count;
        let uptime = Uptime::from_micros(now_us);
        let now = Moment { wall: Timestamp::from_micros(now_us), uptime };
        let tag = store.tag(&client.to_le_bytes());
        let (_, verdict) = store.decide(&terms, tag, 1, || now)?;
        ensure!(verdict.allowed, "the store refuses: {verdict:?}");
        Ok(())
    };
    (0..count).try_for_each(|_| decide())?;
    let usage = store.usage();
    let lost = usage.evicted_least_recently_used;
    ensure!(usage.entries == count && lost == 0, "{usage:?} of {count} clients");
    let round_of = u64::from(settings.calls) * BATCH as u64;
    let mut rounds = Vec::new();
    for _ in 0..settings.rounds {
        let begun = Instant::now();
        (0..round_of).try_for_each(|_| decide())?;
        rounds.push(begun.elapsed());
    }
    let each = |took: Duration| took.as_secs_f64() * 1e6 / round_of as f64;
    Ok(Point {
        series: format!("{name}, shared memory"),
        x: count,
        time_us: Spread::of(rounds.into_iter().map(each)),
        yardsticks: None,
        yardstick_us: None,
        redis_cpu_us: None,
        bytes_per_client: usage.used_bytes as f64 / usage.entries as f64,
    })
}

/// A limit of a crowd, and how often each of its clients comes.
#[derive(Clone, Copy, Debug)]
struct Habit {
    limit: Limit,
    every_us: u64,
}

impl Habit {
    /// Of clients with a unit or two each. A batch of one client alone has to fit.
    fn of(algorithm: &str, count: u64) -> Self {
        let (limit, every_us) = match algorithm {
            // A bucket is forgotten once it is full, an hour after it was: by the clock
            // of Redis later than this ends. Those of a crowd come twice in that time,
            // and few are so often here that their bucket would be empty.
            "bucket" if count >= 1_000 => (hours(algorithm, 1, 5_000), HOUR_US / 2),
            "bucket" => (hours(algorithm, 1, 128), HOUR_US),
            "quota" => (hours(algorithm, 1, 2), HOUR_US),
            // Twice in a window.
            _ => (limit(&format!("{algorithm} 128/128m")), HOUR_US * 64 / 60),
        };
        Self { limit, every_us }
    }
}

/// Very many clients, in turn.
struct Crowd {
    script: Script,
    count: u64,
    next: u64,
    now_us: u64,
    step_us: u64,
    /// What each takes in Redis, with what Redis needs to find it.
    bytes: f64,
}

impl Crowd {
    /// So many, each of which has been once.
    fn gather(redis: &Redis, habit: Habit, count: u64) -> Result<Self> {
        let mut meter = Meter::of(redis);
        let script = Script::with(redis.connect(), &[vec![habit.limit]]);
        let before = meter.used_memory()?;
        // No more often than a batch of one client may come.
        let step_us = (habit.every_us * BATCH as u64 / count).min(64 * HOUR_US);
        let mut crowd = Self { script, count, next: 0, now_us: START_US, step_us, bytes: 0.0 };
        for _ in 0..count.div_ceil(BATCH as u64) {
            crowd.call()?;
        }
        crowd.bytes = if count < BATCH as u64 {
            // So few that what else Redis keeps is more.
            let key = crowd.script.keys(0, &name(0)).remove(0);
            redis.command::<u64>(&format!("MEMORY USAGE {key} SAMPLES 0")) as f64
        } else {
            meter.used_memory()?.saturating_sub(before) as f64 / count as f64
        };
        Ok(crowd)
    }
}

impl Work for Crowd {
    fn call(&mut self) -> Result<usize> {
        self.now_us += self.step_us;
        let asks: Vec<Ask> = (0..BATCH as u64)
            .map(|index| self.script.ask(0, &name(((self.next + index) % self.count) as usize), 1))
            .collect();
        self.next = (self.next + BATCH as u64) % self.count;
        decide(&mut self.script, self.now_us, &asks)
    }
}
