use super::*;
use crate::mapping::Mapping;

pub(super) const BLOCKS: usize = 64;

/// A shard of its own, never locked.
pub(super) struct Fixture {
    mapping: Mapping,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self { mapping: Mapping::new(1 << 16).expect("memory") }
    }

    pub(super) fn shard(&self) -> Shard<'_> {
        Shard {
            header: self.mapping.at(0),
            chains: self.mapping.slice(4096, 16),
            heap: self.mapping.slice(8192, BLOCKS),
            blocks: self.mapping.slice(16_384, BLOCKS),
        }
    }
}

pub(super) fn name(number: u64) -> Fingerprint {
    Fingerprint(number, number.wrapping_mul(7))
}

pub(super) fn at(micros: u64) -> Uptime {
    Uptime::from_micros(micros)
}

pub(super) fn read(shard: &Shard, number: u64) -> Option<Vec<u64>> {
    let mut words = Vec::new();
    shard.read(name(number), &mut words).map(|()| words)
}

/// Writes a record, making room at time `now`.
fn write(shard: &Shard, number: u64, words: &[u64], expires: u64, now: u64) -> Result<(), Full> {
    let begun = shard.clock();
    shard.reserve(&[(name(number), 0..words.len())], at(now), begun)?;
    shard.write(name(number), words, at(expires));
    Ok(())
}

/// What must hold of every shard, whatever was done to it.
pub(super) fn check(shard: &Shard) {
    let mut heads = Vec::new();
    let mut blocks = 0;
    for chain in shard.chains {
        let mut head = get(chain);
        while head != NONE {
            assert_eq!(get(&shard.block(head).state), LIVE);
            assert!(std::ptr::eq(shard.chain(shard.name(head)), chain));
            let mut count = 0;
            let mut block = head;
            while block != NONE {
                count += 1;
                block = get(&shard.block(block).next);
            }
            assert_eq!(count, blocks_for(shard.len(head)));
            blocks += count;
            heads.push(head);
            head = get(&shard.block(head).chained);
        }
    }
    let counts = shard.header.counts();
    assert_eq!((counts.records, counts.blocks), (heads.len() as u64, blocks as u64));
    for (place, entry) in shard.heap[..heads.len()].iter().enumerate() {
        let head = get(entry);
        assert!(heads.contains(&head));
        assert_eq!(get(&shard.block(head).place) as usize, place);
        assert!(shard.word(head, KNOWN) <= shard.word(head, EXPIRES));
        if place > 0 {
            assert!(
                shard.word(get(&shard.heap[(place - 1) / 2]), KNOWN) <= shard.word(head, KNOWN)
            );
        }
    }
    let (mut used, mut head, mut last) = (0, get(&shard.header.oldest), None);
    while head != NONE {
        used += 1;
        assert!(last < Some(shard.word(head, USED)), "the order of use");
        last = Some(shard.word(head, USED));
        if get(&shard.block(head).newer) == NONE {
            assert_eq!(get(&shard.header.newest), head);
        }
        head = get(&shard.block(head).newer);
    }
    assert_eq!(used, heads.len());
    let (mut free, mut block) = (0, get(&shard.header.free));
    while block != NONE {
        free += 1;
        block = get(&shard.block(block).next);
    }
    assert_eq!(free + blocks, get(&shard.header.fresh) as usize, "no block is lost");
}

impl Shard<'_> {
    /// How many records a search passes at most.
    pub(crate) fn longest_chain(&self) -> usize {
        let len = |chain: &AtomicU32| {
            let first = Some(get(chain)).filter(|&head| head != NONE);
            let next = |&head: &u32| Some(get(&self.block(head).chained)).filter(|&it| it != NONE);
            std::iter::successors(first, next).count()
        };
        self.chains.iter().map(len).max().unwrap_or(0)
    }
}

#[test]
fn words_are_read_as_they_were_written_whatever_their_number() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    for len in [0, 1, 7, 8, 19, 20, 200, 31, 3] {
        let words: Vec<u64> = (0..len).map(|word| word * 3).collect();
        write(&shard, 1, &words, 100, 0).expect("room");
        assert_eq!(read(&shard, 1), Some(words), "{len}");
        check(&shard);
    }
    assert_eq!(read(&shard, 2), None);
    shard.remove(name(1));
    assert_eq!(read(&shard, 1), None);
    check(&shard);
    assert_eq!(shard.header.counts().blocks, 0);
}

