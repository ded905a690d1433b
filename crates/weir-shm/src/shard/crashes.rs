//! A process that dies in a shard, at every instruction: another is stepped through
//! each kind of change, and what it would leave behind is repaired in a copy.

use std::ptr;
use std::slice;

use super::tests::{Fixture, at, check, name, read};
use super::*;

/// All of a fixture that a shard uses.
const LEN: usize = 16_384 + super::tests::BLOCKS * size_of::<Block>();

/// What is in a shard, by number.
type Contents = Vec<Option<Vec<u64>>>;

fn contents(shard: &Shard) -> Contents {
    (0..NAMES).map(|number| read(shard, number)).collect()
}

const NAMES: u64 = 40;

fn words(number: u64, len: usize) -> Vec<u64> {
    vec![number + 1; len]
}

/// Records of 0 to 30 words under the even names, a third of which have expired at 10.
/// There are 12 free blocks.
fn fill(shard: &Shard) {
    for number in (0..NAMES).step_by(2) {
        let expires = if number % 3 == 0 { 10 } else { 1_000 + number };
        let words = words(number, number as usize * 3 / 4);
        shard.reserve(&[(name(number), 0..words.len())], at(0), 0).expect("room");
        shard.write(name(number), &words, at(expires));
    }
    shard.remove(name(20));
}

fn memory<'a>(shard: &'a Shard) -> &'a [u8] {
    // SAFETY: a fixture's memory begins with its header and is longer than this. Who
    // else has it mapped is stopped while the caller looks.
    unsafe { slice::from_raw_parts(ptr::from_ref(shard.header).cast(), LEN) }
}

fn copy(from: &Shard, to: &Shard) {
    let to = ptr::from_ref(to.header).cast_mut().cast();
    // SAFETY: as above, and the memory of two fixtures does not overlap.
    unsafe { ptr::copy_nonoverlapping(memory(from).as_ptr(), to, LEN) };
}

/// Runs `change` in a process of its own, and `look` after each of its instructions.
/// Returns how many there were.
fn step_through(change: impl FnOnce(), mut look: impl FnMut()) -> usize {
    // SAFETY: the child does nothing that needs another thread, and ends without
    // returning from here.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: asks to be traced by its parent, which is waiting for the signal.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
        }
        change();
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0, "a process");
    let wait = || {
        let mut status = 0;
        // SAFETY: a child of this process, and a valid pointer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    };
    let mut status = wait();
    let mut steps = 0;
    while libc::WIFSTOPPED(status) {
        look();
        steps += 1;
        // SAFETY: a stopped child that is traced by this thread.
        unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0) };
        status = wait();
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:x}");
    look();
    steps
}

/// What one change may do to whoever is there.
struct Change<'a> {
    what: &'a str,
    /// Whose record is written, if any.
    written: Option<u64>,
    /// How many others may make way for it.
    may_go: usize,
    change: &'a dyn Fn(&Shard),
}

/// Every state that memory is in on the way is repaired, and then holds what was there
/// before or is afterwards. Returns in how many the written record was lost.
fn survives(change: &Change) -> usize {
    let fixtures = [Fixture::new(), Fixture::new(), Fixture::new()];
    let [shard, copied, last] = fixtures.each_ref().map(Fixture::shard);
    fill(&shard);
    copy(&shard, &copied);
    let before = contents(&copied);
    (change.change)(&copied);
    let after = contents(&copied);
    let (mut states, mut lost) = (0, 0);
    let look = || {
        if memory(&shard) == memory(&last) {
            return;
        }
        states += 1;
        copy(&shard, &last);
        copy(&shard, &copied);
        copied.repair();
        check(&copied);
        let found = contents(&copied);
        let resets = copied.header.counts().reset;
        for number in 0..NAMES {
            let (found, index) = (&found[number as usize], number as usize);
            let is_lost = *found != before[index] && *found != after[index];
            if Some(number) == change.written && is_lost {
                assert_eq!((found, resets), (&None, 1), "{}: {number}", change.what);
                lost += 1;
            } else {
                assert!(!is_lost, "{}: {number} is {found:?}", change.what);
            }
        }
        assert!(resets <= 1, "{}", change.what);
        let gone = (0..NAMES as usize)
            .filter(|&index| before[index].is_some() && found[index].is_none())
            .filter(|&index| Some(index as u64) != change.written)
            .count();
        assert!(gone <= change.may_go, "{}: {gone} went", change.what);
        // And it works as before.
        copied.reserve(&[(name(999), 0..200)], at(5), copied.clock()).expect("room");
        copied.write(name(999), &words(999, 200), at(2_000));
        check(&copied);
    };
    let steps = step_through(|| (change.change)(&shard), look);
    println!("{}: {steps} instructions, {states} states, lost in {lost}", change.what);
    assert!(states > 3, "{}", change.what);
    lost
}

fn written(shard: &Shard, number: u64, words: &[u64]) {
    let needs = [(name(number), 0..words.len())];
    shard.reserve(&needs, at(5), shard.clock()).expect("room");
    shard.write(name(number), words, at(3_000));
}

#[test]
fn wherever_a_process_dies_only_what_it_wrote_is_lost() {
    let long = words(76, 200);
    let changes: [Change; 8] = [
        Change {
            what: "a record in its place",
            written: Some(10),
            may_go: 0,
            change: &|shard| written(shard, 10, &long[..8]),
        },
        Change {
            what: "one that grows",
            written: Some(10),
            may_go: 0,
            change: &|shard| written(shard, 10, &long[..60]),
        },
        Change {
            what: "one that shrinks",
            written: Some(38),
            may_go: 0,
            change: &|shard| written(shard, 38, &long[..2]),
        },
        Change {
            what: "a new one",
            written: Some(21),
            may_go: 0,
            change: &|shard| written(shard, 21, &long[..30]),
        },
        Change {
            what: "one that others make way for",
            written: Some(21),
            may_go: 19,
            change: &|shard| written(shard, 21, &long),
        },
        Change {
            what: "one that goes",
            written: None,
            may_go: 1,
            change: &|shard| shard.remove(name(38)),
        },
        Change {
            what: "two that have expired",
            written: None,
            may_go: 2,
            change: &|shard| shard.sweep(at(10), 2),
        },
        Change {
            what: "one that is used",
            written: None,
            may_go: 0,
            change: &|shard| {
                shard.touch(shard.find(name(4)).unwrap_or(NONE));
            },
        },
    ];
    for change in &changes {
        let lost = survives(change);
        // A new one is not there before either.
        let is_old = change.written.is_some_and(|number| number % 2 == 0);
        assert_eq!(lost > 0, is_old, "{}", change.what);
    }
}

/// The next one begins again.
#[test]
fn wherever_a_repair_is_broken_off_nothing_more_is_lost() {
    let repair = Change {
        what: "a repair",
        written: None,
        may_go: 0,
        change: &|shard| {
            shard.tear();
            shard.repair();
        },
    };
    survives(&repair);
}
