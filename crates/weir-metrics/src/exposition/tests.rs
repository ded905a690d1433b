use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use crate::books::{Decision, OUTCOMES, REASONS, SOURCES};

const FORMS: [Exposition; 2] = [Exposition::Text, Exposition::OpenMetrics];

fn books(policies: &[&str], has_redis: bool) -> Arc<Books> {
    Arc::new(Books::open(policies.iter().copied(), has_redis).expect("books"))
}

fn told(books: &Arc<Books>, form: Exposition) -> String {
    tell(books, None, form).expect("a text")
}

fn index(names: &[&str], name: &str) -> usize {
    names.iter().position(|&it| it == name).expect(name)
}

fn denied(policy: usize, wait_s: u64) -> Decision {
    Decision {
        policy,
        outcome: index(&OUTCOMES, "denied"),
        took: Some((index(&SOURCES, "redis"), Duration::from_micros(1_500))),
        wait_s: Some(wait_s),
        reason: None,
    }
}

/// The value of the sample that begins with this.
fn value(text: &str, sample: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

/// The samples of the family of this name: each line's labels and value.
fn samples<'a>(text: &'a str, name: &str) -> Vec<(&'a str, f64)> {
    let of_line = |line: &'a str| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
        Some((labels, value.parse().expect("a number")))
    };
    text.lines().filter_map(of_line).collect()
}

#[test]
fn open_metrics_is_told_to_those_who_name_it_and_want_nothing_more() {
    use Exposition::{OpenMetrics, Text};
    for (accept, form) in [
        (None, Text),
        (Some(""), Text),
        (Some("*/*"), Text),
        (Some("application/*"), Text),
        (Some("text/html,application/xml;q=0.9,*/*;q=0.8"), Text),
        (Some("text/plain"), Text),
        (Some("application/json"), Text),
        (Some("application/openmetrics-text"), OpenMetrics),
        (Some("application/openmetrics-text;version=1.0.0;charset=utf-8"), OpenMetrics),
        (Some("application/openmetrics-text;version=0.0.1"), Text),
        (Some("application/openmetrics-text;version=2.0.0,*/*;q=0.1"), Text),
        (Some("application/openmetrics-text;q=0"), Text),
        (Some("application/openmetrics-text;q=0,*/*"), Text),
        (Some("application/openmetrics-text;q=0.5,text/plain;q=0.6"), Text),
        (Some("application/openmetrics-text;q=0.6,text/plain;q=0.5"), OpenMetrics),
        (Some("text/plain, application/openmetrics-text"), OpenMetrics),
        (Some("application/openmetrics-text;q=0.5,*/*"), Text),
        // Prometheus 2.42 and 3.
        (
            Some(
                "application/openmetrics-text;version=1.0.0,\
                 application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            ),
            OpenMetrics,
        ),
        (
            Some(
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                 text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            ),
            OpenMetrics,
        ),
    ] {
        assert_eq!(Exposition::preferred(accept), form, "{accept:?}");
    }
}

#[test]
fn every_outcome_source_and_reason_is_there_from_the_start_at_zero() {
    let books = books(&["from.the-start"], true);
    for form in FORMS {
        let text = told(&books, form);
        for outcome in OUTCOMES {
            let sample = format!("{{policy=\"from.the-start\",outcome=\"{outcome}\"}}");
            assert_eq!(value(&text, &format!("weir_decisions_total{sample}")), Some(0.0));
        }
        assert_eq!(samples(&text, "weir_decision_seconds_count").len(), SOURCES.len());
        assert_eq!(samples(&text, "weir_errors_total").len(), REASONS.len());
        let count = "weir_wait_seconds_count{policy=\"from.the-start\"}";
        assert_eq!(value(&text, count), Some(0.0));
    }
}

#[test]
fn the_two_forms_name_counters_units_and_the_end_each_in_its_own_way() {
    let books = books(&["two_forms"], true);
    books.record(0, &denied(0, 40));
    let plain = told(&books, Exposition::Text);
    assert!(plain.contains("# TYPE weir_decisions_total counter\n"), "{plain}");
    assert!(plain.contains("weir_wait_seconds_bucket{policy=\"two_forms\",le=\"60\"} 1\n"));
    assert!(plain.contains("le=\"1e-06\"}"), "as Prometheus's own clients write it");
    assert!(!plain.contains("# UNIT") && !plain.contains("# EOF"));
    let open = told(&books, Exposition::OpenMetrics);
    assert!(open.contains("# TYPE weir_decisions counter\n"), "{open}");
    assert!(open.contains("# UNIT weir_wait_seconds seconds\n"));
    assert!(open.contains("weir_wait_seconds_bucket{le=\"60.0\",policy=\"two_forms\"} 1\n"));
    assert!(open.ends_with("\n# EOF\n"));
    for text in [&plain, &open] {
        assert_eq!(text.matches("# EOF").count(), usize::from(text == &open));
        assert_eq!(text.matches("# HELP weir_wait_seconds ").count(), 1);
        assert_eq!(value(text, "weir_wait_seconds_sum{policy=\"two_forms\"}"), Some(40.0));
    }
}

#[test]
fn a_histogram_adds_up_and_its_last_bucket_is_the_count() {
    let books = books(&["adds_up"], true);
    for wait_s in [1, 2, 3, 60, 61, 86_400, 86_401] {
        books.record(wait_s as usize, &denied(0, wait_s));
    }
    for form in FORMS {
        let text = told(&books, form);
        let buckets: Vec<f64> = samples(&text, "weir_wait_seconds_bucket")
            .into_iter()
            .filter(|(labels, _)| labels.contains("adds_up"))
            .map(|(_, value)| value)
            .collect();
        assert_eq!(buckets, [1.0, 2.0, 3.0, 3.0, 3.0, 4.0, 5.0, 5.0, 5.0, 5.0, 6.0, 7.0]);
        assert_eq!(value(&text, "weir_wait_seconds_count{policy=\"adds_up\"}"), Some(7.0));
    }
}

/// Set when it is dropped, at the end or by a panic.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_histogram_adds_up_while_others_write() {
    let books = books(&["while_others_write"], true);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = Done(&is_done);
        for stripe in 0..2 {
            let (books, is_done) = (&books, &is_done);
            scope.spawn(move || {
                let mut wait_s = 0;
                while !is_done.load(Ordering::Relaxed) {
                    wait_s = (wait_s * 5 + 1) % 100_000;
                    books.record(stripe, &denied(0, wait_s));
                }
            });
        }
        let mut last = 0.0;
        for round in 0..1_000 {
            let text = told(&books, FORMS[round % 2]);
            let of_it = |name| {
                let samples = samples(&text, name).into_iter();
                samples.filter(|(labels, _)| labels.contains("while_others")).map(|(_, it)| it)
            };
            let buckets: Vec<f64> = of_it("weir_wait_seconds_bucket").collect();
            assert!(buckets.is_sorted(), "{buckets:?}");
            let count: Vec<f64> = of_it("weir_wait_seconds_count").collect();
            assert_eq!(buckets.last(), count.first(), "in one answer");
            assert!(count[0] >= last, "it never decreases");
            last = count[0];
        }
        assert!(last > 0.0);
    });
}