#[test]
fn what_has_expired_makes_room_first_and_then_what_was_used_least_recently() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    for number in 0..BLOCKS as u64 {
        let expires = if number % 2 == 0 { 10 } else { 1_000 };
        write(&shard, number, &[number], expires, 0).expect("room");
    }
    // The even ones have expired, though some of them were used last.
    for number in [0, 2, 1] {
        read(&shard, number).expect("not gone yet");
    }
    for number in 100..100 + BLOCKS as u64 / 2 {
        write(&shard, number, &[number], 1_000, 10).expect("room");
        check(&shard);
    }
    assert!((0..BLOCKS as u64).all(|number| read(&shard, number).is_some() == (number % 2 == 1)));
    assert_eq!(shard.header.counts().evicted, 0);
    // Reading them was a use: 100 is the oldest now, and then 101.
    write(&shard, 200, &[], 1_000, 10).expect("room");
    assert_eq!((read(&shard, 100), read(&shard, 101)), (None, Some(vec![101])));
    write(&shard, 201, &[], 1_000, 10).expect("room");
    assert_eq!((read(&shard, 102), read(&shard, 101)), (None, Some(vec![101])));
    let counts = shard.header.counts();
    assert_eq!((counts.expired, counts.evicted), (BLOCKS as u64 / 2, 2));
    check(&shard);
}

#[test]
fn a_record_that_expires_later_than_it_did_stays() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    for number in 0..BLOCKS as u64 {
        write(&shard, number, &[], 10, 0).expect("room");
    }
    for number in 1..BLOCKS as u64 {
        write(&shard, number, &[], 1_000 + number, 0).expect("room");
    }
    shard.sweep(at(500), 100);
    assert_eq!((read(&shard, 0), shard.header.counts().expired), (None, 1));
    // One that expires earlier than it did goes earlier.
    write(&shard, 5, &[], 600, 500).expect("room");
    shard.sweep(at(600), 100);
    assert_eq!((read(&shard, 5), shard.header.counts().expired), (None, 2));
    check(&shard);
}

#[test]
fn what_is_larger_than_all_there_is_changes_nothing() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    write(&shard, 1, &[7; 20], 1_000, 0).expect("room");
    let largest = HEAD_WORDS + (BLOCKS - 1) * MORE_WORDS;
    assert_eq!(write(&shard, 1, &vec![0; largest + 1], 1_000, 0), Err(Full));
    check(&shard);
    write(&shard, 2, &vec![0; largest], 1_000, 0).expect("room");
    assert_eq!(shard.header.counts().records, 1);
    check(&shard);
}

/// Wherever a process dies, everything but the record that it wrote is there.
#[test]
fn a_shard_is_repaired_from_its_records() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    for number in 0..20 {
        let words = vec![number; number as usize];
        write(&shard, number, &words, 100 + number, 0).expect("room");
    }
    shard.remove(name(3));
    read(&shard, 4);
    // As if it had died while it wrote 10, and another while it wrote 11, with everything
    // derived in disorder.
    for number in [10, 11] {
        shard.begin(shard.find(name(number)).expect("a record"));
    }
    let taken = get(&shard.header.free);
    set(&shard.header.free, get(&shard.block(taken).next));
    for value in shard.chains.iter().chain(shard.heap) {
        set(value, 63);
    }
    set(&shard.header.oldest, 9);
    set(&shard.header.newest, 1);
    set(&shard.header.used, 1);
    set(&shard.header.records, 60);
    assert!(shard.is_torn());

    shard.repair();
    assert!(!shard.is_torn());
    check(&shard);
    for number in 0..20 {
        let expected = (![3, 10, 11].contains(&number)).then(|| vec![number; number as usize]);
        assert_eq!(read(&shard, number), expected, "{number}");
    }
    let counts = shard.header.counts();
    assert_eq!((counts.records, counts.reset), (17, 2));
    // And everything works: the next to expire, the next to make room.
    shard.sweep(at(101), 100);
    assert_eq!((read(&shard, 0), read(&shard, 1), read(&shard, 2)), (None, None, Some(vec![2, 2])));
    check(&shard);
}

