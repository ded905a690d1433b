//! How many calls may be under way at once.
//!
//! What queues up while all places are taken leaves as the next batch, so few
//! places make large batches and a cheap decision; but with Redis far away,
//! few places make every request wait for a round trip that is not its own.
//! One place for each 100 µs of round trip suits both: beside Redis one place
//! was fastest in the prototype (68,000 requests/s at 64 connections, against
//! 58,000 with four), 2.4 ms away four kept the median at one round trip.

use std::time::{Duration, Instant};

const ROUND_TRIP_PER_PLACE: Duration = Duration::from_micros(100);
const MAX_PLACES: usize = 32;

/// How long a measured round trip counts. The shortest one of a period tells
/// the distance; the others tell how busy Redis was, and more calls at once
/// would not help that.
const PERIOD: Duration = Duration::from_secs(5);

/// The places, by the distance last measured.
#[derive(Debug)]
pub(crate) struct Places {
    shortest: Option<Duration>,
    shortest_now: Option<Duration>,
    period_ends: Instant,
    /// What follows from `shortest`.
    count: usize,
}

impl Places {
    pub(crate) fn new(now: Instant) -> Self {
        Self { shortest: None, shortest_now: None, period_ends: now + PERIOD, count: 1 }
    }

    /// Takes note of a round trip that ended at `now`.
    pub(crate) fn measured(&mut self, round_trip: Duration, now: Instant) {
        if now >= self.period_ends {
            self.shortest = self.shortest_now.take();
            self.period_ends = now + PERIOD;
        }
        let shorter =
            |known: Option<Duration>| Some(known.map_or(round_trip, |known| known.min(round_trip)));
        self.shortest_now = shorter(self.shortest_now);
        self.shortest = shorter(self.shortest);
        self.count = places_at(self.shortest.unwrap_or(round_trip));
    }

    /// How many calls may be under way: 1 to 32.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

fn places_at(distance: Duration) -> usize {
    let places = distance.as_nanos() / ROUND_TRIP_PER_PLACE.as_nanos();
    (places as usize).clamp(1, MAX_PLACES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_after(micros: &[u64]) -> usize {
        let now = Instant::now();
        let mut places = Places::new(now);
        for &micros in micros {
            places.measured(Duration::from_micros(micros), now);
        }
        places.count()
    }

    #[test]
    fn one_place_for_each_100_microseconds_from_1_to_32() {
        assert_eq!(count_after(&[]), 1);
        assert_eq!(count_after(&[40]), 1);
        assert_eq!(count_after(&[199]), 1);
        assert_eq!(count_after(&[2_400]), 24);
        assert_eq!(count_after(&[50_000]), 32);
    }

    #[test]
    fn a_busy_redis_is_not_a_distant_one() {
        assert_eq!(count_after(&[90, 5_000, 7_000]), 1);
    }

    #[test]
    fn a_redis_that_moved_away_is_noticed_in_two_periods() {
        let start = Instant::now();
        let mut places = Places::new(start);
        places.measured(Duration::from_micros(90), start);
        places.measured(Duration::from_micros(1_000), start + PERIOD);
        assert_eq!(places.count(), 1, "the last period's shortest still counts");
        places.measured(Duration::from_micros(1_000), start + 2 * PERIOD);
        assert_eq!(places.count(), 10);
    }
}
