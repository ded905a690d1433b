//! The order of use: a list from the record used least recently to the last.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

impl Shard<'_> {
    /// Counts a use of a record.
    pub(super) fn touch(&self, head: u32) {
        self.stamp(head);
        if get(&self.header.newest) != head {
            self.unlink(head);
            self.append(head);
        }
    }

    /// Says so in the record alone.
    pub(super) fn stamp(&self, head: u32) {
        let used = self.clock();
        self.block(head).words[USED].store(used, Relaxed);
        self.header.clock.store(used + 1, Relaxed);
    }

    /// Behind all others, whenever it was used.
    pub(super) fn append(&self, head: u32) {
        let (block, newest) = (self.block(head), get(&self.header.newest));
        set(&block.older, newest);
        set(&block.newer, NONE);
        match newest {
            NONE => set(&self.header.oldest, head),
            newest => set(&self.block(newest).newer, head),
        }
        set(&self.header.newest, head);
    }

    pub(super) fn unlink(&self, head: u32) {
        let block = self.block(head);
        let (older, newer) = (get(&block.older), get(&block.newer));
        match older {
            NONE => set(&self.header.oldest, newer),
            older => set(&self.block(older).newer, newer),
        }
        match newer {
            NONE => set(&self.header.newest, older),
            newer => set(&self.block(newer).older, older),
        }
    }
}
