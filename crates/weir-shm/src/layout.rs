//! Where everything lies in a store's memory.
//!
//! ```text
//! epochs     4096 x u32    counts by which remembered denials are called off
//! shard 0
//!   header   256 bytes     its lock and its counts
//!   chains   u32 each      a power of two: the first record of each hash chain
//!   heap     u32 each      one for each block: the records by time of expiry
//!   blocks   128 bytes     one is the head of a record, or more room for one
//! shard 1
//! ...
//! ```
//!
//! Blocks are named by their number from 1; 0 is none. Zero bytes are a valid,
//! empty store, so that memory is taken from the system only as it is used.

use crate::shard::{Block, Header};

/// How many epochs there are.
pub(crate) const EPOCHS: usize = 4096;

/// The least size of a store.
pub(crate) const MIN_SIZE: usize = 1 << 20;

/// Of four megabytes a shard is large enough for long logs, and small enough to be
/// repaired in a moment.
const SHARD: usize = 4 << 20;
const MIN_SHARDS: usize = 16;
const MAX_SHARDS: usize = 4096;

const PAGE: usize = 4096;

/// What a block takes beside itself: its place in the heap, and at most one chain.
const BLOCK: usize = size_of::<Block>() + 2 * size_of::<u32>();

/// How a store of some size is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// A power of two.
    pub(crate) shards: usize,
    shard_size: usize,
    /// In each shard.
    pub(crate) blocks: usize,
    /// In each shard: a power of two.
    pub(crate) chains: usize,
}

impl Layout {
    /// The layout of a store of `size` bytes, from [`MIN_SIZE`].
    pub(crate) fn of(size: usize) -> Self {
        let shards = (size / SHARD).clamp(MIN_SHARDS, MAX_SHARDS);
        let shards = (shards + 1).next_power_of_two() / 2;
        let shard_size = (size - Self::first_shard()) / shards / PAGE * PAGE;
        let blocks = (shard_size - size_of::<Header>()) / BLOCK;
        let chains = (blocks + 1).next_power_of_two() / 2;
        Self { shards, shard_size, blocks, chains }
    }

    const fn first_shard() -> usize {
        (EPOCHS * size_of::<u32>()).next_multiple_of(PAGE)
    }

    pub(crate) fn header(&self, shard: usize) -> usize {
        Self::first_shard() + shard * self.shard_size
    }

    pub(crate) fn chains_of(&self, shard: usize) -> usize {
        self.header(shard) + size_of::<Header>()
    }

    pub(crate) fn heap(&self, shard: usize) -> usize {
        self.chains_of(shard) + self.chains * size_of::<u32>()
    }

    /// At the shard's end, which is a page's.
    pub(crate) fn blocks_of(&self, shard: usize) -> usize {
        self.header(shard) + self.shard_size - self.blocks * size_of::<Block>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_every_size_lie_behind_each_other() {
        for size in [MIN_SIZE, MIN_SIZE + 1, 3_000_000, 32 << 20, 100 << 20, 1 << 30, 64 << 30] {
            let layout = Layout::of(size);
            assert!(layout.shards.is_power_of_two() && layout.chains.is_power_of_two());
            assert!(layout.chains <= layout.blocks, "{size}");
            assert!((16..=4096).contains(&layout.shards), "{size}");
            assert!(layout.shards == 16 || layout.shard_size + PAGE >= 2 << 20, "{size}");
            let mut end = EPOCHS * size_of::<u32>();
            for shard in [0, 1, layout.shards - 1] {
                assert!(layout.header(shard) >= end, "{size}");
                assert!(layout.heap(shard) + layout.blocks * 4 <= layout.blocks_of(shard));
                assert_eq!(layout.blocks_of(shard) % size_of::<Block>(), 0, "{size}");
                end = layout.blocks_of(shard) + layout.blocks * size_of::<Block>();
            }
            assert!(end <= size, "{size}: {end}");
            // Most of it is blocks.
            let used = layout.shards * layout.blocks * size_of::<Block>();
            assert!(used * 100 >= size * 85, "{size}: {used}");
        }
    }
}
