//! What is done to a shard in which a process has died.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

impl Shard<'_> {
    /// Makes everything anew from the records that are whole. It may itself be
    /// broken off, and begun again by the next.
    pub(crate) fn repair(&self) {
        let fresh = (get(&self.header.fresh) as usize).min(self.blocks.len()) as u32;
        let mut lost = 0;
        let mut whole = Vec::new();
        let mut is_free = vec![true; fresh as usize];
        for head in 1..=fresh {
            match get(&self.block(head).state) {
                LIVE if self.claim(head, &mut is_free) => whole.push((self.word(head, USED), head)),
                LIVE | WRITING => lost += 1,
                _ => {}
            }
        }
        whole.sort_unstable();

        for chain in self.chains {
            set(chain, NONE);
        }
        for counter in
            [&self.header.free, &self.header.records, &self.header.oldest, &self.header.newest]
        {
            set(counter, 0);
        }
        set(&self.header.fresh, fresh);
        set(&self.header.used, fresh);
        for block in (1..=fresh).filter(|&block| is_free[block as usize - 1]) {
            self.free_block(block);
        }
        let last = whole.last().map_or(0, |&(used, _)| used + 1);
        for (_, head) in whole {
            self.link(head);
        }
        self.header.clock.store(last.max(self.clock()), Relaxed);
        add(&self.header.reset, lost);
        in_order();
        set(&self.header.writing, NONE);
    }

    /// Notes the blocks of a record as its own; false if they cannot be.
    fn claim(&self, head: u32, is_free: &mut [bool]) -> bool {
        let count = blocks_for(self.len(head));
        let mut blocks = Vec::with_capacity(count.min(is_free.len()));
        let mut block = head;
        for _ in 0..count {
            let is_head = block == head;
            let is_right = (block as usize).checked_sub(1).is_some_and(|index| {
                is_free.get(index) == Some(&true)
                    && get(&self.block(block).state) == if is_head { LIVE } else { MORE }
            });
            if !is_right {
                return false;
            }
            blocks.push(block);
            block = get(&self.block(block).next);
        }
        for block in blocks {
            is_free[block as usize - 1] = false;
        }
        true
    }
}
