//! The curves of the script in Redis.

use anyhow::Result;
use redis::Value;
use weir_core::Limit;
use weir_tests::Redis;

use super::clients::{ALGORITHMS, Clients, hours};
use super::report::{Memory, Point};
use super::work::{Work, compare};
use super::{Options, progress};

/// The batch where nothing else is said.
const BATCH: usize = 64;

/// The limit where nothing else is said, unless all are to be smaller.
const UNITS: u64 = 100;

/// Limits from 10 to 10,000 units in an hour.
pub fn limits(redis: &Redis, options: &Options) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for units in steps(10, options.most_units) {
        let one = |algorithm| vec![hours(algorithm, units, 1)];
        let contenders = ALGORITHMS.map(|(word, name)| (name, one(word)));
        points.extend(curve(redis, options, units, (units, units), BATCH, &contenders)?);
    }
    Ok(points)
}

/// Batches from 1 to 128.
pub fn batches(redis: &Redis, options: &Options) -> Result<Vec<Point>> {
    let units = UNITS.min(options.most_units);
    let mut points = Vec::new();
    for batch in [1, 2, 4, 8, 16, 32, 64, 128] {
        let one = |algorithm| vec![hours(algorithm, units, 1)];
        let contenders = ALGORITHMS.map(|(word, name)| (name, one(word)));
        points.extend(curve(redis, options, batch as u64, (units, units), batch, &contenders)?);
    }
    Ok(points)
}

/// From 1 to 4 limits for each request, of the same algorithm and over 1 to 4 hours.
pub fn several(redis: &Redis, options: &Options) -> Result<Vec<Point>> {
    let units = UNITS.min(options.most_units);
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
        points.extend(curve(redis, options, count, (units, most), BATCH, &contenders)?);
    }
    Ok(points)
}

/// One point of each contender's curve.
fn curve(
    redis: &Redis,
    options: &Options,
    x: u64,
    (units, most): (u64, u64),
    batch: usize,
    contenders: &[(&'static str, Vec<Limit>)],
) -> Result<Vec<Point>> {
    redis.command::<()>("FLUSHALL SYNC");
    let mut bytes = Vec::new();
    let mut works: Vec<Box<dyn Work>> = Vec::new();
    for (name, limits) in contenders {
        progress(&format!("{name}: filling {batch} clients with {most} units"));
        let clients = Clients::fill(redis, limits, (units, most), batch, batch)?;
        bytes.push(clients.bytes(redis));
        works.push(Box::new(clients));
    }
    progress(&format!("{most} units, batches of {batch}: measuring"));
    // As many decisions whatever the batch.
    let calls = (options.calls as usize * BATCH).div_ceil(batch).min(options.calls as usize * 8);
    let (yardstick_us, costs) =
        compare(redis, &mut works, (options.rounds as usize, calls), batch)?;
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
pub fn memory(redis: &Redis) -> Result<Memory> {
    progress("memory of a client");
    redis.command::<()>("FLUSHALL SYNC");
    let bytes = |algorithm| -> Result<f64> {
        let limits = [hours(algorithm, REQUESTS, 1)];
        Ok(Clients::fill(redis, &limits, (REQUESTS, REQUESTS), 1, 1)?.bytes(redis))
    };
    Ok(Memory {
        requests: REQUESTS,
        members_of_40: by_hand(redis, 40)?,
        members_of_50: by_hand(redis, 50)?,
        sliding_log: bytes("log")?,
        compact_log: bytes("ring")?,
    })
}

/// A sorted set with a member of so many bytes for each request: its time with six
/// digits behind the second, and behind a colon what tells it from others of that
/// time. Of 40 bytes that is a random number, of 50 nginx's `$request_id`.
fn by_hand(redis: &Redis, length: usize) -> Result<f64> {
    let mut connection = redis.connect();
    let mut random = 1_u128;
    let mut add = redis::pipe();
    for request in 0..REQUESTS {
        random = random.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(1);
        let seconds = 1_800_000_000.0 + request as f64 * 3.6;
        let member = format!("{seconds:.6}:{random:032x}");
        add.cmd("ZADD").arg("by-hand").arg(seconds).arg(&member[..length]).ignore();
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
