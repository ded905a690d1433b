//! Whom a request counts for, as the text of a key.
//!
//! A key reads `PREFIX:{SOURCE=VALUE}:POLICY:ALGORITHM:WINDOW`, for example
//! `weir:{$remote_addr=192.0.2.7}:api:log:1m`. SOURCE is the key template as
//! the operator wrote it, empty for a key given at the request, so a header
//! that says `192.0.2.7` is not the client of that address. POLICY is
//! `@BUCKET` where policies share one. The braces are Redis Cluster's hash tag:
//! all limits of one request lie in one slot.
//!
//! SOURCE and VALUE are escaped ([`escape`]): no value can close the tag,
//! reach into the next part or carry a control character. A value longer than
//! [`MAX_VALUE`] bytes is named by its SHA-256, so that no client decides how
//! long a key is.

use std::io::Write as _;

use sha2::{Digest, Sha256};

/// The longest value that is kept as it is, in bytes before escaping.
pub const MAX_VALUE: usize = 512;

/// What names a client, of bounded size whatever the client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value itself.
    Plain(Box<[u8]>),
    /// The SHA-256 of a longer one.
    Digest([u8; 32]),
}

impl From<&[u8]> for Value {
    fn from(value: &[u8]) -> Self {
        if value.len() <= MAX_VALUE {
            Self::Plain(value.into())
        } else {
            Self::Digest(Sha256::digest(value).into())
        }
    }
}

/// Appends `{SOURCE=VALUE}`: the part of a key that says whom it is for.
pub fn write_tag(key: &mut Vec<u8>, source: &str, value: &Value) {
    key.push(b'{');
    escape(key, source.as_bytes());
    key.push(b'=');
    match value {
        Value::Plain(value) => escape(key, value),
        Value::Digest(digest) => {
            // `~` is escaped in plain values, so no plain value reads like this.
            key.extend_from_slice(b"~sha256-");
            for byte in digest {
                // Writing to a vector cannot fail.
                let _ = write!(key, "{byte:02x}");
            }
        }
    }
    key.push(b'}');
}

/// Appends `bytes` with everything but letters, digits and `$-._/@+,` written
/// as `%XX`. Two different values never escape to the same text.
pub fn escape(out: &mut Vec<u8>, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"$-._/@+,".contains(&byte) {
            out.push(byte);
        } else {
            out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tag(source: &str, value: &[u8]) -> String {
        let mut key = Vec::new();
        write_tag(&mut key, source, &Value::from(value));
        String::from_utf8(key).expect("tags are ASCII")
    }

    #[test]
    fn an_ordinary_client_reads_as_it_is() {
        assert_eq!(tag("$remote_addr", b"192.0.2.7"), "{$remote_addr=192.0.2.7}");
        assert_eq!(tag("", b"alice"), "{=alice}");
    }

    #[test]
    fn no_value_closes_the_tag_or_carries_a_control_character() {
        assert_eq!(tag("$a:$b", b"}:x=\r\n\0 \xff%"), "{$a%3A$b=%7D%3Ax%3D%0D%0A%00%20%FF%25}");
    }

    #[test]
    fn long_values_are_bounded_and_still_apart() {
        let long = |last: u8| [&[b'x'; MAX_VALUE][..], &[last]].concat();
        let (a, b) = (tag("", &long(b'a')), tag("", &long(b'b')));
        assert_ne!(a, b);
        assert_eq!(a.len(), "{=~sha256-}".len() + 64);
        // Not to be had by sending the digest as a value.
        let digest = a.trim_start_matches("{=").trim_end_matches('}');
        assert_ne!(tag("", digest.as_bytes()), a);
    }

    proptest! {
        #[test]
        fn different_clients_have_different_tags(
            a in proptest::collection::vec(any::<u8>(), 0..40),
            b in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            prop_assert_eq!(a == b, tag("", &a) == tag("", &b));
            prop_assert!(tag("", &a).bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
