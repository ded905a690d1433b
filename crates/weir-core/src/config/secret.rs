//! What must not be shown: passwords, addresses that may hold one, and what
//! identities are hashed with.

use std::fmt;

use super::Value;
use super::fields::Fields;
use crate::ConfigError;

/// Text that shows itself to nobody: not in a log, an error or a `Debug` output.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretString(String);

impl SecretString {
    /// Makes a secret of this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for whoever must have it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretString")
    }
}

/// Where a secret lies that does not stand in the configuration itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A file, by its absolute path.
    File(String),
    /// A variable of the environment.
    Env(String),
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the file {path:?}"),
            Self::Env(name) => write!(f, "the variable {name:?}"),
        }
    }
}

/// Reads what lies there, as it is; or says what is wrong, in words that follow
/// "the file ..." or "the variable ...", and never with any of the content.
pub type ReadSecret<'a> = &'a dyn Fn(&SecretSource) -> Result<Vec<u8>, String>;

/// A secret field: text, `{ file = }` or `{ env = }`.
pub(super) fn read(
    fields: &mut Fields,
    field: &'static str,
    read: ReadSecret,
) -> Result<Option<SecretString>, ConfigError> {
    const WANTED: &str = "text, { file = \"/path\" } or { env = \"NAME\" }";
    let source = match fields.take(field) {
        None => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => {
            return Err(fields.wrong(field, "is empty"));
        }
        Some(Value::String(text)) => return Ok(Some(SecretString(text))),
        Some(table @ Value::Table(_)) => source(fields.path_of(field), table, WANTED)?,
        Some(other) => return Err(fields.mistyped(field, WANTED, &other)),
    };
    let wrong = |problem: &str| fields.wrong(field, format!("{source} {problem}"));
    let bytes = read(&source).map_err(|problem| wrong(&problem))?;
    let mut text = String::from_utf8(bytes).map_err(|_| wrong("is not valid UTF-8"))?;
    // Editors and `echo` end a file with one.
    if matches!(source, SecretSource::File(_)) && text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() {
        return Err(wrong("is empty"));
    }
    Ok(Some(SecretString(text)))
}

fn source(path: String, table: Value, wanted: &str) -> Result<SecretSource, ConfigError> {
    let mut fields = Fields::of(path.as_str(), table, &["file", "env"])?;
    match (fields.string("file")?, fields.string("env")?) {
        (Some(file), None) if !file.starts_with('/') => {
            Err(fields.wrong("file", "must be an absolute path"))
        }
        (Some(file), None) => Ok(SecretSource::File(file)),
        (None, Some(name)) if name.is_empty() || name.contains(['=', '\0']) => {
            Err(fields.wrong("env", "must be the name of a variable"))
        }
        (None, Some(name)) => Ok(SecretSource::Env(name)),
        (Some(_), Some(_)) => Err(fields.wrong("env", "cannot stand beside file")),
        (None, None) => Err(ConfigError::new(path, format!("must be {wanted}"))),
    }
}
