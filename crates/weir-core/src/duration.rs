//! Spans of time as operators write them: a whole number and a unit.

use std::time::Duration;

use thiserror::Error;

/// Why a text is not a span.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DurationError {
    /// There is no unit, or one that is not known.
    #[error("the unit must be one of ms, s, m, h, d")]
    Unit,
    /// What stands before the unit is not a whole number.
    #[error("a whole number must stand before the unit")]
    Number,
    /// The span does not fit.
    #[error("the number is too large")]
    TooLarge,
}

/// Reads `"100ms"`, `"2s"`, `"1m"`, `"1h"` or `"1d"`. A unit alone means one of
/// it. No sign, no fraction, no white space.
///
/// ```
/// use std::time::Duration;
/// use weir_core::duration::parse;
///
/// assert_eq!(parse("100ms"), Ok(Duration::from_millis(100)));
/// assert_eq!(parse("m"), Ok(Duration::from_secs(60)));
/// assert!(parse("1.5s").is_err());
/// ```
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let Some(millis) = millis_in(unit) else {
        // "-1s" and "1.5s" have a unit; what stands before it is wrong.
        let letters = unit.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        return Err(match millis_in(letters) {
            Some(_) => DurationError::Number,
            None => DurationError::Unit,
        });
    };
    let number: u64 = match number {
        "" => 1,
        // Only digits stand here, so a number that cannot be read is too large.
        digits => digits.parse().map_err(|_| DurationError::TooLarge)?,
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or(DurationError::TooLarge)
}

fn millis_in(unit: &str) -> Option<u64> {
    match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    }
}

/// Writes a span of whole milliseconds in the largest unit that divides it:
/// the one spelling under which it appears in keys and messages.
///
/// ```
/// use weir_core::duration::{canonical, parse};
///
/// assert_eq!(canonical(parse("60s").unwrap()), "1m");
/// assert_eq!(canonical(parse("1500ms").unwrap()), "1500ms");
/// ```
pub fn canonical(span: Duration) -> String {
    let millis = span.as_millis();
    for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if millis >= size && millis.is_multiple_of(size) {
            return format!("{}{unit}", millis / size);
        }
    }
    format!("{millis}ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_exact() {
        for (text, millis) in [
            ("1ms", 1),
            ("s", 1_000),
            ("10s", 10_000),
            ("90m", 5_400_000),
            ("24h", 86_400_000),
            ("366d", 31_622_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_whole_number_and_a_unit_is_refused_for_its_reason() {
        for (text, reason) in [
            ("", DurationError::Unit),
            ("10", DurationError::Unit),
            ("1w", DurationError::Unit),
            ("1S", DurationError::Unit),
            ("-1s", DurationError::Number),
            ("+1s", DurationError::Number),
            ("1.5s", DurationError::Number),
            ("1 s", DurationError::Number),
            ("99999999999999999999s", DurationError::TooLarge),
            ("18446744073709551615d", DurationError::TooLarge),
        ] {
            assert_eq!(parse(text), Err(reason), "{text:?}");
        }
    }

    #[test]
    fn the_canonical_spelling_reads_back_as_the_same_span() {
        for text in ["1ms", "999ms", "1s", "90s", "60m", "36h", "366d"] {
            let span = parse(text).expect(text);
            assert_eq!(parse(&canonical(span)), Ok(span), "{text}");
        }
    }
}
