//! What a decision in memory costs: by algorithm, number of clients, length of the log
//! and number of processes; when the store is full; a denial that is remembered; a
//! repair. And the same of `governor`, which decides within one process.
//!
//! Compare rows of one run; machines are noisy.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use governor::{Quota, RateLimiter};
use weir_core::limit::BucketRate;
use weir_core::{Limit, Timestamp};
use weir_shm::{Counters, Moment, Store, Tag, Terms, Uptime};

#[path = "../tests/support/mod.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
mod support;

use support::{Child, stop_here};

const ALGORITHMS: [&str; 5] = ["log", "ring", "counter", "bucket", "quota"];
const START_US: u64 = 1_800_057_600_000_000;
const HOUR_US: u64 = 3_600_000_000;

fn main() {
    // Processes are forked before there are threads; and only when all is measured.
    if std::env::args().skip(1).all(|arg| arg == "--bench") {
        several_processes();
        latencies_while_full();
        repairs();
    }
    let mut criterion = Criterion::default()
        .configure_from_args()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    clients(&mut criterion);
    logs(&mut criterion);
    denials(&mut criterion);
    governors(&mut criterion);
    criterion.final_summary();
}

fn limit(algorithm: &str, units: u64) -> Limit {
    let rate = || format!("{units}/1h").parse().expect("a rate");
    match algorithm {
        "log" => Limit::SlidingLog(rate()),
        "ring" => Limit::CompactLog(rate()),
        "counter" => Limit::SlidingCounter(rate()),
        "bucket" => Limit::TokenBucket(BucketRate::new(rate(), units).expect("a bucket")),
        _ => Limit::Quota(format!("{units}/month").parse().expect("a quota")),
    }
}

fn open(size: usize) -> Arc<Store> {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    let name = format!("bench {}", OPENED.fetch_add(1, Ordering::Relaxed));
    Store::open(&name, size).expect("memory").0
}

fn terms(store: &Store, limit: Limit) -> Terms {
    store.terms(&[limit], &["limit"])
}

fn tag(store: &Store, client: u64) -> Tag {
    store.tag(&client.to_le_bytes())
}

/// A clock that goes on by the same step for each decision.
struct Clock {
    now_us: u64,
    step_us: u64,
}

impl Clock {
    fn next(&mut self) -> Moment {
        self.now_us += self.step_us;
        let uptime = Uptime::from_micros(self.now_us);
        Moment { wall: Timestamp::from_micros(self.now_us), uptime }
    }
}

/// Each admits a unit; a log holds ten.
fn clients(criterion: &mut Criterion) {
    for algorithm in ALGORITHMS {
        let mut group = criterion.benchmark_group(format!("one process, {algorithm}"));
        group.throughput(Throughput::Elements(1));
        for clients in [1, 1_000, 1_000_000] {
            let store = open(512 << 20);
            let units = if matches!(algorithm, "log" | "ring") { 10 } else { 1 << 40 };
            let terms = terms(&store, limit(algorithm, units));
            let mut clock = Clock { now_us: START_US, step_us: HOUR_US / 10 / clients + 1 };
            let mut client = 0;
            let mut next = || {
                client = (client + 7_919) % clients;
                let now = clock.next();
                let told = store.decide(&terms, tag(&store, client), 1, || now);
                assert!(told.is_ok_and(|(_, verdict)| verdict.allowed));
            };
            (0..11 * clients.min(200_000)).for_each(|_| next());
            group.bench_function(format!("{clients} clients"), |bencher| bencher.iter(&mut next));
        }
        group.finish();
    }
}

/// A log at its limit: with each decision one unit leaves and one comes.
fn logs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one log");
    for units in [10, 100, 1_000, 10_000] {
        let store = open(64 << 20);
        let terms = terms(&store, limit("log", units));
        let tag = tag(&store, 0);
        let mut clock = Clock { now_us: START_US, step_us: HOUR_US / units };
        let mut next = || {
            let now = clock.next();
            store.decide(&terms, tag, 1, || now).expect("room").1
        };
        (0..units).for_each(|_| assert!(next().allowed));
        group.bench_function(format!("{units} units, admitted"), |bencher| {
            bencher.iter(|| assert!(next().allowed));
        });
        let now = clock.next();
        store.decide(&terms, tag, 1, || now).expect("room");
        group.bench_function(format!("{units} units, refused"), |bencher| {
            bencher.iter(|| {
                assert!(!store.decide(&terms, tag, 1, || now).expect("room").1.allowed);
            });
        });
    }
    group.finish();
}

fn denials(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("remembered denial");
    let store = open(32 << 20);
    let terms = terms(&store, limit("log", 1));
    let mut clock = Clock { now_us: START_US, step_us: 1 };
    for client in 0..1_000 {
        for _ in 0..2 {
            let (now, tag) = (clock.next(), tag(&store, client));
            let (_, verdict) = store.decide(&terms, tag, 1, || now).expect("room");
            store.remember(&terms, tag, 1, store.epoch(tag), &verdict, now.uptime);
        }
    }
    let now = clock.next().uptime;
    for (what, first) in [("hit", 0), ("miss", 1_000)] {
        let mut client = 0;
        group.bench_function(what, |bencher| {
            bencher.iter(|| {
                client = (client + 1) % 1_000;
                let told = store.recall(&terms, tag(&store, first + client), 1, now);
                assert_eq!(told.is_some(), first == 0);
            });
        });
    }
    group.finish();
}

