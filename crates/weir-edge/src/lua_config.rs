//! The configuration as Lua has it, made data.

use std::collections::BTreeMap;

use mlua::prelude::*;
use weir_core::{ConfigError, Value};

/// Deeper tables are no configuration of ours; this bounds a table that
/// contains itself.
const MAX_DEPTH: usize = 8;

/// Takes a Lua value over; `path` is where it stands, for the error.
pub(crate) fn take(value: LuaValue, path: &str, depth: usize) -> Result<Value, ConfigError> {
    Ok(match value {
        LuaValue::Boolean(flag) => Value::Boolean(flag),
        LuaValue::Integer(number) => Value::Number(number as f64),
        LuaValue::Number(number) => Value::Number(number),
        LuaValue::String(text) => Value::String(utf8(&text, path)?),
        LuaValue::Function(_) => Value::Function,
        LuaValue::Table(_) if depth == MAX_DEPTH => {
            return Err(ConfigError::new(path, "is nested too deeply"));
        }
        LuaValue::Table(table) => take_table(&table, path, depth)?,
        LuaValue::Nil => Value::Other("nil"),
        _ => Value::Other("a value of a type that has no place here"),
    })
}

fn take_table(table: &LuaTable, path: &str, depth: usize) -> Result<Value, ConfigError> {
    let mut fields = BTreeMap::new();
    let mut items = BTreeMap::new();
    for pair in table.pairs::<LuaValue, LuaValue>() {
        let (key, value) = pair.map_err(|error| ConfigError::new(path, error.to_string()))?;
        match key {
            LuaValue::String(name) => {
                let name = utf8(&name, path)?;
                let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                fields.insert(name, take(value, &inner, depth + 1)?);
            }
            LuaValue::Integer(index) if index >= 1 => {
                items.insert(index, take(value, &format!("{path}[{index}]"), depth + 1)?);
            }
            _ => return Err(ConfigError::new(path, "has a key that is not a name")),
        }
    }
    let dense = items.keys().copied().eq(1..=items.len() as i64);
    match (items.is_empty(), fields.is_empty()) {
        (true, _) => Ok(Value::Table(fields)),
        (false, true) if dense => Ok(Value::List(items.into_values().collect())),
        (false, true) => Err(ConfigError::new(path, "is a list with holes")),
        (false, false) => Err(ConfigError::new(path, "mixes a list with named fields")),
    }
}

fn utf8(text: &LuaString, path: &str) -> Result<String, ConfigError> {
    match text.to_str() {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(ConfigError::new(path, "is not valid UTF-8")),
    }
}
