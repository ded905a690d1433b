//! What clients of a policy are told.

use super::Value;
use super::fields::Fields;
use crate::ConfigError;
use crate::fields::HeaderStyle;
use crate::policy::{Answers, Body};

/// The fields that are read here.
pub(super) const FIELDS: [&str; 8] = [
    "headers",
    "partition_key",
    "expose",
    "dry_run_header",
    "error_page",
    "body",
    "error_body",
    "grpc_status",
];

const STYLES: [(&str, HeaderStyle); 3] = [
    ("separate", HeaderStyle::Separate),
    ("draft-11", HeaderStyle::Draft11),
    ("x", HeaderStyle::X),
];

pub(super) fn read(fields: &mut Fields) -> Result<Answers, ConfigError> {
    let default = Answers::default();
    let answers = Answers {
        headers: styles(fields)?.unwrap_or(default.headers),
        partition_key: fields.boolean("partition_key")?,
        expose: fields.boolean("expose")?,
        dry_run_header: header_name(fields, "dry_run_header")?,
        error_page: fields.boolean("error_page")?,
        body: body(fields, "body")?,
        error_body: body(fields, "error_body")?,
        grpc_status: fields
            .whole_number("grpc_status", 1..=16)?
            .map_or(default.grpc_status, |status| status as u8),
    };
    if answers.partition_key && !answers.headers.contains(&HeaderStyle::Draft11) {
        return Err(fields.wrong("partition_key", "is for the headers \"draft-11\" alone"));
    }
    let bodies = [("body", &answers.body), ("error_body", &answers.error_body)];
    if let Some((field, _)) = bodies.iter().find(|(_, body)| answers.error_page && body.is_some()) {
        return Err(fields.wrong(field, "cannot stand beside error_page, which has the last word"));
    }
    Ok(answers)
}

fn styles(fields: &mut Fields) -> Result<Option<Vec<HeaderStyle>>, ConfigError> {
    const WANTED: &str = "must be one or a list of \"separate\", \"draft-11\", \"x\", or \"none\"";
    let words = match fields.take("headers") {
        None => return Ok(None),
        Some(Value::String(word)) if word == "none" => return Ok(Some(Vec::new())),
        Some(Value::String(word)) => vec![Value::String(word)],
        Some(Value::List(words)) => words,
        Some(other) => {
            return Err(fields.wrong("headers", format!("{WANTED}, not {}", other.kind())));
        }
    };
    let mut styles = Vec::with_capacity(words.len());
    for word in words {
        let Value::String(word) = word else {
            return Err(fields.wrong("headers", format!("{WANTED}, not {}", word.kind())));
        };
        match STYLES.iter().find(|(known, _)| *known == word) {
            Some((_, style)) if styles.contains(style) => {
                return Err(fields.wrong("headers", format!("{word:?} stands there twice")));
            }
            Some((_, style)) => styles.push(*style),
            None => return Err(fields.wrong("headers", format!("{word:?}: {WANTED}"))),
        }
    }
    Ok(Some(styles))
}

/// Headers that say how an answer is to be read, where it goes or what Weir has
/// to tell in it.
const TAKEN: [&str; 9] = [
    "connection",
    "date",
    "location",
    "retry-after",
    "server",
    "set-cookie",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A field name (RFC 9110, section 5.1) that is free for a dry run.
fn header_name(fields: &mut Fields, field: &'static str) -> Result<Option<String>, ConfigError> {
    let Some(name) = fields.string(field)? else { return Ok(None) };
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || name.len() > super::MAX_NAME || !name.chars().all(is_token) {
        let problem = format!("{name:?}: must be the name of a header, as \"X-Dry-Run\"");
        return Err(fields.wrong(field, problem));
    }
    let lower = name.to_ascii_lowercase();
    let is_of_a_limit = STYLES
        .iter()
        .flat_map(|(_, style)| style.headers())
        .any(|(header, _)| header.eq_ignore_ascii_case(&name));
    if is_of_a_limit || lower.starts_with("content-") || TAKEN.contains(&lower.as_str()) {
        let problem = format!("{name:?}: has another meaning; take a name such as \"X-Dry-Run\"");
        return Err(fields.wrong(field, problem));
    }
    Ok(Some(name))
}

fn body(fields: &mut Fields, field: &'static str) -> Result<Option<Body>, ConfigError> {
    const WANTED: &str = "a table, as { type = \"text/plain\", text = \"Slow down.\\n\" }";
    let config = match fields.take(field) {
        None => return Ok(None),
        Some(config @ Value::Table(_)) => config,
        Some(other) => return Err(fields.mistyped(field, WANTED, &other)),
    };
    let mut fields = Fields::of(fields.path_of(field), config, &["type", "text"])?;
    let Some(media_type) = fields.string("type")? else {
        return Err(fields.missing("type", "a media type, as \"application/json\""));
    };
    if mediatype::MediaType::parse(&media_type).is_err() {
        let problem = format!("{media_type:?}: must be a media type, as \"application/json\"");
        return Err(fields.wrong("type", problem));
    }
    match fields.string("text")? {
        Some(text) => Ok(Some(Body { media_type, text })),
        None => Err(fields.missing("text", "a string")),
    }
}
