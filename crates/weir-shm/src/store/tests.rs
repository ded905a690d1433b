use super::*;
use crate::shard::blocks_for;

const MIB: usize = 1 << 20;

fn log(text: &str) -> Limit {
    Limit::SlidingLog(text.parse().expect("a rate"))
}

fn open(name: &str, size: usize) -> (Arc<Store>, Opened) {
    Store::open(name, size).expect("a store")
}

/// Clients choose their names, and may know those of limits.
#[test]
fn no_client_has_the_records_of_another_whatever_its_name() {
    let (store, _) = open("whatever_its_name", MIB);
    let terms = store.terms(&[log("1/1h"), log("1/2h")], &["a", "b"]);
    let mut seen = Vec::new();
    for client in [&b"a"[..], b"b", b"", &1_u64.to_le_bytes(), &2_u64.to_le_bytes()] {
        let tag = store.tag(client);
        seen.extend(terms.records(tag).map(|(name, _)| name));
        seen.extend((0..4).map(|cost| store.denial(&terms, tag, cost)));
    }
    for (index, name) in seen.iter().enumerate() {
        assert!(!seen[..index].contains(name), "{index}");
    }
}

/// So that nobody can find names that meet.
#[test]
fn no_two_stores_hash_alike() {
    let (one, other) = (open("hashes_one", MIB).0, open("hashes_other", MIB).0);
    let (first, second) = (one.tag(b"client"), other.tag(b"client"));
    assert_eq!(first, one.tag(b"client"));
    assert!(first.0.0 != second.0.0 && first.0.1 != second.0.1);
}

#[test]
fn what_is_given_back_to_nobody_takes_no_room() {
    let (store, _) = open("given_back_to_nobody", MIB);
    let terms = store.terms(&[log("5/1h")], &["a"]);
    let blocks = store.layout.shards * store.layout.blocks;
    for client in 0..2 * blocks as u64 {
        store.decide(&terms, store.tag(&client.to_le_bytes()), 1, Moment::now).expect("room");
    }
    let before = store.usage();
    assert_eq!(before.entries, blocks as u64, "it is full");
    for client in 0..blocks as u64 {
        let tag = store.tag(format!("unknown {client}").as_bytes());
        let charged_at = Timestamp::from_micros(1);
        store.refund(&terms, tag, 1, charged_at, Moment::now).expect("a verdict");
    }
    assert_eq!(store.usage(), before);
}

/// A configuration that fails after it has opened its store takes nothing along.
#[test]
fn a_reload_that_fails_leaves_the_store_to_the_next() {
    let (running, opened) = open("a_reload_that_fails", MIB);
    assert_eq!(opened, Opened::New);
    let (failing, opened) = open("a_reload_that_fails", 2 * MIB);
    assert_eq!(opened, Opened::Resized { from: MIB });
    drop(failing);
    let (next, opened) = open("a_reload_that_fails", MIB);
    assert_eq!(opened, Opened::Found);
    assert!(Arc::ptr_eq(&running, &next));
    // And the next size change is told for what it is.
    let (_grown, opened) = open("a_reload_that_fails", 4 * MIB);
    assert_eq!(opened, Opened::Resized { from: MIB });
    let (_, opened) = open("a_reload_that_fails", 8 * MIB);
    assert_eq!(opened, Opened::Resized { from: 4 * MIB });
}

#[test]
fn a_store_has_at_least_a_megabyte() {
    let error = Store::open("too_small", MIB - 1).map(|_| ()).expect_err("too small");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

/// Whatever becomes of whoever repairs: of a lock that is let go unrepaired nobody
/// would hear again.
#[test]
fn a_repair_that_is_broken_off_is_done_by_the_next() {
    let (store, _) = open("a_repair_is_broken_off", MIB);
    let terms = store.terms(&[log("2/1h")], &["a"]);
    let tag = store.tag(b"client");
    assert!(store.decide(&terms, tag, 1, Moment::now).expect("room").1.allowed);
    let shard = store.lock(tag).expect("free");
    shard.tear();
    for chain in shard.chains {
        chain.store(0, Relaxed);
    }
    drop(shard);
    let verdict = store.decide(&terms, tag, 1, Moment::now).expect("room").1;
    assert_eq!((verdict.allowed, verdict.limits[0].remaining), (true, 0));
    assert_eq!(store.usage().resets, 0);
}

/// As a hash without a key has them: what a client would send who knows it.
fn names_that_meet() -> [(&'static str, Vec<[u8; 8]>); 3] {
    let fnv = |bytes: [u8; 8]| {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
    };
    let names = || (0_u64..).map(u64::to_le_bytes);
    [
        ("one after the other", names().take(3_000).collect()),
        ("the same FNV-1a", names().filter(|&name| fnv(name) & 0xfff == 0).take(3_000).collect()),
        ("the same product", (0..3_000).map(|number: u64| (number << 52).to_le_bytes()).collect()),
    ]
}

#[test]
fn names_that_meet_under_a_known_hash_do_not_meet_here() {
    for (what, names) in names_that_meet() {
        let (store, _) = open(what, MIB);
        let terms = store.terms(&[log("5/1h")], &["a"]);
        let (mut longest, mut most) = (0, 0);
        for name in &names {
            store.decide(&terms, store.tag(name), 1, Moment::now).expect("room");
        }
        for name in &names {
            let shard = store.lock(store.tag(name)).expect("free");
            most = most.max(shard.header.counts().records);
            longest = longest.max(shard.longest_chain());
        }
        assert_eq!(store.usage().entries, 3_000);
        // 188 and 0.7 on average.
        assert!(most < 300 && longest < 12, "{what}: {most} in a shard, {longest} in a chain");
    }
}

/// Or a reload with more memory would be refused.
#[test]
fn a_larger_store_takes_logs_that_are_as_long_and_every_store_has_room_for_its_longest() {
    let mut longest = 0;
    for size in (MIB..300 * MIB).step_by(MIB).chain([1 << 30, 64 << 30]) {
        let most = Store::max_log(size);
        assert!(most >= longest, "{size}");
        assert!(blocks_for(most as usize) <= Layout::of(size).blocks / 4, "{size}");
        longest = most;
    }
    assert_eq!(longest, Store::max_log(Store::LONGEST_LOGS));
    println!("{:?}", [1, 8, 32, 64].map(|mib| Store::max_log(mib * MIB)));
}

/// A log may be charged more afterwards than this memory can hold.
#[test]
fn what_can_never_fit_makes_nobody_else_give_way() {
    let (store, _) = open("can_never_fit", MIB);
    let terms = store.terms(&[log("100/1h")], &["a"]);
    for client in 0..500_u64 {
        store.decide(&terms, store.tag(&client.to_le_bytes()), 1, Moment::now).expect("room");
    }
    let before = store.usage();
    let charged = store.charge(&terms, store.tag(b"greedy"), 10_000, Moment::now);
    assert_eq!(charged, Err(Failure::Full));
    assert_eq!(store.usage(), before);
}
