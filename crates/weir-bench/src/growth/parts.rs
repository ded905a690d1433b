//! The curves of the script in Redis.

use anyhow::Result;
use redis::Value;
use weir_core::Limit;
use weir_tests::Redis;

use super::Bench;
use super::clients::{ALGORITHMS, Clients, hours};
use super::report::{Memory, Point};
use super::work::{Work, compare};

/// The batch where nothing else is said.
pub const BATCH: usize = 64;

/// The batches that are compared.
pub const BATCHES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The limit where nothing else is said, unless all are to be smaller.
pub const UNITS: u64 = 100;

/// Limits from 10 to 10,000 units in an hour.
pub fn limits(bench: &mut Bench<'_>) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for units in steps(10, bench.settings.most_units) {
        let one = |algorithm| vec![hours(algorithm, units, 1)];
        let contenders = ALGORITHMS.map(|(word, name)| (name, one(word)));
        points.extend(curve(bench, units, (units, units), BATCH, &contenders)?);
    }
    Ok(points)
}

/// Batches from 1 to 128.
pub fn batches(bench: &mut Bench<'_>) -> Result<Vec<Point>> {
    let units = UNITS.min(bench.settings.most_units);
    let mut points = Vec::new();
    for batch in BATCHES {
        let one = |algorithm| vec![hours(algorithm, units, 1)];
        let contenders = ALGORITHMS.map(|(word, name)| (name, one(word)));
        points.extend(curve(bench, batch as u64, (units, units), batch, &contenders)?);
    }
    Ok(points)
}

/// From 1 to 4 limits for each request, of the same algorithm and over 1 to 4 hours.
pub fn several(bench: &mut Bench<'_>) -> Result<Vec<Point>> {
    let units = UNITS.min(bench.settings.most_units);
    let mut points = Vec::new();
    for count in 1..=4 {
        let some = |algorithm| (1..=count).map(|each| hours(algorithm, units, each)).collect();
        // There are only three calendar periods.
        let is_left_out = |word| word == "quota" && count > 3;
        let contenders: Vec<(&str, Vec<Limit>)> = ALGORITHMS
            .iter()
            .filter(|(word, _)| !is_left_out(*word))
            .map(|(word, name)| (*name, some(word)))
            .collect();
        let most = units * count;
        points.extend(curve(bench, count, (units, most), BATCH, &contenders)?);
    }
    Ok(points)
}

/// One point of each contender's curve.
fn curve(
    bench: &mut Bench<'_>,
    x: u64,
    (units, most): (u64, u64),
    batch: usize,
    contenders: &[(&'static str, Vec<Limit>)],
) -> Result<Vec<Point>> {
    let Bench { redis, settings, .. } = *bench;
    redis.command::<()>("FLUSHALL SYNC");
    let mut bytes = Vec::new();
    let mut works: Vec<Box<dyn Work>> = Vec::new();
    for (name, limits) in contenders {
        bench.progress.goes_on(&format!("{name}: filling {batch} clients with {most} units"));
        let clients = Clients::fill(redis, limits, (units, most), batch, batch)?;
        bytes.push(clients.bytes(redis));
        works.push(Box::new(clients));
    }
    bench.progress.goes_on(&format!("{most} units, batches of {batch}: measuring"));
    // As many decisions whatever the batch.
    let calls = (settings.calls as usize * BATCH).div_ceil(batch).min(settings.calls as usize * 8);
    let (yardstick_us, costs) =
        compare(redis, &mut works, (settings.rounds as usize, calls), batch)?;
    let points = contenders.iter().zip(costs).zip(bytes).map(|(((name, _), cost), bytes)| Point {
        series: (*name).to_owned(),
        x,
        time_us: cost.script_us,
        yardsticks: Some(cost.yardsticks),
        yardstick_us: Some(yardstick_us),
        redis_cpu_us: Some(cost.cpu_us),
        bytes_per_client: bytes,
    });
    Ok(points.collect())
}

/// What a client takes that had so many requests in its window.
const REQUESTS: u64 = 1_000;

/// The memory of a log, and of a set as scripts by hand keep it.
pub fn memory(bench: &mut Bench<'_>) -> Result<Memory> {
    let redis = bench.redis;
    bench.progress.goes_on("memory of a client");
    redis.command::<()>("FLUSHALL SYNC");
    let bytes = |algorithm| -> Result<f64> {
        let limits = [hours(algorithm, REQUESTS, 1)];
        Ok(Clients::fill(redis, &limits, (REQUESTS, REQUESTS), 1, 1)?.bytes(redis))
    };
    Ok(Memory {
        requests: REQUESTS,
        members_of_21: by_hand(redis, |time, nth, _| format!("{time}:{nth}"))?,
        members_of_40: by_hand(redis, |time, _, random| format!("{time}:{}", &random[..22]))?,
        members_of_50: by_hand(redis, |time, _, random| format!("{time}:{random}"))?,
        sliding_log: bytes("log")?,
        compact_log: bytes("ring")?,
    })
}

/// A sorted set with a member for each request. They are made of its time with six
/// digits behind the second, how many came before, and a random number of 32 digits as
/// nginx's `$request_id` has them.
fn by_hand(redis: &Redis, member: impl Fn(&str, u64, &str) -> String) -> Result<f64> {
    let mut connection = redis.connect();
    let mut random = 1_u128;
    let mut add = redis::pipe();
    for nth in 0..REQUESTS {
        random = random.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(1);
        let seconds = 1_800_000_000.0 + nth as f64 * 3.6;
        let member = member(&format!("{seconds:.6}"), nth, &format!("{random:032x}"));
        add.cmd("ZADD").arg("by-hand").arg(seconds).arg(member).ignore();
    }
    add.cmd("PEXPIRE").arg("by-hand").arg(3_600_000).ignore();
    add.query::<Value>(&mut connection)?;
    let bytes: u64 = redis.command("MEMORY USAGE by-hand SAMPLES 0");
    redis.command::<()>("DEL by-hand");
    Ok(bytes as f64)
}

/// Powers of ten, up to the highest that is wanted.
pub fn steps(first: u64, most: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(first), |step| step.checked_mul(10))
        .take_while(move |step| *step <= most.max(first))
}
