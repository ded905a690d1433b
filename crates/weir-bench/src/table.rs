//! The report as it is read: on a terminal, and in the docs.

use crate::contenders::BASE;
use crate::summary::{Comparison, Row, Spread};
use crate::targets::{Bound, Verdict};

/// Rows of as many cells as there are columns.
pub struct Table {
    title: String,
    columns: &'static [&'static str],
    /// How many of them, from the left, are words.
    words: usize,
    rows: Vec<Vec<String>>,
}

const FIGURES: &[&str] = &[
    "contender",
    "requests/s",
    "of no limiter",
    "of EVAL",
    "p50 µs",
    "p99 µs",
    "worker CPU µs",
    "Redis CPU µs",
    "limiter CPU µs",
    "of EVAL",
    "script calls",
    "commands",
];

const TARGETS: &[&str] = &["figure", "contender", "under", "measured", "target", "verdict"];

impl Table {
    /// With so many columns of words on the left.
    pub fn new(
        title: &str,
        columns: &'static [&'static str],
        words: usize,
        rows: Vec<Vec<String>>,
    ) -> Self {
        Self { title: title.to_owned(), columns, words, rows }
    }

    /// A row for each contender.
    pub fn of_comparison(comparison: &Comparison) -> Self {
        let rows = comparison.rows.iter().map(figures).collect();
        Self { title: comparison.group.to_string(), columns: FIGURES, words: 1, rows }
    }

    /// A row for each target that was measured.
    pub fn of_targets(verdicts: &[Verdict]) -> Self {
        let title = "Targets; the median counts".to_owned();
        let rows = verdicts.iter().map(target).collect();
        Self { title, columns: TARGETS, words: 3, rows }
    }

    /// Columns under their names, which are broken where they have a space.
    pub fn terminal(&self) -> String {
        let lines = |name: &str| -> Vec<String> { name.split(' ').map(str::to_owned).collect() };
        let names: Vec<Vec<String>> = self.columns.iter().map(|name| lines(name)).collect();
        let height = names.iter().map(Vec::len).max().unwrap_or(0);
        // The last lines of all names stand side by side.
        let heads = (0..height).map(|line| {
            let of_name = |name: &Vec<String>| {
                let line = (line + name.len()).checked_sub(height)?;
                name.get(line).cloned()
            };
            names.iter().map(|name| of_name(name).unwrap_or_default()).collect::<Vec<_>>()
        });
        let all: Vec<Vec<String>> = heads.chain(self.rows.iter().cloned()).collect();
        let width = |column: usize| {
            all.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = format!("\n{}\n", self.title);
        for row in &all {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let width = widths[column];
                if column < self.words {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// As Markdown has it, with a heading of this level.
    pub fn markdown(&self, level: usize) -> String {
        let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let names: Vec<String> = self.columns.iter().map(|&name| name.to_owned()).collect();
        let rule = "|---".repeat(self.columns.len());
        let rows: String = self.rows.iter().map(|cells| row(cells)).collect();
        let heading = "#".repeat(level);
        format!("\n{heading} {}\n\n{}{rule}|\n{rows}", self.title, row(&names))
    }
}

fn figures(row: &Row) -> Vec<String> {
    let is_base = row.id == BASE;
    let unless_base = |text: String| if is_base { String::new() } else { text };
    vec![
        row.name.to_owned(),
        spread(row.rate, whole),
        format!("{:.2}", row.rate_to_none.median),
        format!("{:.2}", row.rate_to_glue.median),
        whole(row.p50_us.median),
        whole(row.p99_us.median),
        format!("{:.1}", row.worker_us.median),
        some(row.redis_us.median, 1),
        unless_base(spread(row.limiter_us, |value| format!("{value:.1}"))),
        unless_base(format!("{:.2}", row.limiter_to_glue.median)),
        some(row.script_calls.median, 3),
        some(row.script_calls.median + row.in_scripts.median, 2),
    ]
}

fn target(verdict: &Verdict) -> Vec<String> {
    // Ratios, and microseconds.
    let places = if verdict.measured.median < 10.0 { 3 } else { 0 };
    vec![
        verdict.figure.to_owned(),
        verdict.contender.clone(),
        verdict.under.clone(),
        spread(verdict.measured, |value| format!("{value:.places$}")),
        match verdict.target {
            Bound::AtMost(most) => format!("at most {most}"),
            Bound::AtLeast(least) => format!("at least {least}"),
        },
        if verdict.is_met { "met" } else { "NOT MET" }.to_owned(),
    ]
}

/// As `41.2 (40.9..42.0)`; of one round as `41.2`.
pub fn spread(spread: Spread, number: impl Fn(f64) -> String) -> String {
    let Spread { median, least, most } = spread;
    if least == most {
        return number(median);
    }
    format!("{} ({}..{})", number(median), number(least), number(most))
}

/// As `12,345`.
pub fn whole(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Nothing for what rounds to nothing.
fn some(value: f64, places: usize) -> String {
    let text = format!("{value:.places$}");
    if text.chars().all(|c| c == '0' || c == '.') { String::new() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Group;
    use crate::{summary, targets};

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!([7.0, 999.6, 1234567.0].map(whole), ["7", "1,000", "1,234,567"]);
    }

    #[test]
    fn what_did_not_happen_is_left_empty() {
        assert_eq!(some(0.0004, 3), "");
        assert_eq!(some(0.0006, 3), "0.001");
    }

    #[test]
    fn a_table_has_medians_spread_and_ratios() {
        let group = Group { workers: 1, clients: 1000, connections: 64 };
        let measured = summary::tests::comparison(group);
        let table = Table::of_comparison(&measured);
        let text = table.terminal();
        let line = text.lines().find(|line| line.starts_with("Weir, sliding-log")).unwrap();
        let words: Vec<&str> = line.split_whitespace().skip(2).collect();
        assert_eq!(words[..4], ["37,500", "(25,000..50,000)", "0.50", "2.50"], "{line}");
        assert!(
            table.markdown(2).contains("\n| Weir, sliding-log | 37,500 (25,000..50,000) | 0.50")
        );
        let text = Table::of_targets(&targets::judge(&[measured], None)).terminal();
        assert!(text.contains("  0.250   at most 0.33      met\n"), "{text}");
    }

    #[test]
    fn columns_stand_below_their_names() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()]];
        let columns = &["who", "of no limiter"];
        let table = Table { title: "T".to_owned(), columns, words: 1, rows };
        assert_eq!(
            table.terminal(),
            "\nT\n          of\n          no\nwho  limiter\na          1\n"
        );
    }
}
