//! Sizes of memory as nginx writes them: a whole number and a unit.

use thiserror::Error;

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizeError {
    /// Not of the form.
    #[error("expected a whole number and k, m or g, as in \"32m\"")]
    Form,
    /// It does not fit.
    #[error("the number is too large")]
    TooLarge,
}

/// Reads `"512k"`, `"32m"` or `"1g"`, in either case, as bytes. No sign, no
/// fraction, no white space, and never without a unit: bytes are too easily meant
/// to be something else.
///
/// ```
/// use weir_core::size::parse;
///
/// assert_eq!(parse("32m"), Ok(32 * 1024 * 1024));
/// assert!(parse("1.5g").is_err());
/// assert!(parse("1000000").is_err());
/// ```
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let shift = match text.bytes().last() {
        Some(b'k' | b'K') => 10,
        Some(b'm' | b'M') => 20,
        Some(b'g' | b'G') => 30,
        _ => return Err(SizeError::Form),
    };
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SizeError::Form);
    }
    // Only digits stand here, so a number that cannot be read is too large.
    let number: u64 = digits.parse().map_err(|_| SizeError::TooLarge)?;
    number.checked_mul(1 << shift).ok_or(SizeError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_and_a_unit() {
        for (text, size) in [("1k", 1 << 10), ("32m", 32 << 20), ("2G", 2 << 30), ("0m", 0)] {
            assert_eq!(parse(text), Ok(size), "{text}");
        }
        for text in ["", "m", "32", "32mb", "-1m", "+1m", " 1m", "1 m", "1.5m", "0x1m", "\u{661}m"]
        {
            assert_eq!(parse(text), Err(SizeError::Form), "{text}");
        }
        for text in ["18446744073709551616k", "17179869184g"] {
            assert_eq!(parse(text), Err(SizeError::TooLarge), "{text}");
        }
    }
}
