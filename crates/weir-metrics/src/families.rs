//! The metrics, by name: what docs/metrics.md lists.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use weir_shm::MemoryUsage;

use crate::books::Books;
use crate::histogram::Reading;

/// Of a family with one sample.
const NO_LABELS: [(&str, &str); 0] = [];

/// All metrics as they are when it is asked.
#[derive(Debug)]
pub(crate) struct Families {
    pub(crate) books: Arc<Books>,
    /// Of the host's own store, if there is one.
    pub(crate) memory: Option<MemoryUsage>,
}

impl Collector for Families {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut page = Page(encoder);
        self.policies(&mut page)?;
        self.host(&mut page)?;
        if self.books.has_redis {
            self.workers(&mut page)?;
            self.redis(&mut page)?;
        }
        if let Some(memory) = &self.memory {
            write_memory(&mut page, memory)?;
        }
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        page.gauges("weir_build_info", "The version of Weir", None, [(version, 1)])
    }
}

impl Families {
    fn policies(&self, page: &mut Page) -> fmt::Result {
        let policies = || self.books.policies();
        let decisions = policies().flat_map(|(policy, book)| {
            let outcomes: Vec<_> = book.outcomes().collect();
            outcomes
                .into_iter()
                .map(move |(outcome, count)| ([("policy", policy), ("outcome", outcome)], count))
        });
        page.counters("weir_decisions", "Requests by what became of them", decisions)?;
        page.histograms(
            "weir_wait",
            "The waits that refused clients were told",
            Some(&Unit::Seconds),
            policies().map(|(policy, book)| ([("policy", policy)], book.waits())),
        )?;
        page.counters(
            "weir_upstream_429",
            "Answers 429 of the upstream to requests that the policy had let through",
            policies().map(|(policy, book)| ([("policy", policy)], book.upstream_429s())),
        )
    }

    fn host(&self, page: &mut Page) -> fmt::Result {
        page.histograms(
            "weir_decision",
            "What the limiter added to a request, by who decided",
            Some(&Unit::Seconds),
            self.books.times().map(|(source, times)| ([("source", source)], times)),
        )?;
        page.counters(
            "weir_errors",
            "Requests about which nobody could say, by the reason",
            self.books.reasons().map(|(reason, count)| ([("reason", reason)], count)),
        )
    }

    fn workers(&self, page: &mut Page) -> fmt::Result {
        let workers = self.books.workers.read();
        let sum = |gauge: usize| workers.iter().map(|gauges| gauges[gauge]).sum();
        let count = workers.len() as u64;
        page.gauge("weir_workers", "Workers that the gauges tell of", count)?;
        page.gauge("weir_queue_length", "Requests that wait to be sent to Redis", sum(2))?;
        let is_up = count > 0 && sum(0) == count;
        page.gauge("weir_redis_up", "Whether every worker can ask Redis", is_up.into())?;
        page.gauge(
            "weir_redis_servers_away",
            "Servers that cannot be asked, summed over the workers",
            sum(1),
        )
    }

    fn redis(&self, page: &mut Page) -> fmt::Result {
        let books = &self.books;
        let batches = books.batches();
        for (name, help, count) in [
            ("weir_redis_batches", "Script calls", batches.count),
            ("weir_redis_connects", "Connections made", books.connects()),
            ("weir_redis_failed_attempts", "Connections not made", books.failed_attempts()),
            ("weir_redis_redirected", "Calls that a cluster sent elsewhere", books.redirected()),
            ("weir_redis_breaker_opened", "How often a breaker opened", books.breaker_opened()),
        ] {
            page.counters(name, help, [(NO_LABELS, count)])?;
        }
        let help = "Requests for each script call";
        page.histograms("weir_redis_batch_size", help, None, [(NO_LABELS, batches)])
    }
}

fn write_memory(page: &mut Page, memory: &MemoryUsage) -> fmt::Result {
    let size = [(NO_LABELS, memory.size_bytes)];
    let help = "What the host's own store may take";
    page.gauges("weir_memory_size", help, Some(&Unit::Bytes), size)?;
    let used = [(NO_LABELS, memory.used_bytes)];
    page.gauges("weir_memory_used", "What is taken of it", Some(&Unit::Bytes), used)?;
    page.gauge("weir_memory_entries", "Entries in the host's own store", memory.entries)?;
    let evictions = [
        ([("reason", "expired")], memory.evicted_expired),
        ([("reason", "least_recently_used")], memory.evicted_least_recently_used),
    ];
    page.counters("weir_memory_evictions", "Entries that made room for others", evictions)?;
    let help = "Entries lost because a worker died while it wrote them";
    page.counters("weir_memory_resets", help, [(NO_LABELS, memory.resets)])
}

/// What is being written, one family after the other. A counter's name is given
/// without `_total`, and one with a unit without that: the text adds both.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        samples.into_iter().try_for_each(|(labels, count)| {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)
        })
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        samples
            .into_iter()
            .try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.gauges(name, help, None, [(NO_LABELS, value)])
    }

    fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        samples: impl IntoIterator<Item = (L, Reading)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit, MetricType::Histogram)?;
        samples.into_iter().try_for_each(|(labels, Reading { sum, count, buckets })| {
            let mut metric = family.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        })
    }
}
