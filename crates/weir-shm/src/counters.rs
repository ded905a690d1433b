//! Counters of a whole host.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::mapping::Mapping;
use crate::registry::Registry;

/// How many copies there are of each counter, so that workers seldom write to the
/// same cache line.
const STRIPES: usize = 8;

/// Counters in one cache line.
const LINE: usize = 8;

static KNOWN: Registry<Counters> = Registry::new();

/// A row of counters that all workers of a host add to and any of them can read.
#[derive(Debug)]
pub struct Counters {
    mapping: Mapping,
    len: usize,
}

impl Counters {
    /// The `len` counters of this name: those of the configuration before, if it
    /// had as many, else new ones from zero.
    ///
    /// # Errors
    ///
    /// If the system has no memory for them.
    pub fn open(name: &str, len: usize) -> io::Result<Arc<Self>> {
        let make = || {
            let mapping = Mapping::new(STRIPES * stride(len) * size_of::<AtomicU64>())?;
            Ok(Self { mapping, len })
        };
        KNOWN.open(name, |known: &Self| known.len == len, make).map(|(counters, _)| counters)
    }

    /// Adds to the counter of this index. `stripe` is any number that differs
    /// from worker to worker.
    ///
    /// # Panics
    ///
    /// If there is no such counter.
    pub fn add(&self, stripe: usize, index: usize, amount: u64) {
        self.stripe(stripe % STRIPES)[index].fetch_add(amount, Relaxed);
    }

    /// What the counter of this index has come to. Counters that are written
    /// meanwhile may be ahead of each other.
    ///
    /// # Panics
    ///
    /// If there is no such counter.
    pub fn read(&self, index: usize) -> u64 {
        let sum = (0..STRIPES).map(|stripe| self.stripe(stripe)[index].load(Relaxed));
        sum.fold(0, u64::wrapping_add)
    }

    fn stripe(&self, stripe: usize) -> &[AtomicU64] {
        let offset = stripe * stride(self.len) * size_of::<AtomicU64>();
        self.mapping.slice(offset, self.len)
    }
}

/// Counters in a stripe: whole cache lines, and at least one.
fn stride(len: usize) -> usize {
    len.max(1).next_multiple_of(LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_in_any_stripe_is_read_as_one_sum() {
        let counters = Counters::open("what_is_added", 10).expect("counters");
        for stripe in 0..20 {
            counters.add(stripe, 9, 2);
        }
        counters.add(3, 0, 7);
        let read: Vec<u64> = (0..10).map(|index| counters.read(index)).collect();
        assert_eq!(read, [7, 0, 0, 0, 0, 0, 0, 0, 0, 40]);
    }

    #[test]
    fn they_are_found_again_by_name_while_somebody_holds_them() {
        let first = Counters::open("found_again", 3).expect("counters");
        first.add(0, 1, 5);
        let again = Counters::open("found_again", 3).expect("counters");
        assert_eq!(again.read(1), 5);
        let other = Counters::open("another", 3).expect("counters");
        assert_eq!(other.read(1), 0);
        let grown = Counters::open("found_again", 4).expect("counters");
        assert_eq!(grown.read(1), 0, "of another number of counters");
        let shrunk = Counters::open("found_again", 2).expect("counters");
        assert_eq!(shrunk.read(1), 0);
        drop((first, again, grown, shrunk));
        let anew = Counters::open("found_again", 4).expect("counters");
        assert_eq!(anew.read(1), 0, "nobody held them");
    }
}
