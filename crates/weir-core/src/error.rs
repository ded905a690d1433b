//! What is wrong with a configuration.

use std::fmt;

/// The first thing wrong with a configuration: the field by its path, and what
/// it wants. Displays as `policies.login.limit: "5/0s": the window must be at
/// least 1ms`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    field: String,
    problem: String,
}

impl ConfigError {
    /// An error about `field` (its path, empty for the whole), lower case and
    /// without a full stop.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }

    /// The path of the field.
    pub fn field(&self) -> &str {
        &self.field
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.problem)
        } else {
            write!(f, "{}: {}", self.field, self.problem)
        }
    }
}

impl std::error::Error for ConfigError {}
