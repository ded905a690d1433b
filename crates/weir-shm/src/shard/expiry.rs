//! The order of expiry: a binary heap of all records.
//!
//! A record that comes to expire later stays where it is: the heap finds out when
//! it comes to the top. So a decision, which is nearly always such a change, costs
//! nothing here.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

impl Shard<'_> {
    /// A record that has expired, the first of those that the heap knows.
    pub(super) fn first_expired(&self, now: Uptime) -> Option<u32> {
        for _ in 0..LOOKS {
            if get(&self.header.records) == 0 {
                return None;
            }
            let first = get(&self.heap[0]);
            if self.word(first, KNOWN) > now.as_micros() {
                return None;
            }
            let expires = self.word(first, EXPIRES);
            if expires <= now.as_micros() {
                return Some(first);
            }
            self.block(first).words[KNOWN].store(expires, Relaxed);
            self.sink(0);
        }
        None
    }

    /// Tells the heap that a record's time to expire has changed.
    pub(super) fn expires(&self, head: u32) {
        let expires = self.word(head, EXPIRES);
        if expires < self.word(head, KNOWN) {
            self.block(head).words[KNOWN].store(expires, Relaxed);
            self.rise(get(&self.block(head).place) as usize);
        }
    }

    pub(super) fn push_expiry(&self, head: u32) {
        let place = get(&self.header.records);
        set(&self.header.records, place + 1);
        self.block(head).words[KNOWN].store(self.word(head, EXPIRES), Relaxed);
        self.put(place as usize, head);
        self.rise(place as usize);
    }

    pub(super) fn remove_expiry(&self, head: u32) {
        let place = get(&self.block(head).place) as usize;
        let last = get(&self.header.records) as usize - 1;
        set(&self.header.records, last as u32);
        if place != last {
            self.put(place, get(&self.heap[last]));
            self.rise(place);
            self.sink(place);
        }
    }

    fn put(&self, place: usize, head: u32) {
        set(&self.heap[place], head);
        set(&self.block(head).place, place as u32);
    }

    fn known(&self, place: usize) -> u64 {
        self.word(get(&self.heap[place]), KNOWN)
    }

    fn swap(&self, one: usize, other: usize) {
        let (first, second) = (get(&self.heap[one]), get(&self.heap[other]));
        self.put(one, second);
        self.put(other, first);
    }

    fn rise(&self, mut place: usize) {
        while place > 0 && self.known(place) < self.known((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn sink(&self, mut place: usize) {
        let len = get(&self.header.records) as usize;
        loop {
            let children = (2 * place + 1..2 * place + 3).filter(|&child| child < len);
            let Some(least) = children.min_by_key(|&child| self.known(child)) else { return };
            if self.known(place) <= self.known(least) {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }
}
