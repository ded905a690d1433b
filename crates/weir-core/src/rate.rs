//! A rate: how many units in how long.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::duration::{self, DurationError};

/// The largest limit, and the largest whole number that Lua, JavaScript and a
/// Redis script's doubles all carry exactly.
pub const MAX_LIMIT: u64 = (1 << 53) - 1;

/// The shortest window.
pub const MIN_WINDOW: Duration = Duration::from_millis(1);

/// The longest window: 366 days.
pub const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);

/// At most `limit` units in any span of length `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    limit: u64,
    window: Duration,
}

/// Why a rate is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RateError {
    /// Not of the form `N/W`.
    #[error("expected N/W, as in \"100/1m\"")]
    Form,
    /// N is not a whole number in range.
    #[error("the limit must be a whole number from 1 to 9007199254740991")]
    Limit,
    /// W cannot be read.
    #[error("the window: {0}")]
    Window(DurationError),
    /// W is shorter than [`MIN_WINDOW`].
    #[error("the window must be at least 1ms")]
    WindowTooShort,
    /// W is longer than [`MAX_WINDOW`].
    #[error("the window must be at most 366d")]
    WindowTooLong,
}

impl Rate {
    /// A rate of `limit` (1 to [`MAX_LIMIT`]) units per `window`
    /// ([`MIN_WINDOW`] to [`MAX_WINDOW`]; parts of a millisecond are dropped).
    pub fn new(limit: u64, window: Duration) -> Result<Self, RateError> {
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(RateError::Limit);
        }
        if window < MIN_WINDOW {
            return Err(RateError::WindowTooShort);
        }
        if window > MAX_WINDOW {
            return Err(RateError::WindowTooLong);
        }
        let millis = u64::try_from(window.as_millis()).map_err(|_| RateError::WindowTooLong)?;
        Ok(Self { limit, window: Duration::from_millis(millis) })
    }

    /// The same window with so many units, from 1 to [`MAX_LIMIT`].
    pub(crate) const fn with_limit(self, limit: u64) -> Self {
        Self { limit, window: self.window }
    }

    /// Units per window, from 1 to [`MAX_LIMIT`].
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// The window, whole milliseconds.
    pub const fn window(self) -> Duration {
        self.window
    }
}

/// Reads `"100/1m"`: the limit, a slash, and the window as
/// [`duration::parse`] takes it.
///
/// ```
/// use std::time::Duration;
/// use weir_core::Rate;
///
/// let rate: Rate = "100/1m".parse().unwrap();
/// assert_eq!(rate.limit(), 100);
/// assert_eq!(rate.window(), Duration::from_secs(60));
/// assert!("0/1m".parse::<Rate>().is_err());
/// ```
impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let (limit, window) = text.split_once('/').ok_or(RateError::Form)?;
        let limit = parse_limit(limit)?;
        let window = match duration::parse(window) {
            Ok(window) => window,
            Err(DurationError::TooLarge) => return Err(RateError::WindowTooLong),
            Err(error) => return Err(RateError::Window(error)),
        };
        Self::new(limit, window)
    }
}

/// Reads a limit: digits alone, from 1 to [`MAX_LIMIT`].
pub(crate) fn parse_limit(text: &str) -> Result<u64, RateError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RateError::Limit);
    }
    let limit = text.parse().map_err(|_| RateError::Limit)?;
    if (1..=MAX_LIMIT).contains(&limit) { Ok(limit) } else { Err(RateError::Limit) }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.limit, duration::canonical(self.window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<Rate>().expect_err(text).to_string()
    }

    #[test]
    fn the_largest_limit_and_window_are_exact() {
        let rate: Rate = "9007199254740991/366d".parse().expect("the largest rate");
        assert_eq!(rate.limit(), 9_007_199_254_740_991);
        assert_eq!(rate.window(), MAX_WINDOW);
        assert_eq!(rate.to_string(), "9007199254740991/366d");
    }

    #[test]
    fn zero_negative_fractional_and_huge_are_refused_by_name() {
        let limit = "the limit must be a whole number from 1 to 9007199254740991";
        for text in [
            "0/1s",
            "-1/1s",
            "1.5/1s",
            "abc/1s",
            "/1s",
            "+1/1s",
            " 1/1s",
            "9007199254740992/1s",
            "99999999999999999999999/1s",
            "1e3/1s",
        ] {
            assert_eq!(error(text), limit, "{text}");
        }
        assert_eq!(error("5/0s"), "the window must be at least 1ms");
        assert_eq!(error("5/367d"), "the window must be at most 366d");
        assert_eq!(error("5/99999999999999999999d"), "the window must be at most 366d");
        assert_eq!(error("5/1month"), "the window: the unit must be one of ms, s, m, h, d");
        assert_eq!(error("5/-1s"), "the window: a whole number must stand before the unit");
        for text in ["", "5", "1m"] {
            assert_eq!(error(text), "expected N/W, as in \"100/1m\"", "{text}");
        }
    }
}
