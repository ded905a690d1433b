//! How far the sliding counter is from the exact log: in either direction, over
//! adversarial and random traffic. Deterministic: the same table every time.

use std::collections::VecDeque;

use weir_core::algorithm::Ledger;
use weir_core::algorithm::sliding_counter::SlidingCounter;
use weir_core::algorithm::sliding_log::SlidingLog;
use weir_core::{Rate, Timestamp};

const LIMIT: u64 = 100;
const WINDOW_US: u64 = 60_000_000;
/// Windows of traffic for each row.
const WINDOWS: u64 = 2_000;

fn main() {
    let rate: Rate = "100/60s".parse().expect("a rate");
    println!("{rate}, {WINDOWS} windows of each traffic\n");
    println!(
        "{:<56} {:>10} {:>11} {:>10} {:>10} {:>9}",
        "traffic", "most in a", "admitted", "let", "turned", "emptiest"
    );
    println!(
        "{:<56} {:>10} {:>11} {:>10} {:>10} {:>9}",
        "", "window", "of log's", "through", "away", "refusal"
    );
    for (name, traffic) in traffics() {
        let row = Row::of(rate, &traffic);
        println!(
            "{name:<56} {:>9}% {:>10.1}% {:>9.2}% {:>9.2}% {:>8}%",
            row.most * 100 / LIMIT,
            row.admitted as f64 * 100.0 / row.admitted_by_log as f64,
            row.wrongly_admitted as f64 * 100.0 / traffic.len() as f64,
            row.wrongly_refused as f64 * 100.0 / traffic.len() as f64,
            row.emptiest_refusal * 100 / LIMIT,
        );
    }
}

/// What became of one traffic.
struct Row {
    /// The most units that any span of a window held.
    most: u64,
    admitted: u64,
    admitted_by_log: u64,
    /// Requests that the counter admitted though the window before them was
    /// full, and refused though it was not, by what it had itself admitted.
    wrongly_admitted: u64,
    wrongly_refused: u64,
    /// What the window held at the refusal at which it held least.
    emptiest_refusal: u64,
}

impl Row {
    fn of(rate: Rate, traffic: &[u64]) -> Self {
        let (mut counter, mut log) = (SlidingCounter::default(), SlidingLog::default());
        let mut row = Self {
            most: 0,
            admitted: 0,
            admitted_by_log: 0,
            wrongly_admitted: 0,
            wrongly_refused: 0,
            emptiest_refusal: LIMIT,
        };
        let mut window = VecDeque::new();
        for &time_us in traffic {
            let now = Timestamp::from_micros(time_us);
            row.admitted_by_log += u64::from(log.decide(rate, now, 1).wait.is_none());
            while window.front().is_some_and(|&time| time + WINDOW_US <= time_us) {
                window.pop_front();
            }
            let held = window.len() as u64;
            if counter.decide(rate, now, 1).wait.is_none() {
                window.push_back(time_us);
                row.admitted += 1;
                row.wrongly_admitted += u64::from(held >= LIMIT);
                row.most = row.most.max(held + 1);
            } else {
                row.wrongly_refused += u64::from(held < LIMIT);
                row.emptiest_refusal = row.emptiest_refusal.min(held);
            }
        }
        row
    }
}

/// The times of the requests, in microseconds.
fn traffics() -> Vec<(String, Vec<u64>)> {
    let mut all = vec![
        ("adversarial: late in a window, then all through the next".to_owned(), late()),
        ("adversarial: at the start of each window".to_owned(), early()),
    ];
    for percent in [50, 90, 100, 120, 200, 1_000] {
        let name = format!("random (Poisson), {percent}% of the limit");
        all.push((name, random(percent)));
    }
    all.push(("bursts of half the limit, 120% of it".to_owned(), bursts(LIMIT / 2)));
    all.push(("bursts of the limit, 120% of it".to_owned(), bursts(LIMIT)));
    all
}

/// The limit at once at the end of a window, and then all that is admitted up
/// to the end of the next; and a window of silence.
fn late() -> Vec<u64> {
    let requests = |start: u64| {
        let burst = std::iter::repeat_n(start + WINDOW_US - 1, LIMIT as usize);
        let next = start + WINDOW_US;
        burst
            .chain((next..next + WINDOW_US).step_by(WINDOW_US as usize / 1_000))
            .chain([next + WINDOW_US - 1])
            .collect::<Vec<_>>()
    };
    (0..WINDOWS / 4).flat_map(|round| requests(4 * round * WINDOW_US)).collect()
}

/// Twice the limit at once, a window later again.
fn early() -> Vec<u64> {
    let at_once = |window| std::iter::repeat_n(window * WINDOW_US, 2 * LIMIT as usize);
    (0..WINDOWS).flat_map(at_once).collect()
}

fn random(percent: u64) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(percent);
    let mean_us = WINDOW_US as f64 * 100.0 / (LIMIT * percent) as f64;
    let mut time_us = 0.0;
    std::iter::from_fn(|| {
        time_us -= mean_us * (1.0 - random.f64()).ln();
        Some(time_us as u64)
    })
    .take_while(|&time_us| time_us < WINDOWS * WINDOW_US)
    .collect()
}

fn bursts(size: u64) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(size);
    let count = WINDOWS * LIMIT * 120 / 100 / size;
    let mut starts: Vec<u64> = (0..count).map(|_| random.u64(0..WINDOWS * WINDOW_US)).collect();
    starts.sort_unstable();
    starts.into_iter().flat_map(|start| std::iter::repeat_n(start, size as usize)).collect()
}
