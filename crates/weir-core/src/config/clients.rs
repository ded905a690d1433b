//! Whom a policy counts, and whom it passes over.

use super::Value;
use super::fields::Fields;
use crate::address::Prefixes;
use crate::policy::{Exempt, KeyRule, KeySource};
use crate::{ConfigError, Template};

/// The fields that are read here.
pub(super) const FIELDS: [&str; 4] = ["key", "ip", "hash_keys", "exempt"];

/// The methods that nginx knows by name, and those of caches and of queries.
const METHODS: [&str; 20] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "CONNECT",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "COPY",
    "MOVE",
    "MKCOL",
    "LOCK",
    "UNLOCK",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "QUERY",
    "REPORT",
    "SEARCH",
];

/// What a variable's name begins with that hardly anybody means as a text: a
/// forgotten `$` would make one bucket for all.
const VARIABLES: [&str; 7] =
    ["remote_", "binary_remote_", "realip_remote_", "proxy_protocol_", "http_", "arg_", "cookie_"];

pub(super) fn key_rule(fields: &mut Fields) -> Result<KeyRule, ConfigError> {
    const WANTED: &str = "a string, a list, { parts = { ... } } or a function";
    let sources = match fields.take("key") {
        None => vec![KeySource(vec![template(fields, "key", "$remote_addr")?])],
        Some(Value::Function) => return Ok(KeyRule::Function),
        Some(Value::Table(table)) if table.is_empty() => {
            return Err(fields.wrong("key", format!("must be {WANTED}, not an empty list")));
        }
        Some(Value::List(list)) => {
            let path = |index| format!("key[{}]", index + 1);
            let source = |(index, value)| source(fields, &path(index), value, "a string");
            list.into_iter().enumerate().map(source).collect::<Result<_, _>>()?
        }
        Some(value) => vec![source(fields, "key", value, WANTED)?],
    };
    Ok(KeyRule::Sources(sources))
}

/// One text, or the parts of one key.
fn source(
    fields: &Fields,
    field: &str,
    value: Value,
    wanted: &str,
) -> Result<KeySource, ConfigError> {
    match value {
        Value::String(text) => Ok(KeySource(vec![template(fields, field, &text)?])),
        Value::Table(_) => {
            let mut fields = Fields::of(fields.path_of(field), value, &["parts"])?;
            let texts =
                fields.strings("parts", "a list of strings, as { \"$host\", \"$arg_k\" }")?;
            let part = |(index, text): (usize, &String)| {
                template(&fields, &format!("parts[{}]", index + 1), text)
            };
            Ok(KeySource(texts.iter().enumerate().map(part).collect::<Result<_, _>>()?))
        }
        other => Err(fields.mistyped(field, wanted, &other)),
    }
}

fn template(fields: &Fields, field: &str, text: &str) -> Result<Template, ConfigError> {
    let template =
        Template::parse(text).map_err(|error| fields.wrong(field, format!("{text:?}: {error}")))?;
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if text.chars().all(is_name) && VARIABLES.iter().any(|prefix| text.starts_with(prefix)) {
        let problem =
            format!("{text:?}: would be one budget for everybody; the variable is \"${text}\"");
        return Err(fields.wrong(field, problem));
    }
    Ok(template)
}

pub(super) fn prefixes(fields: &mut Fields) -> Result<Prefixes, ConfigError> {
    const WANTED: &str = "a table, as { v4_prefix = 32, v6_prefix = 64 }";
    let value = match fields.take("ip") {
        None => return Ok(Prefixes::default()),
        Some(value @ Value::Table(_)) => value,
        Some(other) => return Err(fields.mistyped("ip", WANTED, &other)),
    };
    let mut fields = Fields::of(fields.path_of("ip"), value, &["v4_prefix", "v6_prefix"])?;
    let mut prefix = |field, most: u8, default| {
        let bits = fields.whole_number(field, 1..=u64::from(most))?;
        Ok::<u8, ConfigError>(bits.map_or(default, |bits| bits as u8))
    };
    let v4 = prefix("v4_prefix", Prefixes::MAX_V4, Prefixes::MAX_V4)?;
    let v6 = prefix("v6_prefix", Prefixes::MAX_V6, 64)?;
    Ok(Prefixes::new(v4, v6).unwrap_or_default())
}

pub(super) fn exempt(fields: &mut Fields) -> Result<Exempt, ConfigError> {
    let items = match fields.take("exempt") {
        None => return Ok(Exempt::default()),
        Some(Value::List(items)) => items,
        Some(item @ (Value::String(_) | Value::Function)) => vec![item],
        Some(other) => {
            return Err(fields.mistyped(
                "exempt",
                "a list, as { \"10.0.0.0/8\", \"OPTIONS\" }, a string or a function",
                &other,
            ));
        }
    };
    let mut exempt = Exempt::default();
    for (index, item) in items.into_iter().enumerate() {
        let field = format!("exempt[{}]", index + 1);
        match item {
            Value::Function if exempt.function => {
                return Err(fields.wrong(&field, "is a second function; one is the most"));
            }
            Value::Function => exempt.function = true,
            Value::String(text) if METHODS.contains(&text.as_str()) => exempt.methods.push(text),
            Value::String(text) if exempt.networks.add(&text) => {}
            Value::String(text) => {
                let problem = format!(
                    "{text:?}: must be a network such as \"10.0.0.0/8\" (with no bit set behind \
                     its prefix), an address, or a method such as \"OPTIONS\""
                );
                return Err(fields.wrong(&field, problem));
            }
            other => return Err(fields.mistyped(&field, "a string or a function", &other)),
        }
    }
    Ok(exempt)
}
