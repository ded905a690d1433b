//! How what an I/O thread counts for itself becomes the host's.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use weir_redis::{Health, LinkState};
use weir_shm::Slot;

use crate::books::{Books, GAUGES, RedisCounts};

/// Carries one worker's [`Health`] into the [`Books`]: counters by what they have
/// grown since the last time, and the gauges as they are. What had not been
/// carried when a worker is killed is lost.
#[derive(Debug)]
pub struct Publisher {
    books: Arc<Books>,
    health: Arc<Health>,
    stripe: usize,
    carried: RedisCounts,
    /// None once it has ended, or if there are more workers than slots.
    slot: Option<Slot>,
}

impl Publisher {
    /// A publisher of this process.
    pub fn new(books: Arc<Books>, health: Arc<Health>, stripe: usize) -> Self {
        let slot = books.workers.claim();
        Self { books, health, stripe, carried: RedisCounts::default(), slot }
    }

    /// Carries what there is now; `queued` is how many requests wait for Redis.
    pub fn publish(&mut self, queued: usize) {
        let counts = counts_of(&self.health);
        self.books.add_redis(self.stripe, &grown(&self.carried, &counts));
        self.carried = counts;
        if let Some(slot) = &self.slot {
            let is_up = self.health.link() == LinkState::Up;
            let gauges: [u64; GAUGES] =
                [is_up.into(), self.health.away.load(Relaxed), queued as u64];
            slot.write(&gauges);
        }
    }

    /// Carries the last of it, and leaves the gauges.
    pub fn end(&mut self) {
        self.slot = None;
        self.publish(0);
    }
}

fn counts_of(health: &Health) -> RedisCounts {
    let read = |counter: &AtomicU64| counter.load(Relaxed);
    RedisCounts {
        batches: std::array::from_fn(|size| read(&health.batches_by_size[size])),
        in_batches: read(&health.in_batches),
        connects: read(&health.connects),
        failed_attempts: read(&health.failed_attempts),
        redirected: read(&health.redirected),
        breaker_opened: read(&health.opened),
    }
}

fn grown(before: &RedisCounts, now: &RedisCounts) -> RedisCounts {
    RedisCounts {
        batches: std::array::from_fn(|size| now.batches[size] - before.batches[size]),
        in_batches: now.in_batches - before.in_batches,
        connects: now.connects - before.connects,
        failed_attempts: now.failed_attempts - before.failed_attempts,
        redirected: now.redirected - before.redirected,
        breaker_opened: now.breaker_opened - before.breaker_opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_grown_is_carried_once_whoever_carries_it() {
        let books = Arc::new(Books::open(["carried_once"], true).expect("books"));
        let before = (books.connects(), books.batches().count, books.batches().sum);
        let [one, two] = [0, 1].map(|stripe| {
            let health = Arc::new(Health::default());
            (Arc::clone(&health), Publisher::new(Arc::clone(&books), health, stripe))
        });
        let (mut workers, healths) = ([one.1, two.1], [one.0, two.0]);
        for health in &healths {
            health.connects.fetch_add(2, Relaxed);
            health.batches_by_size[3].fetch_add(1, Relaxed);
            health.in_batches.fetch_add(7, Relaxed);
        }
        workers.iter_mut().for_each(|worker| worker.publish(3));
        workers.iter_mut().for_each(|worker| worker.publish(3));
        healths[0].connects.fetch_add(1, Relaxed);
        workers.iter_mut().for_each(Publisher::end);
        let batches = books.batches();
        assert_eq!(books.connects() - before.0, 5);
        assert_eq!((batches.count - before.1, batches.sum - before.2), (2, 14.0));
        assert_eq!(batches.buckets[3].0, 8.0);
    }

    #[test]
    fn the_gauges_are_those_of_the_workers_that_have_not_ended() {
        let books = Arc::new(Books::open(["not_ended"], true).expect("books"));
        let worker = || {
            let health = Arc::new(Health::default());
            health.away.store(2, Relaxed);
            Publisher::new(Arc::clone(&books), health, 0)
        };
        let with = |queued: u64| {
            let gauges = books.workers.read();
            gauges.iter().filter(|gauges| gauges[..] == [0, 2, queued]).count()
        };
        let (mut one, mut two) = (worker(), worker());
        one.publish(4_001);
        two.publish(4_001);
        assert_eq!(with(4_001), 2);
        two.publish(4_002);
        assert_eq!((with(4_001), with(4_002)), (1, 1));
        one.end();
        assert_eq!((with(4_001), with(4_002), with(0)), (0, 1, 0));
        drop(two);
        assert_eq!(with(4_002), 0);
    }
}
