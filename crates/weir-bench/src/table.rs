//! The report as it is read on a terminal.

use std::fmt::Write as _;

use crate::contenders::BASE;
use crate::summary::{Comparison, Row, Spread};
use crate::targets::{Bound, Verdict};

/// One table: a line for each contender.
pub fn comparison(comparison: &Comparison) -> String {
    let mut text = format!("\n{}\n", comparison.group);
    let _ = writeln!(
        text,
        "{:<32} {:>24} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>18} {:>7} {:>8} {:>8}",
        "",
        "",
        "of no",
        "of",
        "p50",
        "p99",
        "worker",
        "Redis",
        "limiter CPU",
        "of",
        "script",
        "com-"
    );
    let _ = writeln!(
        text,
        "{:<32} {:>24} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>18} {:>7} {:>8} {:>8}",
        "contender",
        "requests/s",
        "limiter",
        "EVAL",
        "µs",
        "µs",
        "CPU µs",
        "CPU µs",
        "µs",
        "EVAL",
        "calls",
        "mands"
    );
    for row in &comparison.rows {
        text.push_str(line(row).trim_end());
        text.push('\n');
    }
    text
}

fn line(row: &Row) -> String {
    let is_base = row.id == BASE;
    let unless_base = |text: String| if is_base { String::new() } else { text };
    format!(
        "{:<32} {:>24} {:>7.2} {:>7.2} {:>8.0} {:>8.0} {:>8.1} {:>8} {:>18} {:>7} {:>8} {:>8}",
        row.name,
        spread(row.rate, whole),
        row.rate_to_none.median,
        row.rate_to_glue.median,
        row.p50_us.median,
        row.p99_us.median,
        row.worker_us.median,
        some(row.redis_us.median, 1),
        unless_base(spread(row.limiter_us, |value| format!("{value:.1}"))),
        unless_base(format!("{:.2}", row.limiter_to_glue.median)),
        some(row.script_calls.median, 3),
        some(row.script_calls.median + row.in_scripts.median, 2),
    )
}

/// The targets, each with what was measured.
pub fn targets(verdicts: &[Verdict]) -> String {
    if verdicts.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nTargets (1000 clients, 1 worker; the median counts)\n");
    let _ = writeln!(
        text,
        "{:<28} {:<32} {:>11} {:>20} {:>10}",
        "", "", "connections", "measured", "target"
    );
    for verdict in verdicts {
        let target = match verdict.target {
            Bound::AtMost(most) => format!("<= {most}"),
            Bound::AtLeast(least) => format!(">= {least}"),
        };
        let _ = writeln!(
            text,
            "{:<28} {:<32} {:>11} {:>20} {:>10}  {}",
            verdict.figure,
            verdict.contender,
            verdict.connections,
            spread(verdict.measured, |value| format!("{value:.3}")),
            target,
            if verdict.is_met { "met" } else { "NOT MET" },
        );
    }
    text
}

/// As `41.2 (40.9..42.0)`; of one round as `41.2`.
fn spread(spread: Spread, number: impl Fn(f64) -> String) -> String {
    let Spread { median, least, most } = spread;
    if least == most {
        return number(median);
    }
    format!("{} ({}..{})", number(median), number(least), number(most))
}

/// As `12,345`.
fn whole(value: f64) -> String {
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
        let text = comparison(&measured);
        let line = text.lines().find(|line| line.starts_with("Weir, sliding-log")).unwrap();
        let words: Vec<&str> = line.split_whitespace().skip(2).collect();
        assert_eq!(words[..4], ["37,500", "(25,000..50,000)", "0.50", "2.50"], "{line}");
        let text = super::targets(&targets::judge(&[measured]));
        assert!(text.contains(" 0.250    <= 0.33  met"), "{text}");
    }
}
