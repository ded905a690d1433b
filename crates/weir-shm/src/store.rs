//! The store: limits decided in memory, by all workers of a host together.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use thiserror::Error;
use weir_core::algorithm::{self, State};
use weir_core::{Limit, Timestamp, Verdict};

use crate::layout::{EPOCHS, Layout, MIN_SIZE};
use crate::lock::Taken;
use crate::mapping::Mapping;
use crate::moment::Moment;
use crate::registry::Registry;
use crate::shard::{Fingerprint, Full, HEAD_WORDS, Header, MORE_WORDS, Shard};
use crate::usage::MemoryUsage;

mod terms;
#[cfg(test)]
mod tests;

pub use terms::Terms;

/// How long a worker waits for another that is in the same shard. One that is there
/// longer has been stopped, since what is done there takes microseconds.
const PATIENCE: Duration = Duration::from_millis(25);

/// How often, while others come and go: whoever sleeps is seldom the next.
const WAITS: u32 = 4;

/// No use of a shard's records has this number.
const MOVES: u64 = u64::MAX;

static KNOWN: Registry<Store> = Registry::new();

/// Records of clients in memory of a fixed size, shared by the processes forked
/// after it was opened.
pub struct Store {
    mapping: Mapping,
    layout: Layout,
    size: usize,
    /// Two make a hash of 128 bits. Their keys are random, so that nobody can find
    /// names that meet.
    hashers: [RandomState; 2],
    /// Of each shard, the use that it was at when this process gave up waiting for it;
    /// else `MOVES`.
    stuck_at: Box<[AtomicU64]>,
}

/// How [`Store::open`] came by a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// There was none of this name.
    New,
    /// It is the one of the configuration before, with all that it holds.
    Found,
    /// The one of the configuration before had another size, in bytes: this one is
    /// empty.
    Resized {
        /// That size.
        from: usize,
    },
}

/// Whom records are of: a hash of what tells clients and budgets apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub(crate) Fingerprint);

/// What a hash is of. Names of different kinds have nothing in common, however they
/// are spelled: clients choose theirs, and hashes are combined.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Named {
    Client,
    Limit,
    Denial,
    Decider,
    Cost,
}

/// Why the store cannot decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// Another worker is stopped in the midst of a decision.
    #[error("another worker holds this part of the memory and has stopped")]
    Busy,
    /// The record is larger than what can make room for it.
    #[error("no room in memory, even with all other records of this part gone")]
    Full,
    /// A log cannot take so many units at once, see [`Limit::max_charge`].
    #[error("a log takes at most 10000 units at once")]
    TooMany,
}

impl From<Full> for Failure {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

impl Store {
    /// The store of this name and size in bytes, at least 1 MiB: that of the
    /// configuration before, if it had the same size and is still held, else a new
    /// one.
    ///
    /// # Errors
    ///
    /// If the system has no memory for it.
    pub fn open(name: &str, size: usize) -> io::Result<(Arc<Self>, Opened)> {
        let mut is_new = false;
        let make = || {
            is_new = true;
            Self::new(size)
        };
        let (store, before) = KNOWN.open(name, |known| known.size == size, make)?;
        let opened = match before {
            Some(before) => Opened::Resized { from: before.size },
            None if is_new => Opened::New,
            None => Opened::Found,
        };
        Ok((store, opened))
    }

