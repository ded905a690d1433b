//! What can go wrong, and what follows from it.

use redis::{RedisError, Value};

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
    /// As many requests as may wait for this server wait already.
    QueueFull,
}

impl Failure {
    /// One word for counters and logs.
    pub const fn word(self) -> &'static str {
        match self {
            Failure::Unreachable => "unreachable",
            Failure::Timeout => "timeout",
            Failure::Refused => "redis_error",
            Failure::Malformed => "malformed_reply",
            Failure::QueueFull => "queue_full",
        }
    }
}

/// What Redis says with an error reply, by its code: the first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    NoScript,
    ReadOnly,
    Loading,
    Busy,
    Oom,
    MasterDown,
    ClusterDown,
    Moved,
    Ask,
    TryAgain,
    CrossSlot,
    NoAuth,
    WrongPass,
    NoPerm,
    WrongType,
    Misconf,
    NoReplicas,
    /// `ERR`, and whatever is not known.
    Other,
}

/// What an error reply asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Send the same again at once, with the script in it.
    BringScript,
    /// Send the same to the server that the reply names.
    Redirect,
    /// Send the same again after a moment.
    TryAgain,
    /// Find out which server it is that decides, and send the same there.
    Relocate,
    /// This server cannot serve for a while: `on_error` decides, and the thread
    /// knocks until it can.
    Wait,
    /// `on_error` decides. The connection is good.
    GiveUp,
}

impl Code {
    pub(crate) fn of(text: &str) -> Self {
        match text.split(' ').next().unwrap_or_default() {
            "NOSCRIPT" => Self::NoScript,
            "READONLY" => Self::ReadOnly,
            "LOADING" => Self::Loading,
            "BUSY" => Self::Busy,
            "OOM" => Self::Oom,
            "MASTERDOWN" => Self::MasterDown,
            "CLUSTERDOWN" => Self::ClusterDown,
            "MOVED" => Self::Moved,
            "ASK" => Self::Ask,
            "TRYAGAIN" => Self::TryAgain,
            "CROSSSLOT" => Self::CrossSlot,
            "NOAUTH" => Self::NoAuth,
            "WRONGPASS" => Self::WrongPass,
            "NOPERM" => Self::NoPerm,
            "WRONGTYPE" => Self::WrongType,
            "MISCONF" => Self::Misconf,
            "NOREPLICAS" => Self::NoReplicas,
            _ => Self::Other,
        }
    }

    /// All that is ever sent again is what Redis says it has not run.
    pub(crate) fn remedy(self) -> Remedy {
        match self {
            // Not in this server's cache: it restarted, or somebody ran SCRIPT
            // FLUSH. Nothing was run.
            Self::NoScript => Remedy::BringScript,
            // The slot is served elsewhere, or this key already is. Nothing was
            // run.
            Self::Moved | Self::Ask => Remedy::Redirect,
            // Of several keys some have left with a slot that is being moved,
            // which does not take long. Nothing was run.
            Self::TryAgain => Remedy::TryAgain,
            // Demoted: every write fails, so nothing was charged. Somebody else
            // is the primary by now.
            Self::ReadOnly => Remedy::Relocate,
            // A replica that has lost its primary: never ours to ask.
            Self::MasterDown => Remedy::Relocate,
            // It reads its data set. Nothing was run, and will not be soon.
            Self::Loading => Remedy::Wait,
            // The password was changed under way, or the user was removed.
            Self::NoAuth | Self::WrongPass => Remedy::Wait,
            // Slots without a primary: until one is elected every server says
            // the same. The map is asked for again meanwhile.
            Self::ClusterDown => Remedy::GiveUp,
            // Somebody's script runs for too long. It answers at once, so nobody
            // waits for it.
            Self::Busy => Remedy::GiveUp,
            // No memory, no disk, no replicas: it writes nothing, but still
            // refuses whom it must, and another connection would hear the same.
            Self::Oom | Self::Misconf | Self::NoReplicas => Remedy::GiveUp,
            // The rights of our user, a foreign value under our key, a server of
            // a cluster that is configured as a single one: for the operator.
            Self::NoPerm | Self::WrongType | Self::CrossSlot => Remedy::GiveUp,
            // Sent again it might be charged twice.
            Self::Other => Remedy::GiveUp,
        }
    }
}

/// An error reply in Redis's own words: its code, and the rest.
pub(crate) fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => printable(&format!("{code} {detail}")),
        (Some(code), None) => printable(code),
        _ => printable(&error.to_string()),
    }
}

/// The error reply among the values, if it is one.
pub(crate) fn of_value(value: Value) -> Result<Value, RedisError> {
    match value {
        Value::ServerError(error) => Err(error.into()),
        value => Ok(value),
    }
}

/// An error as one log line may carry it: printable, not without end, and without
/// the arguments that Redis repeats of a command that it does not know. Those of
/// `HELLO` have the password among them.
pub(crate) fn printable(error: &str) -> String {
    let (error, _) = error.split_once(", with args beginning with").unwrap_or((error, ""));
    error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_remedy() {
        for (code, remedy) in [
            ("NOSCRIPT", Remedy::BringScript),
            ("MOVED 7 10.0.0.1:6379", Remedy::Redirect),
            ("ASK 7 10.0.0.1:6379", Remedy::Redirect),
            ("TRYAGAIN", Remedy::TryAgain),
            ("READONLY", Remedy::Relocate),
            ("MASTERDOWN", Remedy::Relocate),
            ("LOADING", Remedy::Wait),
            ("NOAUTH", Remedy::Wait),
            ("WRONGPASS", Remedy::Wait),
        ] {
            assert_eq!(Code::of(code).remedy(), remedy, "{code}");
        }
        for code in [
            "CLUSTERDOWN",
            "BUSY",
            "OOM",
            "MISCONF",
            "NOREPLICAS",
            "NOPERM",
            "WRONGTYPE",
            "CROSSSLOT",
            "ERR READONLY",
            "",
            "NEW",
        ] {
            assert_eq!(Code::of(code).remedy(), Remedy::GiveUp, "{code}");
        }
    }

    #[test]
    fn a_log_line_never_repeats_what_was_sent() {
        for (reply, shown) in [
            (
                "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'me' 'pw' ",
                "ERR unknown command 'HELLO'",
            ),
            (
                "ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `pw`, ",
                "ERR unknown command `HELLO`",
            ),
        ] {
            assert_eq!(printable(reply), shown);
        }
    }

    #[test]
    fn a_log_line_stays_one_line() {
        assert_eq!(printable("a\r\nb\0c"), "a  b c");
        assert_eq!(printable(&"x".repeat(1_000)).len(), 200);
    }
}
