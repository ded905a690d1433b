//! One shard of a store: records found by a hash, each with words of its own and
//! a time to expire.
//!
//! **When it is full** records that have expired make room, then those that were
//! used least recently. **When a process dies in here** whoever comes next finds
//! the lock abandoned and repairs the shard ([`repair`]): all but the records
//! themselves follows from them, and the one that was being written says so.

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, compiler_fence};

use crate::lock::Lock;
use crate::mapping::Shared;
use crate::moment::Uptime;

#[cfg(test)]
mod crashes;
mod expiry;
mod recency;
mod records;
mod repair;
#[cfg(test)]
mod tests;

/// Words of a record in its head, and in each further block.
pub(crate) const HEAD_WORDS: usize = 7;
pub(crate) const MORE_WORDS: usize = 12;

/// No block.
const NONE: u32 = 0;

/// In place of a record that is being written: any may be.
const TORN: u32 = u32::MAX;

/// A hash of 128 bits, under keys that nobody outside knows: two of one value are
/// of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) u64, pub(crate) u64);

/// A shard's lock and counts. See [`crate::layout`].
#[repr(C, align(256))]
pub(crate) struct Header {
    pub(crate) lock: Lock,
    /// The record that is being written, if any, or `TORN`.
    writing: AtomicU32,
    /// The first block that was never used, less one.
    fresh: AtomicU32,
    /// The first of those that are free again, by `next`.
    free: AtomicU32,
    /// How many blocks are used.
    used: AtomicU32,
    /// How many records there are: as many as the heap has.
    records: AtomicU32,
    oldest: AtomicU32,
    newest: AtomicU32,
    /// Counts the uses of all records.
    clock: AtomicU64,
    expired: AtomicU64,
    evicted: AtomicU64,
    reset: AtomicU64,
}

// SAFETY: made of atomics and a lock of the system.
unsafe impl Shared for Header {}

/// A record's head, or more room for one.
#[repr(C, align(128))]
pub(crate) struct Block {
    /// One of the constants below.
    state: AtomicU32,
    /// The next block of the record, or of those that are free.
    next: AtomicU32,
    // The rest belongs to heads.
    /// The next record of the same hash chain.
    chained: AtomicU32,
    older: AtomicU32,
    newer: AtomicU32,
    /// Its place in the heap.
    place: AtomicU32,
    /// How many words it has.
    len: AtomicU32,
    _unused: AtomicU32,
    /// Of a head two of hash and three of times, then its first words.
    words: [AtomicU64; 12],
}

// SAFETY: made of atomics.
unsafe impl Shared for Block {}

/// States of a block. A head is written while it is not `LIVE`, and only then.
const FREE: u32 = 0;
const LIVE: u32 = 1;
const WRITING: u32 = 2;
const MORE: u32 = 3;

/// What the words of a head are, before the record's own.
const HASH: usize = 0;
const EXPIRES: usize = 2;
/// What the heap knows of it: no later than `EXPIRES`.
const KNOWN: usize = 3;
const USED: usize = 4;
const OWN: usize = 5;

/// How many records that the heap knows too early are looked at for one that has
/// expired: a call must not take long.
const LOOKS: usize = 256;

/// A shard, locked.
pub(crate) struct Shard<'a> {
    pub(crate) header: &'a Header,
    pub(crate) chains: &'a [AtomicU32],
    pub(crate) heap: &'a [AtomicU32],
    pub(crate) blocks: &'a [Block],
}

/// There is no room, however much makes way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// What a shard holds and has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) blocks: u64,
    pub(crate) records: u64,
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
    pub(crate) reset: u64,
}

impl Header {
    /// How many uses of records there have been.
    pub(crate) fn uses(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    /// Its counts, which others may change meanwhile.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            blocks: u64::from(self.used.load(Relaxed)),
            records: u64::from(self.records.load(Relaxed)),
            expired: self.expired.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
            reset: self.reset.load(Relaxed),
        }
    }
}