    fn new(size: usize) -> io::Result<Self> {
        if size < MIN_SIZE {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let layout = Layout::of(size);
        let store = Self {
            mapping: Mapping::new(size)?,
            layout,
            size,
            hashers: [RandomState::new(), RandomState::new()],
            stuck_at: (0..layout.shards).map(|_| AtomicU64::new(MOVES)).collect(),
        };
        for shard in 0..layout.shards {
            store.header(shard).lock.init()?;
        }
        Ok(store)
    }

    /// The most units that the logs of one client can hold together in a store of
    /// this size: no more than a quarter of what its part has room for. Never less
    /// in a larger store, although its parts may be smaller.
    pub fn max_log(size: usize) -> u64 {
        let blocks = Layout::of(size.clamp(MIN_SIZE, Self::LONGEST_LOGS)).blocks;
        ((blocks / 4 - 1) * MORE_WORDS + HEAD_WORDS) as u64
    }

    /// From what size on, in bytes, logs can be as long as in any store.
    pub const LONGEST_LOGS: usize = 64 << 20;

    /// The tag of a client, named by whatever tells it from all others. What is
    /// decided together must have one tag.
    pub fn tag(&self, client: &[u8]) -> Tag {
        Tag(self.hash(Named::Client, client))
    }

    /// Prepares limits. `names` are theirs, for each client: as many, and different.
    pub fn terms<N: AsRef<str>>(&self, limits: &[Limit], names: &[N]) -> Terms {
        let names_text: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        Terms {
            limits: limits.to_vec(),
            names: names
                .iter()
                .map(|name| self.hash(Named::Limit, name.as_ref().as_bytes()))
                .collect(),
            denial: self.hash(Named::Denial, format!("{limits:?} {names_text:?}").as_bytes()),
            longest: Duration::MAX,
        }
    }

    /// Decides a request of `cost` units, as [`algorithm::decide`] does. `clock` is
    /// read once nobody else can decide about the same client; it also tells when
    /// that was.
    ///
    /// # Errors
    ///
    /// [`Failure::Busy`] and [`Failure::Full`]. Nothing was charged then.
    pub fn decide(
        &self,
        terms: &Terms,
        tag: Tag,
        cost: u64,
        clock: impl FnOnce() -> Moment,
    ) -> Result<(Timestamp, Verdict), Failure> {
        self.change(terms, tag, clock, |states, now| {
            let verdict = algorithm::decide(&terms.limits, states, now, cost);
            let is_changed = verdict.allowed && cost > 0;
            Ok((verdict, is_changed))
        })
    }

    /// Charges what a request was found to cost, as
    /// [`algorithm::charge_afterwards`] does.
    ///
    /// # Errors
    ///
    /// Any [`Failure`]. Nothing was charged then.
    pub fn charge(
        &self,
        terms: &Terms,
        tag: Tag,
        cost: u64,
        clock: impl FnOnce() -> Moment,
    ) -> Result<(Timestamp, Verdict), Failure> {
        self.change(terms, tag, clock, |states, now| {
            algorithm::charge_afterwards(&terms.limits, states, now, cost)
                .map(|verdict| (verdict, true))
                .ok_or(Failure::TooMany)
        })
    }

    /// Gives back what was charged at `charged_at`, as [`algorithm::give_back`]
    /// does.
    ///
    /// # Errors
    ///
    /// [`Failure::Busy`] and [`Failure::Full`]. Nothing was given back then.
    pub fn refund(
        &self,
        terms: &Terms,
        tag: Tag,
        cost: u64,
        charged_at: Timestamp,
        clock: impl FnOnce() -> Moment,
    ) -> Result<(Timestamp, Verdict), Failure> {
        self.change(terms, tag, clock, |states, now| {
            Ok((algorithm::give_back(&terms.limits, states, now, cost, charged_at), true))
        })
    }

    /// What it holds, and has lost.
    pub fn usage(&self) -> MemoryUsage {
        let mut usage = MemoryUsage { size_bytes: self.size as u64, ..MemoryUsage::default() };
        for shard in 0..self.layout.shards {
            let counts = self.header(shard).counts();
            usage.used_bytes += counts.blocks * size_of::<crate::shard::Block>() as u64;
            usage.entries += counts.records;
            usage.evicted_expired += counts.expired;
            usage.evicted_least_recently_used += counts.evicted;
            usage.resets += counts.reset;
        }
        usage
    }

    fn change(
        &self,
        terms: &Terms,
        tag: Tag,
        clock: impl FnOnce() -> Moment,
        decide: impl FnOnce(&mut [State], Timestamp) -> Result<(Verdict, bool), Failure>,
    ) -> Result<(Timestamp, Verdict), Failure> {
        let shard = self.lock(tag)?;
        let now = clock();
        let begun = shard.clock();
        let mut words = Vec::new();
        let mut states: Vec<State> = terms
            .records(tag)
            .map(|(name, limit)| {
                words.clear();
                let read = shard.read(name, &mut words);
                // What cannot be read is not there: nobody else writes it.
                read.and_then(|()| State::read(limit, &words)).unwrap_or_else(|| State::new(limit))
            })
            .collect();

        let (verdict, is_changed) = decide(&mut states, now.wall)?;
        if is_changed {
            terms.keep(&shard, tag, &states, now, begun, words)?;
        }
        Ok((now.wall, verdict))
    }

    pub(crate) fn lock(&self, tag: Tag) -> Result<Locked<'_>, Failure> {
        let index = tag.0.0 as usize & (self.layout.shards - 1);
        let header = self.header(index);
        let taken = self.take(index).ok_or(Failure::Busy)?;
        let shard = Locked(Shard {
            header,
            chains: self.mapping.slice(self.layout.chains_of(index), self.layout.chains),
            heap: self.mapping.slice(self.layout.heap(index), self.layout.blocks),
            blocks: self.mapping.slice(self.layout.blocks_of(index), self.layout.blocks),
        });
        if matches!(taken, Taken::Abandoned) {
            // In this order: whatever becomes of this process in between, the next
            // will know.
            shard.tear();
            header.lock.inherit();
        }
        if shard.is_torn() {
            shard.repair();
        }
        Ok(shard)
    }

    /// Takes the lock of a shard, waiting as long as others come and go there, but for
    /// one that does not move only once.
    fn take(&self, index: usize) -> Option<Taken> {
        let (lock, stuck_at) = (&self.header(index).lock, &self.stuck_at[index]);
        let used = || self.header(index).uses();
        let mut before = stuck_at.load(Relaxed);
        for _ in 0..WAITS {
            let now = used();
            let patience = if now == before { Duration::ZERO } else { PATIENCE };
            let taken = lock.take(patience);
            if taken.is_some() {
                stuck_at.store(MOVES, Relaxed);
                return taken;
            }
            before = now;
            if used() == now {
                break;
            }
        }
        stuck_at.store(before, Relaxed);
        None
    }

    fn header(&self, shard: usize) -> &Header {
        self.mapping.at(self.layout.header(shard))
    }

    pub(crate) fn epochs(&self) -> &[AtomicU32] {
        self.mapping.slice(0, EPOCHS)
    }

    pub(crate) fn epoch_of(&self, tag: Tag) -> &AtomicU32 {
        &self.epochs()[tag.0.1 as usize % EPOCHS]
    }

    pub(crate) fn hash(&self, of: Named, bytes: &[u8]) -> Fingerprint {
        let [one, other] = &self.hashers;
        Fingerprint(one.hash_one((of, bytes)), other.hash_one((of, bytes)))
    }
}

impl Fingerprint {
    /// The hash of both together: of two hashes under secret keys.
    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 ^ other.0, self.1 ^ other.1)
    }
}

/// A shard that is released when this goes.
pub(crate) struct Locked<'a>(Shard<'a>);

impl<'a> std::ops::Deref for Locked<'a> {
    type Target = Shard<'a>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.header.lock.release();
    }
}
