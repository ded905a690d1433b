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
//! reach into the next part or carry a control character. A key of several
//! parts has them apart by `&`, in SOURCE and in VALUE, which no escaped part
//! contains. A value longer than [`MAX_VALUE`] bytes is named by its SHA-256, so
//! that no client decides how long a key is. Under `hash_keys` every value is
//! named by its HMAC-SHA256 (RFC 2104), and cannot be read or tried out without
//! the secret.

use std::fmt;
use std::io::Write as _;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// The longest value that is kept as it is, in bytes before escaping.
pub const MAX_VALUE: usize = 512;

/// The longest partition key, in bytes: clients decide about its length, and it
/// stands in a header for each limit, twice.
pub const MAX_PARTITION_KEY: usize = 64;

/// The shortest secret, in bytes: the strength of a key of 128 bits, if it is
/// random.
pub const MIN_SECRET: usize = 16;

/// What identities are hashed with. Shows itself to nobody.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl Secret {
    /// `None` if it is shorter than [`MIN_SECRET`].
    pub fn new(secret: &[u8]) -> Option<Self> {
        let mac = Hmac::new_from_slice(secret).ok()?;
        (secret.len() >= MIN_SECRET).then_some(Self(mac))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What names a client, of bounded size whatever the client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value itself.
    Plain(Box<[u8]>),
    /// Those of a key of several parts.
    Parts(Box<[Box<[u8]>]>),
    /// The SHA-256 of longer ones.
    Digest(Hash),
    /// Their HMAC-SHA256.
    Keyed(Hash),
}

/// The hash of a value, or of several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash {
    bytes: [u8; 32],
    /// A key says it: what is hashed of a single value can be what is hashed of
    /// several parts.
    parts: usize,
}

impl Value {
    /// The client that these parts name, under a secret if there is one.
    pub fn new(parts: &[&[u8]], secret: Option<&Secret>) -> Self {
        match secret {
            Some(Secret(mac)) => {
                let mut mac = mac.clone();
                each_piece(parts, |piece| mac.update(piece));
                Self::Keyed(Hash { bytes: mac.finalize().into_bytes().into(), parts: parts.len() })
            }
            None if parts.iter().map(|part| part.len()).sum::<usize>() <= MAX_VALUE => {
                match parts {
                    [value] => Self::Plain((*value).into()),
                    _ => Self::Parts(parts.iter().map(|&part| part.into()).collect()),
                }
            }
            None => {
                let mut hash = Sha256::new();
                each_piece(parts, |piece| hash.update(piece));
                Self::Digest(Hash { bytes: hash.finalize().into(), parts: parts.len() })
            }
        }
    }

    /// What tells clients apart, for those who are told it, at most
    /// [`MAX_PARTITION_KEY`] bytes: the value, several parts as in the key; of a
    /// longer one its SHA-256; under a secret its hash.
    pub fn partition_key(&self) -> Vec<u8> {
        let text = match self {
            Self::Plain(value) => value.to_vec(),
            Self::Parts(parts) => {
                let mut text = Vec::new();
                write_parts(&mut text, parts);
                text
            }
            Self::Digest(hash) | Self::Keyed(hash) => hash.bytes.to_vec(),
        };
        if text.len() > MAX_PARTITION_KEY { Sha256::digest(&text).to_vec() } else { text }
    }
}

impl From<&[u8]> for Value {
    fn from(value: &[u8]) -> Self {
        Self::new(&[value], None)
    }
}

/// What is hashed: a single part as it is; of several, each behind its length in
/// eight bytes (little-endian), so that no two lists read alike.
fn each_piece(parts: &[&[u8]], mut each: impl FnMut(&[u8])) {
    if let [value] = parts {
        return each(value);
    }
    for part in parts {
        each(&(part.len() as u64).to_le_bytes());
        each(part);
    }
}

/// Appends `{SOURCE=VALUE}`: the part of a key that says whom it is for.
/// `source` is written as it is: see [`escape`].
pub fn write_tag(key: &mut Vec<u8>, source: &[u8], value: &Value) {
    key.push(b'{');
    key.extend_from_slice(source);
    key.push(b'=');
    match value {
        Value::Plain(value) => escape(key, value),
        Value::Parts(parts) => write_parts(key, parts),
        // `~` is escaped in plain values, so no plain value reads like these.
        Value::Digest(hash) => write_hash(key, "~sha256", hash),
        Value::Keyed(hash) => write_hash(key, "~hmac", hash),
    }
    key.push(b'}');
}

