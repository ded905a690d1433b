//! Calendar periods, in UTC.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::Offset;

use crate::Timestamp;

/// What a quota is counted over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// From minute 0 to minute 60.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From the first to the first: 28 to 31 days.
    Month,
}

const SECOND: u64 = 1_000_000;

impl Period {
    /// The periods, shortest first.
    pub const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Month];

    /// The word for it in the configuration, in keys and in the script.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// Where the period that holds `now` begins.
    pub fn start(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Hour => floor(now, 3_600 * SECOND),
            Self::Day => floor(now, 86_400 * SECOND),
            Self::Month => timestamp(datetime(now).date().first_of_month().into()),
        }
    }

    /// Where the period that begins at `start` ends.
    pub fn end(self, start: Timestamp) -> Timestamp {
        let after = |micros| start + Duration::from_micros(micros);
        match self {
            Self::Hour => after(3_600 * SECOND),
            Self::Day => after(86_400 * SECOND),
            Self::Month => {
                let days = datetime(start).date().days_in_month();
                after(days.unsigned_abs() as u64 * 86_400 * SECOND)
            }
        }
    }
}

fn floor(now: Timestamp, span: u64) -> Timestamp {
    Timestamp::from_micros(now.as_micros() - now.as_micros() % span)
}

/// The calendar ends with the year 9999; so does this.
fn datetime(now: Timestamp) -> DateTime {
    let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    Offset::UTC.to_datetime(time)
}

fn timestamp(time: DateTime) -> Timestamp {
    let time = Offset::UTC.to_timestamp(time).map_or(0, jiff::Timestamp::as_microsecond);
    Timestamp::from_micros(time.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        timestamp(text.parse().expect(text))
    }

    #[test]
    fn periods_are_those_of_the_calendar() {
        for (now, hour, day, month, next_month) in [
            (
                "2026-11-30T13:59:59",
                "2026-11-30T13:00:00",
                "2026-11-30",
                "2026-11-01",
                "2026-12-01",
            ),
            (
                "2026-12-31T23:00:00",
                "2026-12-31T23:00:00",
                "2026-12-31",
                "2026-12-01",
                "2027-01-01",
            ),
            (
                "2027-02-28T00:00:00",
                "2027-02-28T00:00:00",
                "2027-02-28",
                "2027-02-01",
                "2027-03-01",
            ),
            (
                "2028-02-29T12:00:00",
                "2028-02-29T12:00:00",
                "2028-02-29",
                "2028-02-01",
                "2028-03-01",
            ),
        ] {
            let midnight = |date: &str| at(&format!("{date}T00:00:00"));
            assert_eq!(Period::Hour.start(at(now)), at(hour), "{now}");
            assert_eq!(Period::Day.start(at(now)), midnight(day), "{now}");
            assert_eq!(Period::Month.start(at(now)), midnight(month), "{now}");
            assert_eq!(Period::Month.end(midnight(month)), midnight(next_month), "{now}");
        }
        assert_eq!(Period::Hour.end(at("2026-11-30T23:00:00")), at("2026-12-01T00:00:00"));
        assert_eq!(Period::Day.end(at("2026-11-30T00:00:00")), at("2026-12-01T00:00:00"));
    }
}