#[test]
fn what_is_not_configured_is_left_out() {
    let books = books(&["left_out"], false);
    let without = told(&books, Exposition::Text);
    assert!(!without.contains("weir_redis_") && !without.contains("weir_memory_"), "{without}");
    let usage = MemoryUsage {
        size_bytes: 33_554_432,
        used_bytes: 4_096,
        entries: 7,
        evicted_expired: 5,
        evicted_least_recently_used: 3,
        resets: 1,
    };
    for form in FORMS {
        let text = tell(&books, Some(usage), form).expect("a text");
        for (sample, expected) in [
            ("weir_memory_size_bytes", 33_554_432.0),
            ("weir_memory_used_bytes", 4_096.0),
            ("weir_memory_entries", 7.0),
            ("weir_memory_evictions_total{reason=\"expired\"}", 5.0),
            ("weir_memory_evictions_total{reason=\"least_recently_used\"}", 3.0),
            ("weir_memory_resets_total", 1.0),
        ] {
            assert_eq!(value(&text, sample), Some(expected), "{sample} in {text}");
        }
    }
}

/// What a policy may be named needs no escapes (`is_name` in weir-core's config);
/// if it did, the text would have them.
#[test]
fn a_label_is_escaped() {
    let books = books(&["a\"b\\c\nd"], false);
    for form in FORMS {
        let text = told(&books, form);
        assert!(text.contains("weir_upstream_429_total{policy=\"a\\\"b\\\\c\\nd\"} 0\n"), "{text}");
    }
}

#[test]
fn what_has_no_index_is_not_counted_and_a_reason_is_then_another() {
    let books = books(&["no_index"], false);
    let before = told(&books, Exposition::Text);
    books.record(
        0,
        &Decision {
            policy: 0,
            outcome: OUTCOMES.len(),
            took: Some((SOURCES.len(), Duration::ZERO)),
            wait_s: None,
            reason: None,
        },
    );
    books.record(0, &denied(1, 1));
    books.record_upstream_429(0, 1);
    let after = told(&books, Exposition::Text);
    let of_it = |line: &&str| line.contains("no_index");
    assert!(after.lines().filter(of_it).eq(before.lines().filter(of_it)), "{after}");
    let other = "weir_errors_total{reason=\"other\"}";
    books.record(0, &Decision { reason: Some(usize::MAX), ..denied(1, 1) });
    let after = value(&told(&books, Exposition::Text), other).expect("it is there");
    assert_eq!(after - value(&before, other).expect("it is there"), 1.0);
}

#[test]
fn another_configuration_keeps_what_a_policy_has_counted_and_forgets_what_is_gone() {
    let first = books(&["kept", "goes"], false);
    first.record(0, &denied(0, 5));
    first.record(0, &denied(1, 5));
    let second = books(&["comes", "kept"], false);
    drop(first);
    second.record(1, &denied(1, 5));
    let text = told(&second, Exposition::Text);
    let denied = |policy| {
        value(&text, &format!("weir_decisions_total{{policy=\"{policy}\",outcome=\"denied\"}}"))
    };
    assert_eq!((denied("kept"), denied("comes"), denied("goes")), (Some(2.0), Some(0.0), None));
}