/// Appends parts, each escaped, with `&` between them.
pub fn write_parts<T: AsRef<[u8]>>(out: &mut Vec<u8>, parts: &[T]) {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.push(b'&');
        }
        escape(out, part.as_ref());
    }
}

/// `~hmac-HEX`, of two parts `~hmac2-HEX`.
fn write_hash(key: &mut Vec<u8>, kind: &str, hash: &Hash) {
    // Writing to a vector cannot fail.
    let _ = match hash.parts {
        1 => write!(key, "{kind}-"),
        parts => write!(key, "{kind}{parts}-"),
    };
    for byte in hash.bytes {
        let _ = write!(key, "{byte:02x}");
    }
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
        tag_of(source, &Value::from(value))
    }

    fn tag_of(source: &str, value: &Value) -> String {
        let (mut escaped, mut key) = (Vec::new(), Vec::new());
        escape(&mut escaped, source.as_bytes());
        write_tag(&mut key, &escaped, value);
        String::from_utf8(key).expect("tags are ASCII")
    }

    fn parts(parts: &[&str]) -> String {
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        tag_of("", &Value::new(&parts, None))
    }

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes()).expect("long enough")
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

    #[test]
    fn parts_are_apart_whatever_they_contain() {
        assert_eq!(parts(&["example.org", "k&y"]), "{=example.org&k%26y}");
        assert_ne!(parts(&["a&b", "c"]), parts(&["a", "b&c"]));
        assert_ne!(parts(&["ab", "c"]), parts(&["a", "bc"]));
        assert_ne!(parts(&["a", "", "b"]), parts(&["a", "b", ""]));
        // Also where they are hashed.
        let long = "x".repeat(MAX_VALUE);
        assert_ne!(parts(&[&long, "ab", "c"]), parts(&[&long, "a", "bc"]));
        assert!(parts(&[&long, "a"]).starts_with("{=~sha2562-"));
        let keyed = |parts: &[&[u8]]| Value::new(parts, Some(&secret("0123456789abcdef")));
        assert_ne!(keyed(&[b"ab", b"c"]), keyed(&[b"a", b"bc"]));
        // Also a single value that reads as several parts are hashed.
        let single = keyed(&[b"\x01\0\0\0\0\0\0\0a\x01\0\0\0\0\0\0\0b"]);
        assert_ne!(tag_of("", &keyed(&[b"a", b"b"])), tag_of("", &single));
    }

    /// RFC 4231, test case 2, with its key made long enough; the value was
    /// computed with `openssl dgst -sha256 -hmac`.
    #[test]
    fn a_keyed_hash_is_the_hmac_of_the_value() {
        let value =
            Value::new(&[b"what do ya want for nothing?"], Some(&secret("JefeJefeJefeJefe")));
        assert_eq!(
            tag_of("$http_x_key", &value),
            "{$http_x_key=~hmac-2ccd85dfc8d18cb5d84fef4b198554699fece6e8692c9147b0da983f5b7bd413}"
        );
        let other =
            Value::new(&[b"what do ya want for nothing?"], Some(&secret("JefeJefeJefeJefE")));
        assert_ne!(value, other);
        assert_eq!(value.partition_key().len(), 32);
    }

    #[test]
    fn a_short_secret_is_none_and_none_is_shown() {
        assert!(Secret::new(b"0123456789abcde").is_none());
        assert_eq!(format!("{:?}", secret("0123456789abcdef")), "Secret");
    }

    #[test]
    fn a_partition_key_is_what_the_client_knows() {
        assert_eq!(Value::from(&b"alice"[..]).partition_key(), b"alice");
        assert_eq!(Value::new(&[b"a&", b"b"], None).partition_key(), b"a%26&b");
        assert_eq!(Value::from(&[b'x'; 64][..]).partition_key().len(), 64);
        assert_eq!(Value::from(&[b'x'; 65][..]).partition_key().len(), 32);
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