impl Shard<'_> {
    /// Whether somebody who held the lock has stopped in the middle of a record.
    pub(crate) fn is_torn(&self) -> bool {
        self.header.writing.load(Relaxed) != NONE
    }

    /// Notes that somebody has.
    pub(crate) fn tear(&self) {
        set(&self.header.writing, TORN);
        in_order();
    }

    /// Appends the words of this record, and counts that as a use; `None` if there
    /// is no such record.
    pub(crate) fn read(&self, name: Fingerprint, words: &mut Vec<u64>) -> Option<()> {
        let head = self.find(name)?;
        self.touch(head);
        self.copy_out(head, words);
        Some(())
    }

    /// Makes room for these records, each with the range of its words, without
    /// losing one that was used since `begun` and has not expired.
    pub(crate) fn reserve(
        &self,
        records: &[(Fingerprint, Range<usize>)],
        now: Uptime,
        begun: u64,
    ) -> Result<(), Full> {
        let more = |(name, words): &(Fingerprint, Range<usize>)| {
            let has = self.find(*name).map_or(0, |head| blocks_for(self.len(head)));
            blocks_for(words.len()).saturating_sub(has)
        };
        // Nobody gives way to what can never fit.
        if records.iter().map(|(_, words)| blocks_for(words.len())).sum::<usize>()
            > self.blocks.len()
        {
            return Err(Full);
        }
        loop {
            let needed: usize = records.iter().map(more).sum();
            if needed <= self.blocks.len() - get(&self.header.used) as usize {
                return Ok(());
            }
            self.make_room(now, begun)?;
        }
    }

    /// The number of the next use of a record.
    pub(crate) fn clock(&self) -> u64 {
        self.header.uses()
    }

    /// Writes a record, in place of the one of this name if there is one. There
    /// must be room: see [`reserve`](Self::reserve).
    pub(crate) fn write(&self, name: Fingerprint, words: &[u64], expires: Uptime) {
        let head = match self.find(name) {
            Some(head) => {
                self.begin(head);
                head
            }
            None => self.insert(name, expires),
        };
        self.copy_in(head, words);
        self.block(head).words[EXPIRES].store(expires.as_micros(), Relaxed);
        self.expires(head);
        self.end(head);
        self.touch(head);
    }

    /// Removes a record, if there is one of this name.
    pub(crate) fn remove(&self, name: Fingerprint) {
        if let Some(head) = self.find(name) {
            self.drop_record(head);
        }
    }

    /// Removes up to `most` records that have expired.
    pub(crate) fn sweep(&self, now: Uptime, most: usize) {
        for _ in 0..most {
            let Some(head) = self.first_expired(now) else { break };
            self.drop_record(head);
            add(&self.header.expired, 1);
        }
    }

    fn make_room(&self, now: Uptime, begun: u64) -> Result<(), Full> {
        if let Some(head) = self.first_expired(now) {
            self.drop_record(head);
            add(&self.header.expired, 1);
            return Ok(());
        }
        let oldest = get(&self.header.oldest);
        if oldest == NONE || self.word(oldest, USED) >= begun {
            return Err(Full);
        }
        self.drop_record(oldest);
        add(&self.header.evicted, 1);
        Ok(())
    }

    /// From here on the record is lost if the process dies.
    fn begin(&self, head: u32) {
        set(&self.header.writing, head);
        set(&self.block(head).state, WRITING);
        in_order();
    }

    fn end(&self, head: u32) {
        in_order();
        set(&self.block(head).state, LIVE);
        in_order();
        set(&self.header.writing, NONE);
    }

    fn block(&self, block: u32) -> &Block {
        &self.blocks[block as usize - 1]
    }

    fn word(&self, head: u32, index: usize) -> u64 {
        self.block(head).words[index].load(Relaxed)
    }

    fn len(&self, head: u32) -> usize {
        get(&self.block(head).len) as usize
    }
}

/// How many blocks a record of so many words takes.
pub(crate) fn blocks_for(words: usize) -> usize {
    1 + words.saturating_sub(HEAD_WORDS).div_ceil(MORE_WORDS)
}

/// What is stored before is there before what is stored after, for whoever comes
/// when this process has died between the two. A process dies between two
/// instructions, so it is enough that the compiler keeps their order.
fn in_order() {
    compiler_fence(SeqCst);
}

fn get(value: &AtomicU32) -> u32 {
    value.load(Relaxed)
}

fn set(value: &AtomicU32, to: u32) {
    value.store(to, Relaxed);
}

/// Only ever changed under the lock.
fn add(count: &AtomicU64, amount: u64) {
    count.store(count.load(Relaxed) + amount, Relaxed);
}
