//! A policy: what is limited, for whom, and what happens when nobody can say.

use crate::{Limit, Template};

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

/// Other numbers for some clients of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name: 1 to 64 letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// In place of the policy's limits, each of the same algorithm and window,
    /// so that a client whose plan changes keeps what it has used.
    pub limits: Vec<Limit>,
}

/// A named policy, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name: 1 to 64 letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// Its limits, 1 to 8; a request needs room in each.
    pub limits: Vec<Limit>,
    /// By name in alphabetical order.
    pub plans: Vec<Plan>,
    /// The name of a budget that it shares with other policies.
    pub bucket: Option<String>,
    /// Whom it counts for.
    pub key: KeyRule,
    /// The failure policy.
    pub on_error: OnError,
    /// The status under [`OnError::Closed`], 400 to 599.
    pub error_status: u16,
}

impl Policy {
    /// Whose budget it is, as keys say it: the policy's name, or `@BUCKET`,
    /// which no policy can be named.
    pub fn budget(&self) -> String {
        match &self.bucket {
            Some(bucket) => format!("@{bucket}"),
            None => self.name.clone(),
        }
    }
}