#[test]
fn a_record_whose_blocks_are_not_its_own_is_lost_in_a_repair() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    for number in 0..4 {
        write(&shard, number, &[number; 20], 1_000, 0).expect("room");
    }
    let next = |number| {
        let head = shard.find(name(number)).expect("a record");
        &shard.block(head).next
    };
    set(next(1), get(next(0)));
    set(&shard.block(get(next(2))).state, FREE);
    shard.repair();
    check(&shard);
    let found = [0, 1, 2, 3].map(|number| read(&shard, number));
    assert_eq!(found, [Some(vec![0; 20]), None, None, Some(vec![3; 20])]);
    assert_eq!(shard.header.counts().reset, 2);
}

#[test]
fn two_names_that_have_a_half_in_common_are_two() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    let names = [Fingerprint(1, 16), Fingerprint(1, 32), Fingerprint(2, 16)];
    for (word, name) in (0..).zip(names) {
        shard.write(name, &[word], at(1_000));
    }
    for (word, name) in (0..).zip(names) {
        let mut words = Vec::new();
        shard.read(name, &mut words).expect("a record");
        assert_eq!(words, [word]);
    }
    check(&shard);
}

/// A request under several limits needs the records of all of them.
#[test]
fn what_was_used_since_the_request_began_does_not_make_room_for_it() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    write(&shard, 1, &[7; 20], 1_000, 0).expect("room");
    write(&shard, 2, &[8; 20], 1_000, 0).expect("room");
    let begun = shard.clock();
    read(&shard, 1);
    let all = HEAD_WORDS + (BLOCKS - 1) * MORE_WORDS;
    assert_eq!(shard.reserve(&[(name(3), 0..all)], at(1), begun), Err(Full));
    assert_eq!((read(&shard, 1), read(&shard, 2)), (Some(vec![7; 20]), None));
    check(&shard);
}

#[test]
fn what_is_written_again_is_used_by_that() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    for number in 0..BLOCKS as u64 {
        write(&shard, number, &[], 1_000, 0).expect("room");
    }
    write(&shard, 0, &[], 1_000, 0).expect("room");
    write(&shard, 100, &[], 1_000, 0).expect("room");
    assert_eq!((read(&shard, 0), read(&shard, 1)), (Some(vec![]), None));
}

#[test]
fn the_order_of_use_outlives_a_repair() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    for number in 0..BLOCKS as u64 {
        write(&shard, number, &[], 1_000, 0).expect("room");
    }
    read(&shard, 0);
    shard.repair();
    check(&shard);
    write(&shard, 100, &[], 1_000, 0).expect("room");
    assert_eq!((read(&shard, 0), read(&shard, 1)), (Some(vec![]), None));
    assert_eq!(shard.header.counts().reset, 0);
}

/// Against a map: random records come, change, expire, make way and go.
#[test]
fn a_shard_holds_what_was_written_last() {
    let fixture = Fixture::new();
    let shard = fixture.shard();
    let mut known: std::collections::HashMap<u64, (Vec<u64>, u64)> = Default::default();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut now = 0;
    let mut gone = 0;
    for step in 0..20_000 {
        now += next(3);
        let number = next(40);
        match next(10) {
            0 => {
                shard.remove(name(number));
                known.remove(&number);
            }
            1 => shard.sweep(at(now), next(4) as usize),
            2 if step % 50 == 0 => shard.repair(),
            2..=4 => {
                let found = read(&shard, number);
                match known.get(&number) {
                    None => assert_eq!(found, None),
                    Some((words, _)) => assert!(found.as_ref().is_none_or(|found| found == words)),
                }
                gone += u64::from(found.is_none() && known.contains_key(&number));
            }
            _ => {
                let words: Vec<u64> = (0..next(60)).map(|_| next(1 << 40)).collect();
                let expires = now + next(200);
                write(&shard, number, &words, expires, now).expect("room");
                assert_eq!(read(&shard, number).as_ref(), Some(&words));
                known.insert(number, (words, expires));
            }
        }
        check(&shard);
    }
    assert!(
        gone > 100 && shard.header.counts().evicted > 100 && shard.header.counts().expired > 100
    );
    assert_eq!(shard.header.counts().reset, 0);
}
