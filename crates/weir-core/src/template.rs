//! Key templates: text with nginx variables in it.

use thiserror::Error;

/// One piece of a [`Template`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text that stands for itself.
    Literal(String),
    /// The value of this nginx variable (named without the `$`).
    Variable(String),
}

/// The variables that hold the address of a client.
const ADDRESSES: [&str; 4] =
    ["remote_addr", "binary_remote_addr", "realip_remote_addr", "proxy_protocol_addr"];

impl Part {
    /// Whether this is the address of a client.
    pub fn is_address(&self) -> bool {
        matches!(self, Part::Variable(name) if ADDRESSES.contains(&name.as_str()))
    }
}

/// A parsed key template, such as `$remote_addr` or `$server_name:${arg_id}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// There is nothing in it.
    #[error("must not be empty")]
    Empty,
    /// A `$` without a name behind it.
    #[error(
        "a variable name must follow every \"$\", as in \"$remote_addr\" or \"${{remote_addr}}\""
    )]
    Name,
    /// A `${` without its `}`.
    #[error("\"${{\" has no closing \"}}\"")]
    Unclosed,
}

impl Template {
    /// Reads a template, with variables as nginx's own configuration writes
    /// them: `$name` or `${name}`, names of letters, digits and underscores.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.is_empty() {
            return Err(TemplateError::Empty);
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            if dollar > 0 {
                parts.push(Part::Literal(rest[..dollar].to_owned()));
            }
            let (name, after) = variable(&rest[dollar + 1..])?;
            // Their names are in any case, as in nginx.
            parts.push(Part::Variable(name.to_ascii_lowercase()));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.to_owned()));
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// The template as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its parts in order, never empty.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// Splits `name...` or `{name}...`, what follows a `$`, behind the name.
fn variable(text: &str) -> Result<(&str, &str), TemplateError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (name, after) = match text.strip_prefix('{') {
        Some(braced) => braced.split_once('}').ok_or(TemplateError::Unclosed)?,
        None => text.split_at(text.find(|c| !is_name(c)).unwrap_or(text.len())),
    };
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(TemplateError::Name);
    }
    Ok((name, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<Part> {
        Template::parse(text).expect(text).parts
    }

    fn literal(text: &str) -> Part {
        Part::Literal(text.to_owned())
    }

    fn named(name: &str) -> Part {
        Part::Variable(name.to_owned())
    }

    #[test]
    fn variables_are_written_as_in_nginx() {
        assert_eq!(parts("$remote_addr"), [named("remote_addr")]);
        assert_eq!(parts("${a}b"), [named("a"), literal("b")]);
        assert_eq!(parts("$a-$b"), [named("a"), literal("-"), named("b")]);
        assert_eq!(parts("k:${arg_id}!"), [literal("k:"), named("arg_id"), literal("!")]);
        assert_eq!(parts("everyone"), [literal("everyone")]);
        assert_eq!(parts("A$Remote_ADDR"), [literal("A"), named("remote_addr")]);
        assert!(parts("$REMOTE_ADDR")[0].is_address() && !parts("$remote_user")[0].is_address());
    }

    #[test]
    fn a_dollar_without_a_name_is_refused() {
        for (text, error) in [
            ("", TemplateError::Empty),
            ("$", TemplateError::Name),
            ("a$-b", TemplateError::Name),
            ("${}", TemplateError::Name),
            ("${a-b}", TemplateError::Name),
            ("${a", TemplateError::Unclosed),
            ("$$a", TemplateError::Name),
        ] {
            assert_eq!(Template::parse(text), Err(error), "{text:?}");
        }
    }
}
