//! A configuration as data.

use std::collections::BTreeMap;
use std::fmt;

use crate::ConfigError;

/// What an operator can write for a field.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Boolean(bool),
    /// A number.
    Number(f64),
    /// Text.
    String(String),
    /// A list of at least one value.
    List(Vec<Value>),
    /// Named fields, possibly none.
    Table(BTreeMap<String, Value>),
    /// A function, which stays where it was written.
    Function,
    /// Anything else that the language has, by the name of its type.
    Other(&'static str),
}

impl Value {
    /// What this is, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Boolean(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::List(_) => "a list",
            Value::Table(table) if table.is_empty() => "an empty table",
            Value::Table(_) => "a table",
            Value::Function => "a function",
            Value::Other(kind) => kind,
        }
    }

    /// The named fields of a table; `field` is its path, for the error.
    pub(super) fn into_table(self, field: &str) -> Result<BTreeMap<String, Value>, ConfigError> {
        match self {
            Value::Table(table) => Ok(table),
            other => {
                let problem = format!("must be a table of named fields, not {}", other.kind());
                Err(ConfigError::new(field, problem))
            }
        }
    }
}

// What is secret in it is known only once it has been taken apart.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}
