//! A table being taken apart, field by field.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::Value;
use crate::ConfigError;

pub(super) struct Fields {
    path: String,
    left: BTreeMap<String, Value>,
}

impl Fields {
    /// The fields of a table, all of which must be among `known`: a misspelt
    /// one is named before the one that it leaves missing.
    pub(super) fn of(
        path: impl Into<String>,
        table: Value,
        known: &[&str],
    ) -> Result<Self, ConfigError> {
        let path = path.into();
        let left = table.into_table(&path)?;
        let fields = Self { path, left };
        match fields.left.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(fields),
            Some(unknown) => {
                let shown: String = unknown.escape_debug().take(MAX_SHOWN).collect();
                let problem = format!("unknown field; known here are {}", known.join(", "));
                Err(fields.wrong(&shown, problem))
            }
        }
    }

    /// Whether the field was given.
    pub(super) fn has(&self, field: &str) -> bool {
        self.left.contains_key(field)
    }

    /// The field's value, if it was given.
    pub(super) fn take(&mut self, field: &'static str) -> Option<Value> {
        self.left.remove(field)
    }

    pub(super) fn required(&mut self, field: &'static str) -> Result<Value, ConfigError> {
        self.take(field).ok_or_else(|| self.missing(field, "a table"))
    }

    pub(super) fn string(&mut self, field: &'static str) -> Result<Option<String>, ConfigError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.mistyped(field, "a string", &other)),
        }
    }

    /// `false` if it was not given.
    pub(super) fn boolean(&mut self, field: &'static str) -> Result<bool, ConfigError> {
        match self.take(field) {
            None => Ok(false),
            Some(Value::Boolean(flag)) => Ok(flag),
            Some(other) => Err(self.mistyped(field, "true or false", &other)),
        }
    }

    /// A list of at least one string, which must be there.
    pub(super) fn strings(
        &mut self,
        field: &'static str,
        wanted: &str,
    ) -> Result<Vec<String>, ConfigError> {
        let list = match self.take(field) {
            Some(Value::List(list)) => list,
            Some(other) => return Err(self.mistyped(field, wanted, &other)),
            None => return Err(self.missing(field, wanted)),
        };
        let string = |(index, value)| match value {
            Value::String(text) => Ok(text),
            other => Err(self.mistyped(&format!("{field}[{}]", index + 1), "a string", &other)),
        };
        list.into_iter().enumerate().map(string).collect()
    }

    /// A number of a range within those that a double has exactly.
    pub(super) fn whole_number(
        &mut self,
        field: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ConfigError> {
        let (low, high) = (*range.start(), *range.end());
        match self.take(field) {
            None => Ok(None),
            Some(Value::Number(number))
                if number.fract() == 0.0 && (low as f64..=high as f64).contains(&number) =>
            {
                Ok(Some(number as u64))
            }
            Some(Value::Number(number)) => {
                let problem = format!("{number}: must be a whole number from {low} to {high}");
                Err(self.wrong(field, problem))
            }
            Some(other) => Err(self.mistyped(field, "a number", &other)),
        }
    }

    pub(super) fn missing(&self, field: &str, wanted: &str) -> ConfigError {
        self.wrong(field, format!("missing; it must be {wanted}"))
    }

    pub(super) fn mistyped(&self, field: &str, wanted: &str, got: &Value) -> ConfigError {
        self.wrong(field, format!("must be {wanted}, not {}", got.kind()))
    }

    pub(super) fn wrong(&self, field: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::new(self.path_of(field), problem)
    }

    pub(super) fn path_of(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }
}

/// How much of an unknown field's name an error shows, in characters.
const MAX_SHOWN: usize = 64;
