//! A decision in the words of HTTP.
//!
//! `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` are those of
//! draft-ietf-httpapi-ratelimit-headers up to its version 06: whole numbers,
//! the reset in seconds from now. That draft wants the reset of an answer that
//! also has `Retry-After` to name the same instant, so on a refusal it is the
//! wait. `Retry-After` is RFC 9110, section 10.2.3, in its delay form.
//!
//! Seconds are rounded up: a client that waits as long as it is told never
//! comes too early.

use std::time::Duration;

use crate::decision::{Standing, Wait};

/// The header values of one answer, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// `RateLimit-Limit`.
    pub limit: String,
    /// `RateLimit-Remaining`.
    pub remaining: String,
    /// `RateLimit-Reset`; not on a refusal that no time ends.
    pub reset: Option<String>,
    /// `Retry-After`, on a refusal that can end: at least 1.
    pub retry_after: Option<String>,
}

impl Fields {
    /// The fields that describe this limit.
    pub fn of(standing: &Standing) -> Self {
        let retry_after = match standing.wait {
            Wait::For(wait) => Some(whole_seconds(wait).max(1)),
            Wait::None | Wait::Forever => None,
        };
        let reset = match standing.wait {
            Wait::None => Some(whole_seconds(standing.reset)),
            Wait::For(_) | Wait::Forever => retry_after,
        };
        Self {
            limit: standing.limit.to_string(),
            remaining: standing.remaining.to_string(),
            reset: reset.map(|seconds| seconds.to_string()),
            retry_after: retry_after.map(|seconds| seconds.to_string()),
        }
    }
}

/// The body of a refusal.
pub fn refusal_body(policy: &str, status: u16, retry_after: Option<&str>) -> String {
    let title = match status {
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => "Request Refused",
    };
    // Policy names are letters, digits, `_`, `-` and `.`: nothing to escape.
    match retry_after {
        Some(seconds) => format!(
            "{{\"status\":{status},\"title\":\"{title}\",\"policy\":\"{policy}\",\"retry_after\":{seconds}}}\n"
        ),
        None => format!("{{\"status\":{status},\"title\":\"{title}\",\"policy\":\"{policy}\"}}\n"),
    }
}

fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(remaining: u64, wait: Wait, reset: Duration) -> Fields {
        Fields::of(&Standing { limit: 9_007_199_254_740_991, remaining, wait, reset })
    }

    #[test]
    fn numbers_are_plain_digits_however_large() {
        let fields = fields(9_007_199_254_740_990, Wait::None, Duration::from_secs(31_622_400));
        assert_eq!(fields.limit, "9007199254740991");
        assert_eq!(fields.remaining, "9007199254740990");
        assert_eq!(fields.reset.as_deref(), Some("31622400"));
        assert_eq!(fields.retry_after, None);
    }

    #[test]
    fn seconds_are_rounded_up_and_a_wait_is_never_zero() {
        for (micros, seconds) in [(1, "1"), (999_999, "1"), (1_000_000, "1"), (1_000_001, "2")] {
            let wait = Duration::from_micros(micros);
            let fields = fields(0, Wait::For(wait), Duration::from_secs(60));
            assert_eq!(fields.retry_after.as_deref(), Some(seconds), "{micros}");
        }
    }

    /// C16: on a 429 the reset is the instant of Retry-After.
    #[test]
    fn on_a_refusal_the_reset_is_the_wait() {
        let wait = Wait::For(Duration::from_secs(50));
        let fields = fields(0, wait, Duration::from_secs(51));
        assert_eq!(
            (fields.reset.as_deref(), fields.retry_after.as_deref()),
            (Some("50"), Some("50"))
        );
    }

    #[test]
    fn a_cost_that_never_fits_is_told_no_time() {
        for reset in [0, 9] {
            let fields = fields(3, Wait::Forever, Duration::from_secs(reset));
            assert_eq!((fields.reset, fields.retry_after), (None, None));
        }
    }

    #[test]
    fn the_body_is_json() {
        assert_eq!(
            refusal_body("api", 429, Some("7")),
            "{\"status\":429,\"title\":\"Too Many Requests\",\"policy\":\"api\",\"retry_after\":7}\n"
        );
    }
}
