//! The promises of the store between processes that are killed and stopped.
//!
//! Without the usual harness: see [`support::Child::fork`].

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{Child, stop_here, wait_until};
use weir_core::decision::Wait;
use weir_core::limit::BucketRate;
use weir_core::{Limit, Timestamp, Verdict};
use weir_shm::{Counters, Failure, Moment, Opened, Store, Tag, Terms, Uptime};

const PROCESSES: usize = 8;

fn main() {
    let tests: &[(&str, fn())] = &[
        ("eight_processes_admit_exactly_the_limit", eight_processes_admit_exactly_the_limit),
        (
            "a_process_that_is_killed_takes_at_most_one_record_along",
            a_process_that_is_killed_takes_at_most_one_record_along,
        ),
        (
            "at_whatever_instruction_it_is_killed_the_next_goes_on",
            at_whatever_instruction_it_is_killed_the_next_goes_on,
        ),
        (
            "one_that_is_stopped_in_the_store_is_waited_for_once",
            one_that_is_stopped_in_the_store_is_waited_for_once,
        ),
        ("a_million_clients_take_no_more_memory", a_million_clients_take_no_more_memory),
    ];
    // As the usual harness: names to choose by, and flags, which say nothing here.
    let chosen: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, test) in tests {
        if chosen.is_empty() || chosen.iter().any(|part| name.contains(part.as_str())) {
            let begun = Instant::now();
            test();
            println!("test {name} ... ok ({:.1} s)", begun.elapsed().as_secs_f32());
        }
    }
}

fn limit(text: &str) -> Limit {
    let (algorithm, rate) = text.split_once(' ').expect(text);
    let of = |rate: &str| rate.parse().expect(text);
    match algorithm {
        "log" => Limit::SlidingLog(of(rate)),
        "ring" => Limit::CompactLog(of(rate)),
        "counter" => Limit::SlidingCounter(of(rate)),
        "bucket" => {
            let rate = of(rate);
            Limit::TokenBucket(BucketRate::new(rate, rate.limit()).expect(text))
        }
        _ => Limit::Quota(rate.parse().expect(text)),
    }
}

/// Limits of so many units, in windows that do not end meanwhile: under each algorithm
/// alone, and under all of them.
fn policies(units: u64) -> Vec<Vec<Limit>> {
    let of = |units: u64| {
        let text = |algorithm| format!("{algorithm} {units}/366d");
        let mut limits: Vec<Limit> =
            ["log", "ring", "counter", "bucket"].map(|name| limit(&text(name))).into();
        limits.push(limit(&format!("quota {units}/month")));
        limits
    };
    let mut policies: Vec<Vec<Limit>> = of(units).into_iter().map(|limit| vec![limit]).collect();
    // The bucket is the tightest of all.
    let mut all = of(units + 7);
    all[3] = of(units)[3];
    policies.push(all);
    policies
}

fn open(name: &str, size: usize) -> Arc<Store> {
    let (store, opened) = Store::open(name, size).expect("a store");
    assert_eq!(opened, Opened::New);
    store
}

fn terms(store: &Store, limits: &[Limit]) -> Terms {
    let names: Vec<String> = limits.iter().map(Limit::key_suffix).collect();
    store.terms(limits, &names)
}

/// The clock of the host, and a calendar that has just begun a month: see
/// [`policies`].
fn clock() -> Moment {
    let uptime = Uptime::now();
    let wall =
        Timestamp::from_micros(1_798_761_600_000_000) + uptime.since(Uptime::default()) / 1_000;
    Moment { wall, uptime }
}

