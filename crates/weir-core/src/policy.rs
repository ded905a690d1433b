//! A policy: what is limited, for whom, and what happens when nobody can say.

use crate::{Rate, Template, duration};

/// How a limit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// Exact: [`crate::algorithm::sliding_log`].
    SlidingLog,
}

impl Algorithm {
    /// The name under which the script and the keys know it.
    pub const fn tag(self) -> &'static str {
        match self {
            Algorithm::SlidingLog => "log",
        }
    }
}

/// One limit of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How it is counted.
    pub algorithm: Algorithm,
    /// How much in how long.
    pub rate: Rate,
}

impl Limit {
    /// What follows the client in this limit's key: `POLICY:ALGORITHM:WINDOW`.
    /// A limit with another window or algorithm starts clean under a key of
    /// its own; one with another number goes on counting.
    pub fn key_suffix(&self, policy: &str) -> String {
        let window = duration::canonical(self.rate.window());
        format!("{policy}:{}:{window}", self.algorithm.tag())
    }
}

/// Whom a request counts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRule {
    /// The first of these that is not empty.
    Templates(Vec<Template>),
    /// A Lua function, kept on the Lua side, that returns it.
    Function,
}

/// What becomes of a request about which no decision can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// It passes, without limit headers.
    Open,
    /// It is answered with the policy's error status.
    Closed,
}

impl OnError {
    /// The word for it in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            OnError::Open => "open",
            OnError::Closed => "closed",
        }
    }
}

/// A named policy, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name: 1 to 64 letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// Its limits, at least one; a request needs room in each.
    pub limits: Vec<Limit>,
    /// Whom it counts for.
    pub key: KeyRule,
    /// The failure policy.
    pub on_error: OnError,
    /// The status under [`OnError::Closed`], 400 to 599.
    pub error_status: u16,
}
