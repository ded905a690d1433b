//! Records: found by hash chains, kept in blocks.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::*;

impl Shard<'_> {
    /// The head of the record of this name.
    pub(super) fn find(&self, name: Fingerprint) -> Option<u32> {
        let mut head = get(self.chain(name));
        while head != NONE {
            if self.name(head) == name {
                return Some(head);
            }
            head = get(&self.block(head).chained);
        }
        None
    }

    pub(super) fn name(&self, head: u32) -> Fingerprint {
        Fingerprint(self.word(head, HASH), self.word(head, HASH + 1))
    }

    /// The chain that records of this name are in.
    pub(super) fn chain(&self, name: Fingerprint) -> &AtomicU32 {
        &self.chains[name.1 as usize & (self.chains.len() - 1)]
    }

    /// A new record of this name without words, which is being written.
    pub(super) fn insert(&self, name: Fingerprint, expires: Uptime) -> u32 {
        let head = self.take_block(WRITING);
        let block = self.block(head);
        set(&self.header.writing, head);
        block.words[HASH].store(name.0, Relaxed);
        block.words[HASH + 1].store(name.1, Relaxed);
        block.words[EXPIRES].store(expires.as_micros(), Relaxed);
        set(&block.next, NONE);
        self.stamp(head);
        self.link(head);
        head
    }

    /// Puts a record whose head says everything into chain and heap, and behind all
    /// others in the order of use.
    pub(super) fn link(&self, head: u32) {
        let block = self.block(head);
        let chain = self.chain(self.name(head));
        set(&block.chained, get(chain));
        set(chain, head);
        self.append(head);
        self.push_expiry(head);
    }

    /// Takes a record out of everything, and frees its blocks.
    pub(super) fn drop_record(&self, head: u32) {
        set(&self.header.writing, head);
        in_order();

        let mut link = self.chain(self.name(head));
        while get(link) != head {
            link = &self.block(get(link)).chained;
        }
        set(link, get(&self.block(head).chained));
        self.unlink(head);
        self.remove_expiry(head);
        let more = get(&self.block(head).next);
        self.free_block(head);
        self.free_from(more);

        in_order();
        set(&self.header.writing, NONE);
    }

    pub(super) fn copy_out(&self, head: u32, words: &mut Vec<u64>) {
        let mut left = self.len(head);
        words.reserve(left);
        let mut block = self.block(head);
        let mut here = &block.words[OWN..];
        loop {
            let taken = left.min(here.len());
            words.extend(here[..taken].iter().map(|word| word.load(Relaxed)));
            left -= taken;
            if left == 0 {
                return;
            }
            block = self.block(get(&block.next));
            here = &block.words;
        }
    }

    /// Replaces the words of a record that is being written, with no more blocks
    /// than they need.
    pub(super) fn copy_in(&self, head: u32, words: &[u64]) {
        let (first, mut rest) = words.split_at(words.len().min(HEAD_WORDS));
        let mut block = self.block(head);
        store(&block.words[OWN..], first);
        while !rest.is_empty() {
            let next = match get(&block.next) {
                NONE => {
                    let next = self.take_block(MORE);
                    set(&self.block(next).next, NONE);
                    set(&block.next, next);
                    next
                }
                next => next,
            };
            block = self.block(next);
            let (here, behind) = rest.split_at(rest.len().min(MORE_WORDS));
            store(&block.words, here);
            rest = behind;
        }
        let unused = get(&block.next);
        set(&block.next, NONE);
        self.free_from(unused);
        set(&self.block(head).len, words.len() as u32);
    }

    fn take_block(&self, state: u32) -> u32 {
        let free = get(&self.header.free);
        let block = if free != NONE {
            set(&self.header.free, get(&self.block(free).next));
            free
        } else {
            let fresh = get(&self.header.fresh) + 1;
            set(&self.header.fresh, fresh);
            fresh
        };
        set(&self.header.used, get(&self.header.used) + 1);
        set(&self.block(block).state, state);
        block
    }

    pub(super) fn free_block(&self, block: u32) {
        set(&self.block(block).state, FREE);
        set(&self.block(block).next, get(&self.header.free));
        set(&self.header.free, block);
        set(&self.header.used, get(&self.header.used) - 1);
    }

    fn free_from(&self, mut block: u32) {
        while block != NONE {
            let next = get(&self.block(block).next);
            self.free_block(block);
            block = next;
        }
    }
}

fn store(places: &[AtomicU64], words: &[u64]) {
    for (place, word) in places.iter().zip(words) {
        place.store(*word, Relaxed);
    }
}
