//! What can go wrong, and what follows from it.

use redis::RedisError;

/// Why a request has no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Redis cannot be reached, and is known not to be.
    Unreachable,
    /// No answer came in time.
    Timeout,
    /// Redis answered with an error.
    Refused,
    /// The answer was not what the script promises.
    Malformed,
}

impl Failure {
    /// One word for counters and logs.
    pub const fn word(self) -> &'static str {
        match self {
            Failure::Unreachable => "unreachable",
            Failure::Timeout => "timeout",
            Failure::Refused => "redis_error",
            Failure::Malformed => "malformed_reply",
        }
    }
}

/// What an error reply asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Nothing was run: send the script along, at once.
    BringScript,
    /// This server cannot decide now, and may not be the right one any more:
    /// connect again.
    Reconnect,
    /// The requests have no decision; the connection is good.
    GiveUp,
}

/// The remedy for an error reply, by its code (the first word).
pub(crate) fn remedy(code: &str) -> Remedy {
    match code {
        // The script is not in this server's cache: it restarted, or somebody
        // ran SCRIPT FLUSH. Nothing was decided.
        "NOSCRIPT" => Remedy::BringScript,
        // Demoted to a replica: the address may lead to another server by now.
        "READONLY" => Remedy::Reconnect,
        // Reading its data set, or cut off from its primary.
        "LOADING" | "MASTERDOWN" => Remedy::Reconnect,
        // The password was changed under way.
        "NOAUTH" | "WRONGPASS" => Remedy::Reconnect,
        // OOM, BUSY, MISCONF, NOPERM, WRONGTYPE, ERR and whatever is unknown:
        // another connection would hear the same.
        _ => Remedy::GiveUp,
    }
}

/// The remedy for a failed call.
pub(crate) fn remedy_for(error: &RedisError) -> Remedy {
    if error.is_unrecoverable_error() || error.is_io_error() {
        return Remedy::Reconnect;
    }
    error.code().map_or(Remedy::GiveUp, remedy)
}

/// The code of an error text as the script passes it on.
pub(crate) fn code(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// What went wrong, in Redis's own words where they are Redis's.
pub(crate) fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => printable(&format!("{code} {detail}")),
        _ => printable(&error.to_string()),
    }
}

/// An error as one log line may carry it: printable, and not without end.
pub(crate) fn printable(error: &str) -> String {
    error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_noscript_is_ever_sent_again() {
        assert_eq!(remedy("NOSCRIPT"), Remedy::BringScript);
        for code in ["READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "WRONGPASS"] {
            assert_eq!(remedy(code), Remedy::Reconnect, "{code}");
        }
        for code in ["OOM", "BUSY", "MISCONF", "NOPERM", "WRONGTYPE", "ERR", "", "NEW"] {
            assert_eq!(remedy(code), Remedy::GiveUp, "{code}");
        }
    }

    #[test]
    fn a_log_line_stays_one_line() {
        assert_eq!(printable("a\r\nb\0c"), "a  b c");
        assert_eq!(printable(&"x".repeat(1_000)).len(), 200);
    }
}