fn governors(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("governor");
    let quota = Quota::per_second(NonZeroU32::MAX);
    let direct = RateLimiter::direct(quota);
    group.bench_function("direct", |bencher| bencher.iter(|| assert!(direct.check().is_ok())));
    for clients in [1, 1_000, 1_000_000_u64] {
        let keyed = RateLimiter::keyed(quota);
        let mut client = 0;
        let mut next = || {
            client = (client + 7_919) % clients;
            assert!(keyed.check_key(&client.to_le_bytes()).is_ok());
        };
        (0..clients).for_each(|_| next());
        group.bench_function(format!("keyed, {clients} clients"), |bencher| {
            bencher.iter(&mut next);
        });
    }
    // Weir's with a clock that is read, as governor's is.
    let store = open(512 << 20);
    let terms = terms(&store, limit("bucket", 1 << 40));
    for clients in [1, 1_000, 1_000_000_u64] {
        let mut client = 0;
        let mut next = || {
            client = (client + 7_919) % clients;
            let told = store.decide(&terms, tag(&store, client), 1, Moment::now);
            assert!(told.is_ok_and(|(_, verdict)| verdict.allowed));
        };
        (0..clients).for_each(|_| next());
        group.bench_function(format!("weir, {clients} clients"), |bencher| {
            bencher.iter(&mut next);
        });
    }
    group.finish();
}

/// A fixed number of decisions by several processes at once, by wall time.
fn several_processes() {
    const DECISIONS: u64 = 1_600_000;
    println!("{:<26} {:>10} {:>14} {:>12}", "processes", "clients", "decisions/s", "given up");
    for (what, units) in [("bucket", 1 << 40), ("log of 10", 10), ("log of 1000", 1_000)] {
        for clients in [1, 1_000] {
            for processes in [1, 2, 4, 8] {
                let store = open(256 << 20);
                let algorithm = what.split(' ').next().expect("a word");
                let terms = terms(&store, limit(algorithm, units));
                let decisions = if units == 1_000 { DECISIONS / 16 } else { DECISIONS };
                let given_up = Counters::open(&format!("{what} {clients} {processes}"), 1);
                let given_up = given_up.expect("a counter");
                for client in 0..clients {
                    let cost = if units > 1_000 { 1 } else { units };
                    store.decide(&terms, tag(&store, client), cost, Moment::now).expect("room");
                }
                let work = |process: u64| {
                    stop_here();
                    for turn in 0..decisions / processes {
                        let client = (turn * 7_919 + process * 31) % clients;
                        let told = store.decide(&terms, tag(&store, client), 1, Moment::now);
                        given_up.add(process as usize, 0, u64::from(told.is_err()));
                    }
                };
                let mut children: Vec<Child> =
                    (0..processes).map(|process| Child::fork(|| work(process))).collect();
                children.iter_mut().for_each(Child::wait_for_stop);
                let begun = Instant::now();
                children.iter().for_each(|child| child.signal(libc::SIGCONT));
                children.into_iter().for_each(Child::join);
                let rate = decisions as f64 / begun.elapsed().as_secs_f64();
                let row = format!("{processes} x {what}");
                println!("{row:<26} {clients:>10} {rate:>14.0} {:>12}", given_up.read(0));
            }
        }
    }
}

/// Each decision takes the place of another client.
fn latencies_while_full() {
    println!("\n{:<26} {:>10} {:>10} {:>10}", "a new client each time", "median", "99.9%", "worst");
    for (what, size, clients) in
        [("half full at the end", 512 << 20, 1_500_000), ("full, 8 MiB", 8 << 20, 1_500_000_u64)]
    {
        let store = open(size);
        let terms = terms(&store, limit("bucket", 5));
        let mut took: Vec<u64> = (0..clients)
            .map(|client| {
                let begun = Instant::now();
                store.decide(&terms, tag(&store, client), 1, Moment::now).expect("room");
                begun.elapsed().as_nanos() as u64
            })
            .collect();
        took.drain(..500_000);
        took.sort_unstable();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
        println!("{what:<26} {:>7} ns {:>7} ns {:>7} ns", at(0.5), at(0.999), at(1.0));
    }
}

/// What the one decision takes that finds a shard abandoned, full of counts.
fn repairs() {
    println!("\n{:<26} {:>10} {:>14}", "repair of a full shard", "records", "took");
    for size in [32 << 20, 1 << 30] {
        let store = open(size);
        let terms = terms(&store, limit("bucket", 5));
        for client in 0..size as u64 / 130 {
            store.decide(&terms, tag(&store, client), 1, Moment::now).expect("room");
        }
        let shards = store.usage().entries / 14_500;
        let mut took: Vec<Duration> = (0..5)
            .map(|client| {
                let tag = tag(&store, client);
                let stopped = || {
                    stop_here();
                    Moment::now()
                };
                let mut child = Child::fork(|| {
                    let _ = store.decide(&terms, tag, 1, stopped);
                });
                child.wait_for_stop();
                child.kill();
                let begun = Instant::now();
                store.decide(&terms, tag, 1, Moment::now).expect("repaired");
                begun.elapsed()
            })
            .collect();
        let records = store.usage().entries / shards.max(1);
        took.sort_unstable();
        let median = took[2].as_secs_f64() * 1e3;
        println!("{:<26} {records:>10} {median:>11.2} ms", format!("{} MiB", size >> 20));
    }
    println!();
}
