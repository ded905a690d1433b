//! Texts that are made for each decision, in memory that is made once.

use std::ops::Range;

/// Texts behind one another in a buffer that is used again and again.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    text: String,
    ranges: Vec<Option<Range<usize>>>,
}

impl Texts {
    /// Forgets all; the memory stays.
    pub fn clear(&mut self) {
        self.text.clear();
        self.ranges.clear();
    }

    /// Appends what `write` appends to the text.
    pub fn push(&mut self, write: impl FnOnce(&mut String)) {
        let begin = self.text.len();
        write(&mut self.text);
        self.ranges.push(Some(begin..self.text.len()));
    }

    /// Appends a number in decimal, or the absence of one.
    pub fn push_number(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.push(|text| text.push_str(itoa::Buffer::new().format(number))),
            None => self.push_absent(),
        }
    }

    /// Appends the absence of a text.
    pub fn push_absent(&mut self) {
        self.ranges.push(None);
    }

    /// All of them, one directly behind the other.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where in [`text`](Self::text) each of them is; `None` for one that is absent.
    pub fn ranges(&self) -> &[Option<Range<usize>>] {
        &self.ranges
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = Option<&str>> {
        self.ranges.iter().map(|range| Some(&self.text[range.clone()?]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_as_it_was_written() {
        let mut texts = Texts::default();
        for _ in 0..2 {
            texts.clear();
            texts.push(|text| text.push_str("one"));
            texts.push_absent();
            texts.push_number(Some(u64::MAX));
            texts.push_number(None);
            texts.push(|_| {});
            let read: Vec<_> = texts.iter().collect();
            assert_eq!(read, [Some("one"), None, Some("18446744073709551615"), None, Some("")]);
        }
    }
}
