//! Structured field values for HTTP (RFC 9651): the part of its syntax that
//! limit headers need, a list of strings with parameters.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The largest integer that a structured field can hold: 15 digits.
pub const MAX_INTEGER: u64 = 999_999_999_999_999;

/// A list that is being appended to a text.
pub struct List<'a> {
    text: &'a mut String,
    is_empty: bool,
}

impl<'a> List<'a> {
    /// An empty list, which has no characters (RFC 9651, section 3.1).
    pub fn new(text: &'a mut String) -> Self {
        Self { text, is_empty: true }
    }

    /// Appends the next member, a string. Characters that no string can hold
    /// (RFC 9651, section 3.3.3) are left out.
    pub fn member(&mut self, name: &str) {
        if !self.is_empty {
            self.text.push_str(", ");
        }
        self.is_empty = false;
        self.text.push('"');
        for c in name.chars().filter(|c| (' '..='~').contains(c)) {
            if matches!(c, '"' | '\\') {
                self.text.push('\\');
            }
            self.text.push(c);
        }
        self.text.push('"');
    }

    /// Appends an integer parameter to the last member; what is above
    /// [`MAX_INTEGER`] is told as that.
    pub fn integer(&mut self, key: &str, value: u64) {
        self.parameter(key);
        self.text.push_str(itoa::Buffer::new().format(value.min(MAX_INTEGER)));
    }

    /// Appends a parameter that is a byte sequence to the last member.
    pub fn byte_sequence(&mut self, key: &str, value: &[u8]) {
        self.parameter(key);
        self.text.push(':');
        STANDARD.encode_string(value, self.text);
        self.text.push(':');
    }

    fn parameter(&mut self, key: &str) {
        self.text.push(';');
        self.text.push_str(key);
        self.text.push('=');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sfv::{BareItem, ListEntry, Parser};

    fn parsed(list: &str) -> Vec<(String, Vec<(String, BareItem)>)> {
        let parsed: sfv::List = Parser::new(list).parse().expect(list);
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
        let mut text = String::from("before");
        let mut list = List::new(&mut text);
        list.member("per-user");
        list.integer("q", 100);
        list.byte_sequence("pk", b"alice");
        list.member("a \"b\" \\ c");
        list.integer("r", u64::MAX);
        let list = text.strip_prefix("before").expect("what was there");
        assert_eq!(
            list,
            "\"per-user\";q=100;pk=:YWxpY2U=:, \"a \\\"b\\\" \\\\ c\";r=999999999999999"
        );
        let members = parsed(list);
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
            let mut text = String::new();
            let mut list = List::new(&mut text);
            for _ in 0..2 {
                list.member(&name);
                list.integer("q", number);
                list.byte_sequence("pk", &bytes);
            }
            for (read, params) in parsed(&text) {
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
