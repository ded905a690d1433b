//! How often a number was how large, counted in shared memory.

use weir_shm::Counters;

/// A histogram in a row of [`Counters`]: from `first` on, a counter for each
/// bound, one for what is larger, and the sum. How many there were is not counted
/// apart: it is read as the sum of the buckets, so that the two never contradict
/// each other, whoever writes meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Histogram {
    first: usize,
    /// The largest value of each bucket, in ascending order.
    bounds: &'static [u64],
    /// How many make one of the unit that is told.
    scale: f64,
}

/// What a histogram has come to.
#[derive(Debug, PartialEq)]
pub(crate) struct Reading {
    pub(crate) sum: f64,
    pub(crate) count: u64,
    /// The upper bound of each bucket and how many are in it and in no lower one;
    /// the last bound is infinite.
    pub(crate) buckets: Vec<(f64, u64)>,
}

impl Histogram {
    pub(crate) const fn new(first: usize, bounds: &'static [u64], scale: f64) -> Self {
        Self { first, bounds, scale }
    }

    /// How many counters it takes for so many bounds.
    pub(crate) const fn size(bounds: usize) -> usize {
        bounds + 2
    }

    const fn sum(&self) -> usize {
        self.first + self.bounds.len() + 1
    }

    pub(crate) fn observe(&self, counters: &Counters, stripe: usize, value: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        counters.add(stripe, self.first + bucket, 1);
        counters.add(stripe, self.sum(), value);
    }

    /// Adds what was counted elsewhere: for each bucket how many, and their sum.
    pub(crate) fn add(&self, counters: &Counters, stripe: usize, buckets: &[u64], sum: u64) {
        for (bucket, &count) in buckets.iter().enumerate().take(self.bounds.len() + 1) {
            counters.add(stripe, self.first + bucket, count);
        }
        counters.add(stripe, self.sum(), sum);
    }

    pub(crate) fn read(&self, counters: &Counters) -> Reading {
        let sum = counters.read(self.sum()) as f64 / self.scale;
        let bounds = self.bounds.iter().map(|&bound| bound as f64 / self.scale);
        let buckets: Vec<(f64, u64)> = bounds
            .chain([f64::INFINITY])
            .enumerate()
            .map(|(bucket, bound)| (bound, counters.read(self.first + bucket)))
            .collect();
        Reading { sum, count: buckets.iter().map(|(_, count)| count).sum(), buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTOGRAM: Histogram = Histogram::new(3, &[1, 10, 100], 10.0);

    #[test]
    fn a_value_counts_in_the_first_bucket_that_holds_it() {
        let counters = Counters::open("first_bucket", 3 + Histogram::size(3)).expect("counters");
        for value in [0, 1, 2, 10, 11, 100, 101, 5_000] {
            HISTOGRAM.observe(&counters, 0, value);
        }
        let buckets = vec![(0.1, 2), (1.0, 2), (10.0, 2), (f64::INFINITY, 2)];
        assert_eq!(HISTOGRAM.read(&counters), Reading { sum: 522.5, count: 8, buckets });
        HISTOGRAM.add(&counters, 1, &[1, 0, 0, 2], 300);
        let buckets = vec![(0.1, 3), (1.0, 2), (10.0, 2), (f64::INFINITY, 4)];
        assert_eq!(HISTOGRAM.read(&counters), Reading { sum: 552.5, count: 11, buckets });
        assert!((0..3).all(|index| counters.read(index) == 0), "those before it are others'");
    }
}
