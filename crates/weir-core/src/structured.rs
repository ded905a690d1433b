//! Structured field values for HTTP (RFC 9651): the part of its syntax that
//! limit headers need, a list of strings with parameters.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The largest integer that a structured field can hold: 15 digits.
pub const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Appends a list's next member, a string. Characters that no string can hold
/// (RFC 9651, section 3.3.3) are left out.
pub fn member(list: &mut String, name: &str) {
    if !list.is_empty() {
        list.push_str(", ");
    }
    list.push('"');
    for c in name.chars().filter(|c| (' '..='~').contains(c)) {
        if matches!(c, '"' | '\\') {
            list.push('\\');
        }
        list.push(c);
    }
    list.push('"');
}

/// Appends an integer parameter to the last member; what is above
/// [`MAX_INTEGER`] is told as that.
pub fn integer(list: &mut String, key: &str, value: u64) {
    parameter(list, key);
    list.push_str(&value.min(MAX_INTEGER).to_string());
}

/// Appends a parameter that is a byte sequence to the last member.
pub fn byte_sequence(list: &mut String, key: &str, value: &[u8]) {
    parameter(list, key);
    list.push(':');
    STANDARD.encode_string(value, list);
    list.push(':');
}

fn parameter(list: &mut String, key: &str) {
    list.push(';');
    list.push_str(key);
    list.push('=');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sfv::{BareItem, List, ListEntry, Parser};

    fn parsed(list: &str) -> Vec<(String, Vec<(String, BareItem)>)> {
        let parsed: List = Parser::new(list).parse().expect(list);
        let entry = |entry: ListEntry| match entry {
            ListEntry::Item(item) => {
                let BareItem::String(name) = item.bare_item else { panic!("no string: {list}") };
                let params = item.params.into_iter();
                let params = params.map(|(key, value)| (key.as_str().to_owned(), value));
                (name.as_str().to_owned(), params.collect())
            }
            ListEntry::InnerList(_) => panic!("an inner list: {list}"),
        };
        parsed.into_iter().map(entry).collect()
    }

    #[test]
    fn a_list_is_read_as_it_was_meant() {
        let mut list = String::new();
        member(&mut list, "per-user");
        integer(&mut list, "q", 100);
        byte_sequence(&mut list, "pk", b"alice");
        member(&mut list, "a \"b\" \\ c");
        integer(&mut list, "r", u64::MAX);
        assert_eq!(
            list,
            "\"per-user\";q=100;pk=:YWxpY2U=:, \"a \\\"b\\\" \\\\ c\";r=999999999999999"
        );
        let members = parsed(&list);
        assert_eq!(members[0].0, "per-user");
        assert_eq!(members[0].1[0], ("q".to_owned(), BareItem::Integer(100.into())));
        assert_eq!(members[0].1[1], ("pk".to_owned(), BareItem::ByteSequence(b"alice".to_vec())));
        assert_eq!(members[1].0, "a \"b\" \\ c");
    }

    proptest! {
        #[test]
        fn whatever_stands_in_it_a_list_can_be_read(
            name in ".*",
            number in any::<u64>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut list = String::new();
            for _ in 0..2 {
                member(&mut list, &name);
                integer(&mut list, "q", number);
                byte_sequence(&mut list, "pk", &bytes);
            }
            for (read, params) in parsed(&list) {
                let printable = |c: &char| (' '..='~').contains(c);
                prop_assert_eq!(read, name.chars().filter(printable).collect::<String>());
                let number = i64::try_from(number.min(MAX_INTEGER)).expect("15 digits");
                let number = sfv::Integer::try_from(number).expect("15 digits");
                prop_assert_eq!(&params[0].1, &BareItem::Integer(number));
                prop_assert_eq!(&params[1].1, &BareItem::ByteSequence(bytes.clone()));
            }
        }
    }
}
