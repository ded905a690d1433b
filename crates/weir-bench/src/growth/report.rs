//! What was measured, as JSON and in tables.

use std::fmt;

use serde::Serialize;

use crate::plan::plural;
use crate::summary::Spread;
use crate::table::{Table, spread, whole};

/// All of it.
#[derive(Default, Serialize)]
pub struct Growth {
    /// By units of the limit.
    pub limits: Vec<Point>,
    /// By clients.
    pub clients: Vec<Point>,
    /// By requests for each script call.
    pub batches: Vec<Point>,
    /// By limits for each request.
    pub several: Vec<Point>,
    /// By the distance of Redis.
    pub delay: Vec<Distance>,
    /// Of a client with many requests in its window.
    pub memory: Option<Memory>,
}

/// A point of a curve.
#[derive(Debug, Serialize)]
pub struct Point {
    /// The algorithm, and where it decides if that is not Redis.
    pub series: String,
    /// What grows.
    pub x: u64,
    /// Microseconds for a decision: of the script in Redis, or of the embedded store.
    pub time_us: Spread,
    /// The script's time as a multiple of the yardstick's.
    pub yardsticks: Option<Spread>,
    /// The yardstick's, in microseconds for each element.
    pub yardstick_us: Option<Spread>,
    /// Microseconds of Redis's CPU for a decision.
    pub redis_cpu_us: Option<f64>,
    /// Of all keys of a client; among many clients with what finds them.
    pub bytes_per_client: f64,
}

/// Where Redis is, and how many ask.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Place {
    /// What the proxy was told, in milliseconds.
    pub delay_ms: u64,
    /// Connections of clients.
    pub connections: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = plural(self.connections, "connection");
        write!(f, "Redis {} ms away, {connections}", self.delay_ms)
    }
}

/// What is added to a request that far away.
#[derive(Debug, Serialize)]
pub struct Distance {
    /// Whose it is: the contender's id.
    pub id: &'static str,
    /// What it is called.
    pub name: &'static str,
    /// How far away.
    #[serde(flatten)]
    pub place: Place,
    /// There and back by `PING`.
    pub away_us: Spread,
    /// p50 without a limiter.
    pub none_us: Spread,
    /// p50 with it.
    pub limited_us: Spread,
    /// What the limiter adds to that beyond `away_us`.
    pub beyond_us: Spread,
    /// CPU that it adds to each request, of the worker and of Redis.
    pub cpu_us: Spread,
    /// Scripts that Redis was asked to run, for each request.
    pub script_calls: Spread,
    /// CPU that the proxy takes for each request, which it takes from all.
    pub proxy_us: Spread,
}

/// Bytes of one client in Redis.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// In its window.
    pub requests: u64,
    /// In a sorted set with members of up to 21 bytes, as the bench's own glue has it: a
    /// time and a count.
    pub members_of_21: f64,
    /// In a sorted set with members of 40 bytes: a time and a random number.
    pub members_of_40: f64,
    /// In one with members of 50: a time and `$request_id`.
    pub members_of_50: f64,
    /// In a sliding log.
    pub sliding_log: f64,
    /// In a compact log.
    pub compact_log: f64,
}

/// One of each part that was measured.
pub fn tables(growth: &Growth) -> Vec<Table> {
    let curves = [
        ("By the limit, in units an hour", &growth.limits),
        ("By the batch, in requests for each script call", &growth.batches),
        ("By limits for each request", &growth.several),
        ("By clients", &growth.clients),
    ];
    let mut tables: Vec<Table> = curves
        .into_iter()
        .filter(|(_, points)| !points.is_empty())
        .map(|(title, points)| curve(title, points))
        .collect();
    tables.extend(growth.memory.as_ref().map(memory));
    if !growth.delay.is_empty() {
        tables.push(delay(&growth.delay));
    }
    tables
}

fn curve(title: &str, points: &[Point]) -> Table {
    const COLUMNS: &[&str] =
        &["", "", "time µs", "yardsticks", "Redis CPU µs", "bytes of a client"];
    let row = |point: &Point| {
        vec![
            point.series.clone(),
            whole(point.x as f64),
            spread(point.time_us, hundredths),
            point.yardsticks.map_or(String::new(), |ratio| spread(ratio, hundredths)),
            point.redis_cpu_us.map_or(String::new(), hundredths),
            whole(point.bytes_per_client),
        ]
    };
    let mut rows: Vec<Vec<String>> = points.iter().map(row).collect();
    let rulers = points.iter().filter_map(|point| Some(point.yardstick_us?.median));
    let ruler = spread(Spread::of(rulers), hundredths);
    rows.push(vec!["the yardstick".into(), "".into(), ruler, "1".into(), "".into(), "".into()]);
    Table::new(title, COLUMNS, 1, rows)
}

fn hundredths(value: f64) -> String {
    format!("{value:.2}")
}

fn memory(memory: &Memory) -> Table {
    const COLUMNS: &[&str] =
        &["", "bytes", "to members of 21", "to members of 40", "to members of 50"];
    let Memory { requests, members_of_21, members_of_40, members_of_50, .. } = memory;
    let row = |(what, bytes): (&str, &f64)| {
        let to = |other: &f64| format!("{:.3}", bytes / other);
        let to = [to(members_of_21), to(members_of_40), to(members_of_50)];
        [vec![what.to_owned(), whole(*bytes)], to.to_vec()].concat()
    };
    let rows = [
        ("a sorted set, members of 21 bytes: time and a count, as the glue's", members_of_21),
        ("a sorted set, members of 40 bytes: time and a random number", members_of_40),
        ("a sorted set, members of 50 bytes: time and $request_id", members_of_50),
        ("sliding-log", &memory.sliding_log),
        ("compact-log", &memory.compact_log),
    ];
    let title = format!("Memory in Redis of a client with {requests} requests in its window");
    Table::new(&title, COLUMNS, 1, rows.map(row).to_vec())
}

fn delay(distances: &[Distance]) -> Table {
    const COLUMNS: &[&str] = &[
        "",
        "delay ms",
        "connections",
        "there and back µs",
        "p50 of no limiter µs",
        "p50 µs",
        "beyond the way µs",
        "limiter CPU µs",
        "script calls",
        "proxy CPU µs",
    ];
    let row = |distance: &Distance| {
        vec![
            distance.name.to_owned(),
            distance.place.delay_ms.to_string(),
            distance.place.connections.to_string(),
            whole(distance.away_us.median),
            whole(distance.none_us.median),
            whole(distance.limited_us.median),
            spread(distance.beyond_us, |beyond| format!("{beyond:.0}")),
            format!("{:.1}", distance.cpu_us.median),
            format!("{:.3}", distance.script_calls.median),
            format!("{:.1}", distance.proxy_us.median),
        ]
    };
    let rows = distances.iter().map(row).collect();
    Table::new("By the distance of Redis", COLUMNS, 1, rows)
}