/// What is decided once the machine lets others go on: a failure has charged nothing.
fn ask(store: &Store, terms: &Terms, tag: Tag, cost: u64) -> Verdict {
    loop {
        match store.decide(terms, tag, cost, clock) {
            Ok((_, verdict)) => return verdict,
            Err(Failure::Busy) => std::thread::yield_now(),
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// Promise 1, and totals to the unit.
fn eight_processes_admit_exactly_the_limit() {
    for (clients, units, rounds) in [(1, 5_000, 5_000), (1_000, 10, 30)] {
        for (number, limits) in policies(units).iter().enumerate() {
            let name = format!("exactly {clients} {number}");
            let store = open(&name, 64 << 20);
            let counters = Counters::open(&name, 2 * clients).expect("counters");
            let terms = terms(&store, limits);
            let begin = Counters::open(&format!("{name}: begin"), 1).expect("a counter");
            let work = |process: usize| {
                while begin.read(0) == 0 {
                    std::hint::spin_loop();
                }
                for _ in 0..rounds {
                    for client in 0..clients {
                        let client = (client + process * clients / PROCESSES) % clients;
                        let tag = store.tag(&client.to_le_bytes());
                        let is_admitted = ask(&store, &terms, tag, 1).allowed;
                        counters.add(process, 2 * client + usize::from(is_admitted), 1);
                    }
                }
            };
            let children: Vec<Child> =
                (0..PROCESSES).map(|process| Child::fork(|| work(process))).collect();
            begin.add(0, 0, 1);
            children.into_iter().for_each(Child::join);
            for client in 0..clients {
                let told = (counters.read(2 * client), counters.read(2 * client + 1));
                let refused = (PROCESSES * rounds) as u64 - units;
                assert_eq!(told, (refused, units), "{limits:?}: client {client}");
                // And no limit was charged without the others.
                let look = ask(&store, &terms, store.tag(&client.to_le_bytes()), 0);
                for (limit, standing) in limits.iter().zip(&look.limits) {
                    assert_eq!(limit.capacity() - standing.remaining, units, "{limit:?}");
                }
            }
            let usage = store.usage();
            assert_eq!((usage.entries, usage.resets), ((clients * limits.len()) as u64, 0));
            assert_eq!(usage.evicted_least_recently_used + usage.evicted_expired, 0);
        }
    }
}

/// Four processes charge long logs and counts, and one after the other is killed.
fn a_process_that_is_killed_takes_at_most_one_record_along() {
    const KILLS: u64 = 200;
    const CLIENTS: usize = 12;
    let limits = [limit("log 50000/366d"), limit("bucket 1000000/366d")];
    let store = open("killed", 64 << 20);
    let terms = terms(&store, &limits);
    let counters = Counters::open("killed", CLIENTS + 4).expect("counters");
    let asked = |process: usize| counters.read(CLIENTS + process);
    let work = |process: usize, begin: u64| {
        for turn in begin.. {
            let client = turn as usize % CLIENTS;
            assert!(ask(&store, &terms, store.tag(&[client as u8]), 1).allowed);
            counters.add(process, client, 1);
            counters.add(process, CLIENTS + process, 1);
        }
    };
    // So that a record takes its time to write.
    for client in 0..CLIENTS {
        assert!(ask(&store, &terms, store.tag(&[client as u8]), 8_000).allowed);
        counters.add(0, client, 8_000);
    }
    let fork = |process: usize, begin: u64| Child::fork(|| work(process, begin));
    let mut children: Vec<Child> = (0..4).map(|process| fork(process, process as u64)).collect();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for kill in 0..KILLS {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_micros(random % 3_000));
        let killed = random as usize / 7 % 4;
        children[killed].kill();
        let before: Vec<u64> = (0..4).map(asked).collect();
        wait_until("the others go on", || {
            (0..4).all(|process| process == killed || asked(process) > before[process])
        });
        children[killed] = fork(killed, kill);
    }
    children.iter_mut().for_each(Child::kill);
    // A record that was lost at the very end begins anew as any other does.
    for client in 0..CLIENTS {
        assert!(ask(&store, &terms, store.tag(&[client as u8]), 1).allowed);
        counters.add(0, client, 1);
    }

    // Whoever is killed may have charged a unit and not told so, under the first limit
    // or under both; or have lost one record.
    let mut ahead = 0;
    let mut behind = 0;
    for client in 0..CLIENTS {
        let told = counters.read(client);
        let look = ask(&store, &terms, store.tag(&[client as u8]), 0);
        for (limit, standing) in limits.iter().zip(&look.limits) {
            let charged = limit.capacity() - standing.remaining;
            if charged < told {
                behind += 1;
            } else {
                ahead = ahead.max(charged - told);
            }
        }
    }
    let usage = store.usage();
    println!("{KILLS} kills: {} resets, {behind} records behind, ahead by {ahead}", usage.resets);
    assert!(ahead <= KILLS + 4, "{ahead}");
    assert!(behind <= usage.resets && usage.resets <= KILLS + 4, "{behind}: {usage:?}");
    assert_eq!(usage.entries, 2 * CLIENTS as u64);
    assert_eq!(usage.evicted_least_recently_used, 0);
}

/// From within the lock on, until it has let go.
fn at_whatever_instruction_it_is_killed_the_next_goes_on() {
    let limits = [limit("log 50/366d"), limit("bucket 50/366d")];
    let store = open("instructions", 1 << 20);
    let terms = terms(&store, &limits);
    let decide = |tag| {
        let stopped = || {
            let now = clock();
            stop_here();
            now
        };
        let verdict = store.decide(&terms, tag, 1, stopped).expect("a verdict").1;
        assert!(verdict.allowed);
    };
    let first = store.tag(b"first");
    assert!(ask(&store, &terms, first, 20).allowed);
    let mut child = Child::fork_traced(|| decide(first));
    child.wait_for_stop();
    let mut instructions = 0_u64;
    while child.step() {
        instructions += 1;
    }
    assert!(instructions > 1_000, "{instructions}");

    let (mut resets, mut reset_at, mut whole) = (0, 0, [0; 2]);
    const KILLS: u64 = 60;
    for kill in 0..KILLS {
        let tag = store.tag(&kill.to_le_bytes());
        assert!(ask(&store, &terms, tag, 20).allowed);
        let entries = store.usage().entries;
        let mut child = Child::fork_traced(|| decide(tag));
        child.wait_for_stop();
        // The second half, which is where it writes.
        let steps = instructions / 2 + instructions * kill / KILLS / 2;
        let _ = (0..steps).all(|_| child.step());
        child.kill();

        let look = ask(&store, &terms, tag, 0);
        let used: Vec<u64> = look.limits.iter().map(|standing| 50 - standing.remaining).collect();
        let lost = store.usage().resets - resets;
        resets = store.usage().resets;
        match (used[0], used[1]) {
            (20, 20) => whole[0] += 1,
            (21, 21) => whole[1] += 1,
            // Between the two, the first limit is charged.
            (21, 20) => {}
            (0, 20) | (21, 0) => {
                assert_eq!(lost, 1, "after {steps}: {used:?}");
                assert_eq!(store.usage().entries, entries - 1);
                reset_at += 1;
            }
            _ => panic!("after {steps} of {instructions}: {used:?}"),
        }
        assert!(lost == 0 || used.contains(&0), "after {steps}: {used:?}");
        assert!(ask(&store, &terms, tag, 1).allowed);
    }
    println!("{instructions} instructions: whole {whole:?}, lost {reset_at} in {KILLS}");
    assert!(whole[0] > 0 && whole[1] > 0 && reset_at > 0);
}

/// For 25 ms, and only by those who need its part of the store.
fn one_that_is_stopped_in_the_store_is_waited_for_once() {
    let limits = [limit("log 50/366d")];
    let store = open("stopped", 1 << 20);
    let terms = terms(&store, &limits);
    let tag = store.tag(b"stopped");
    let mut child = Child::fork(|| {
        let stopped = || {
            stop_here();
            clock()
        };
        assert!(store.decide(&terms, tag, 1, stopped).expect("a verdict").1.allowed);
    });
    child.wait_for_stop();
    let timed = |tag| {
        let begun = Instant::now();
        let told = store.decide(&terms, tag, 1, clock).map(|(_, verdict)| verdict.allowed);
        (told, begun.elapsed())
    };
    let (told, took) = timed(tag);
    assert_eq!(told, Err(Failure::Busy));
    assert!(took >= Duration::from_millis(25) && took < Duration::from_secs(2), "{took:?}");
    // From then on nobody waits: the machine may be busy, but not a hundred times.
    let took: Duration = (0..100)
        .map(|_| {
            let (told, took) = timed(tag);
            assert_eq!(told, Err(Failure::Busy));
            took
        })
        .min()
        .expect("a hundred");
    assert!(took < Duration::from_millis(1), "{took:?}");
    assert_eq!(store.recall(&terms, tag, 1, Uptime::now()), None);
    let others = (0..200_u32).map(|client| timed(store.tag(&client.to_le_bytes())).0);
    let (free, busy): (Vec<_>, Vec<_>) = others.partition(Result::is_ok);
    // One of sixteen parts.
    assert!(free.len() > 150 && busy.len() < 50, "{} of 200 have to wait", busy.len());

    child.signal(libc::SIGCONT);
    child.join();
    let look = ask(&store, &terms, tag, 1);
    assert_eq!(look.limits[0].remaining, 48, "both of them are charged, and nobody else");
    assert_eq!(store.usage().resets, 0);
}

/// And leave a client that keeps coming where it is.
fn a_million_clients_take_no_more_memory() {
    for (size, limits, clients) in
        [(1 << 20, "log 5/366d", 200_000_u64), (8 << 20, "bucket 5/366d", 1_000_000)]
    {
        let limits = [limit(limits)];
        let store = open(&format!("a million {size}"), size);
        let terms = terms(&store, &limits);
        let regular = store.tag(b"regular");
        for _ in 0..5 {
            assert!(ask(&store, &terms, regular, 1).allowed);
        }
        let before = resident();
        let mut full = None;
        for client in 0..clients {
            assert!(ask(&store, &terms, store.tag(&client.to_le_bytes()), 1).allowed);
            if client % 1_000 == 0 {
                let told = ask(&store, &terms, regular, 1);
                assert!(matches!(told.limits[0].wait, Wait::For(_)), "forgotten: {told:?}");
                let usage = store.usage();
                assert!(usage.used_bytes <= usage.size_bytes);
                if usage.evicted_least_recently_used > 0 && full.is_none() {
                    full = Some(usage.entries);
                }
            }
        }
        let usage = store.usage();
        assert_eq!(usage.entries + usage.evicted_least_recently_used, clients + 1);
        assert_eq!((usage.evicted_expired, usage.resets), (0, 0));
        assert!(usage.used_bytes * 100 >= usage.size_bytes * 85, "{usage:?}");
        assert!(full.is_some_and(|entries| usage.entries >= entries), "{full:?}");
        let grown = resident().saturating_sub(before);
        assert!(grown <= size + (1 << 20), "{grown} bytes");
    }
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("a number of pages");
    let pages: usize =
        statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}
