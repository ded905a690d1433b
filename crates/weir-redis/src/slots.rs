//! The slots of a cluster: which one a key has, and who serves which.

use redis::Value;

use crate::address::Place;

/// How many there are, by the cluster's specification.
pub(crate) const SLOTS: u16 = 16_384;

const CRC: crc::Crc<u16> = crc::Crc::<u16>::new(&crc::CRC_16_XMODEM);

/// The slot of a key: that of its hash tag, where it has one.
pub(crate) fn of(key: &[u8]) -> u16 {
    CRC.checksum(hash_tag(key).unwrap_or(key)) % SLOTS
}

/// What stands between the first `{` and the first `}` behind it, if anything.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let rest = &key[open + 1..];
    let length = rest.iter().position(|&byte| byte == b'}')?;
    (length > 0).then(|| &rest[..length])
}

/// A hash tag of this slot. Found by trying: about as many as there are slots.
pub(crate) fn tag(slot: u16) -> String {
    (0u32..)
        .map(|number| format!("probe-{number}"))
        .find(|tag| CRC.checksum(tag.as_bytes()) % SLOTS == slot)
        .unwrap_or_default()
}

/// Slots that lie together, and the primary that serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Reads what CLUSTER SLOTS answers; `asked` is the host that was asked, which a
/// server that does not know its own address leaves to be known. `None` if it
/// is not an answer to that.
pub(crate) fn read(reply: &Value, asked: &str) -> Option<Vec<Range>> {
    let Value::Array(ranges) = reply else { return None };
    let ranges: Vec<Range> =
        ranges.iter().map(|range| read_range(range, asked)).collect::<Option<_>>()?;
    (!ranges.is_empty()).then_some(ranges)
}

fn read_range(range: &Value, asked: &str) -> Option<Range> {
    let Value::Array(fields) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &fields[..] else {
        return None;
    };
    let [host, Value::Int(port), ..] = &primary[..] else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        Value::Nil => "",
        _ => return None,
    };
    let slot = |number: i64| u16::try_from(number).ok().filter(|&slot| slot < SLOTS);
    Some(Range {
        first: slot(*first)?,
        last: slot(*last)?,
        // "?": its host name is not known to the server that was asked.
        host: if matches!(host, "" | "?") { asked } else { host }.to_owned(),
        port: u16::try_from(*port).ok().filter(|&port| port > 0)?,
    })
}

/// Where MOVED or ASK sends to: `host:port`, the host left out by a server that
/// does not know its own.
pub(crate) fn redirection(address: &str, asked: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_matches(['[', ']']);
    let host = if matches!(host, "" | "?") { asked } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

impl Place {
    /// Whether it is this one.
    pub(crate) fn is_at(&self, host: &str, port: u16) -> bool {
        matches!(self, Self::Tcp { host: own, port: own_port }
            | Self::Tls { host: own, port: own_port } if own == host && *own_port == port)
    }

    /// Its host; empty of a Unix socket.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Tcp { host, .. } | Self::Tls { host, .. } => host,
            Self::Unix(_) => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of Redis's cluster specification, and `CLUSTER KEYSLOT`.
    #[test]
    fn a_key_has_the_slot_that_redis_gives_it() {
        assert_eq!(CRC.checksum(b"123456789"), 0x31C3);
        assert_eq!(of(b"foo"), 12_182);
        assert_eq!(of(b"{user1000}.following"), of(b"{user1000}.followers"));
        assert_eq!(of(b"foo{}{bar}"), CRC.checksum(b"foo{}{bar}") % SLOTS);
        assert_eq!(of(b"foo{{bar}}zap"), CRC.checksum(b"{bar") % SLOTS);
        assert_eq!(of(b"foo{bar}{zap}"), of(b"bar"));
        assert_eq!(of(b"weir:{$remote_addr=192.0.2.7}:api:log:1m"), of(b"$remote_addr=192.0.2.7"));
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in [0, 1, 8_191, 16_383] {
            assert_eq!(of(format!("weir:{{{}}}:x", tag(slot)).as_bytes()), slot);
        }
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), bulk("id"), Value::Array(vec![])]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
    }

    #[test]
    fn a_map_is_read_as_it_is_answered() {
        let reply = Value::Array(vec![
            range(0, 5_460, bulk("10.0.0.1"), 7_000),
            range(5_461, 16_383, bulk(""), 7_001),
            range(9, 9, Value::Nil, 7_002),
        ]);
        let places: Vec<_> = read(&reply, "asked")
            .expect("a map")
            .into_iter()
            .map(|range| (range.first, range.last, range.host, range.port))
            .collect();
        assert_eq!(
            places,
            [
                (0, 5_460, "10.0.0.1".to_owned(), 7_000),
                (5_461, 16_383, "asked".to_owned(), 7_001),
                (9, 9, "asked".to_owned(), 7_002),
            ]
        );
    }

    #[test]
    fn what_is_no_map_is_none() {
        for reply in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16_384, bulk("a"), 1)]),
            Value::Array(vec![range(-1, 5, bulk("a"), 1)]),
            Value::Array(vec![range(0, 5, bulk("a"), 0)]),
            Value::Array(vec![range(0, 5, Value::Int(3), 1)]),
        ] {
            assert_eq!(read(&reply, "asked"), None, "{reply:?}");
        }
    }

    #[test]
    fn a_redirection_names_a_server() {
        let to = |address| redirection(address, "asked");
        assert_eq!(to("10.0.0.1:7000"), Some(("10.0.0.1".to_owned(), 7_000)));
        assert_eq!(to(":7000"), Some(("asked".to_owned(), 7_000)));
        assert_eq!(to("2001:db8::1:7000"), Some(("2001:db8::1".to_owned(), 7_000)));
        assert_eq!(to("nowhere"), None);
    }
}
