//! A policy under one plan as the script and its keys need it, and a request
//! under it.

use std::time::Instant;

use crate::slots;
use weir_core::identity::{self, Value};
use weir_core::policy::KeySource;
use weir_core::{KeyRule, Limit, Policy, Rate, Timestamp, time};

/// A policy under one plan, prepared once: everything about a request under it
/// that does not change from request to request.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The names of its keys, escaped.
    sources: Vec<Vec<u8>>,
    /// The limits as ARGV has them, each behind a space.
    limits_text: String,
    /// The text of a request of cost 1, by far the most common.
    unit_text: String,
    key_suffixes: Vec<String>,
    limits: Vec<Limit>,
}

/// Where the value that names a client came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The policy's key of this index, from 0.
    Template(usize),
    /// A key function, or a key given for this request.
    Given,
    /// The client's address, because everything else was empty.
    Address,
}

/// The key under which an address stands that was fallen back to.
const ADDRESS: &[u8] = b"$remote_addr";

/// What is to be done under a rule's limits. Costs are in units, up to
/// [`MAX_LIMIT`](weir_core::rate::MAX_LIMIT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Decide, and charge if there is room.
    Decide {
        /// From 0, which looks without charging.
        cost: u64,
    },
    /// Charge a request that has passed what it was found to cost, whether there
    /// is room or not.
    Charge {
        /// From 1. Above [`MAX_LOG_COST`](weir_core::limit::MAX_LOG_COST) a rule
        /// with a log fails, and nothing is charged.
        cost: u64,
    },
    /// Give back what a request was charged and need not have been.
    Refund {
        /// From 1.
        cost: u64,
        /// The time of the call that charged it:
        /// [`Decided::at`](crate::Decided::at).
        charged_at: Timestamp,
    },
}

impl Operation {
    /// Whether somebody waits for it.
    pub fn is_decision(self) -> bool {
        matches!(self, Self::Decide { .. })
    }
}

/// One request to decide, or to settle afterwards.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Names the answer. Unique among the requests under way.
    pub ticket: u64,
    /// The index of its [`Rule`].
    pub rule: usize,
    /// Where `value` came from.
    pub source: Source,
    /// Whom it counts for.
    pub value: Value,
    /// What to do.
    pub operation: Operation,
    /// Not sent after this time.
    pub deadline: Instant,
}

impl Rule {
    /// Prepares a policy under these limits: its own, or those of a plan.
    pub fn new(policy: &Policy, limits: &[Limit]) -> Self {
        let sources = match &policy.key {
            KeyRule::Sources(sources) => sources.iter().map(KeySource::escaped).collect(),
            KeyRule::Function => Vec::new(),
        };
        let limits_text: String = limits.iter().map(|limit| format!(" {}", text(limit))).collect();
        let budget = policy.budget();
        Self {
            sources,
            unit_text: format!("1{limits_text}"),
            limits_text,
            key_suffixes: limits
                .iter()
                .map(|limit| format!("{budget}:{}", limit.key_suffix()))
                .collect(),
            limits: limits.to_vec(),
        }
    }

    /// Its limits, in the order of keys and replies.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// About how long the script takes for this, in microseconds.
    pub fn work_us(&self, operation: Operation) -> u64 {
        const LIMIT: u64 = 8;
        const ENTRY: u64 = 1;
        const MOVED: u64 = 64;
        let entries = |limit: &Limit| match operation {
            Operation::Decide { cost } => limit.entries(cost),
            Operation::Charge { cost } | Operation::Refund { cost, .. } => {
                limit.entries_afterwards(cost)
            }
        };
        // What is given back is taken out of the middle of a ring.
        let moved = |limit: &Limit| match (limit, operation) {
            (Limit::CompactLog(_), Operation::Refund { .. }) => limit.capacity() / MOVED,
            _ => 0,
        };
        self.limits.iter().map(|limit| LIMIT + ENTRY * entries(limit) + moved(limit)).sum()
    }

    /// Behind the client's [tag](Self::write_tag), what its keys end with: one for
    /// each limit.
    pub fn key_suffixes(&self) -> &[String] {
        &self.key_suffixes
    }

    /// Appends what tells this client from others: the hash tag of its keys.
    pub fn write_tag(&self, source: Source, value: &Value, key: &mut Vec<u8>) {
        let source = match source {
            Source::Template(index) => self.sources.get(index).map_or(&b""[..], Vec::as_slice),
            Source::Given => b"",
            Source::Address => ADDRESS,
        };
        identity::write_tag(key, source, value);
    }

    /// Calls `each` with the key of every limit for this client, built in
    /// `scratch`. See [`weir_core::identity`] for its form.
    pub fn keys(
        &self,
        prefix: &str,
        source: Source,
        value: &Value,
        scratch: &mut Vec<u8>,
        mut each: impl FnMut(&[u8]),
    ) {
        scratch.clear();
        scratch.extend_from_slice(prefix.as_bytes());
        scratch.push(b':');
        self.write_tag(source, value, scratch);
        scratch.push(b':');
        let stem = scratch.len();
        for suffix in &self.key_suffixes {
            scratch.truncate(stem);
            scratch.extend_from_slice(suffix.as_bytes());
            each(scratch);
        }
    }

    /// The slot of a cluster that this client's keys lie in: one for all.
    pub(crate) fn slot(
        &self,
        prefix: &str,
        source: Source,
        value: &Value,
        scratch: &mut Vec<u8>,
    ) -> u16 {
        let mut slot = 0;
        self.keys(prefix, source, value, scratch, |key| slot = slots::of(key));
        slot
    }

    /// Calls `each` with what ARGV says of this.
    pub fn text<T>(&self, operation: Operation, each: impl FnOnce(&str) -> T) -> T {
        let limits = &self.limits_text;
        match operation {
            Operation::Decide { cost: 1 } => each(&self.unit_text),
            Operation::Decide { cost } => each(&format!("{cost}{limits}")),
            Operation::Charge { cost } => each(&format!("+{cost}{limits}")),
            Operation::Refund { cost, charged_at } => {
                each(&format!("-{cost}@{}{limits}", charged_at.as_micros()))
            }
        }
    }
}

/// A limit as ARGV has it.
fn text(limit: &Limit) -> String {
    let tag = limit.tag();
    let rate = |rate: &Rate| format!("{tag}:{}:{}", rate.limit(), time::micros(rate.window()));
    match limit {
        Limit::SlidingLog(log) | Limit::CompactLog(log) => rate(log),
        Limit::SlidingCounter(counter) => rate(counter),
        Limit::TokenBucket(bucket) => format!("{}:{}", rate(&bucket.rate()), bucket.burst()),
        Limit::Quota(quota) => format!("{tag}:{}:{}", quota.limit(), quota.period().word()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::Template;
    use weir_core::limit::BucketRate;

    fn policy() -> Policy {
        let rate = |text: &str| text.parse().expect(text);
        let bucket = BucketRate::new(rate("5/1s"), 9).expect("a bucket");
        let limits = vec![
            Limit::SlidingLog(rate("100/60s")),
            Limit::CompactLog(rate("100/60s")),
            Limit::SlidingCounter(rate("100/60s")),
            Limit::TokenBucket(bucket),
            Limit::Quota("7/month".parse().expect("a quota")),
        ];
        let user = Template::parse("$http_x_user").expect("a template");
        let tenant = Template::parse("$host").expect("a template");
        let sources = vec![KeySource(vec![user.clone()]), KeySource(vec![tenant, user])];
        Policy { key: KeyRule::Sources(sources), ..Policy::new("api", limits) }
    }

    fn rule() -> Rule {
        let policy = policy();
        Rule::new(&policy, &policy.limits)
    }

    fn keys(rule: &Rule, source: Source, value: &[u8]) -> Vec<String> {
        let mut keys = Vec::new();
        rule.keys("weir", source, &Value::from(value), &mut Vec::new(), |key| {
            keys.push(String::from_utf8(key.to_vec()).expect("keys are ASCII"));
        });
        keys
    }

    #[test]
    fn the_limits_of_a_request_have_keys_of_one_hash_tag() {
        assert_eq!(
            keys(&rule(), Source::Template(0), b"al ice"),
            [
                "weir:{$http_x_user=al%20ice}:api:log:1m",
                "weir:{$http_x_user=al%20ice}:api:ring:1m",
                "weir:{$http_x_user=al%20ice}:api:counter:1m",
                "weir:{$http_x_user=al%20ice}:api:bucket:1s",
                "weir:{$http_x_user=al%20ice}:api:quota:month",
            ]
        );
    }

    #[test]
    fn the_parts_of_a_key_stand_apart() {
        let mut keys = Vec::new();
        let value = Value::new(&[b"example.org", b"al&ice"], None);
        rule().keys("weir", Source::Template(1), &value, &mut Vec::new(), |key| {
            keys.push(String::from_utf8(key.to_vec()).expect("keys are ASCII"));
        });
        assert_eq!(keys[0], "weir:{$host&$http_x_user=example.org&al%26ice}:api:log:1m");
    }

    /// C20: a bucket is shared by its name, and is no policy's.
    #[test]
    fn a_bucket_is_no_policy_of_that_name() {
        let mut shared = policy();
        shared.bucket = Some("api".to_owned());
        let of = |policy: &Policy| {
            keys(&Rule::new(policy, &policy.limits), Source::Given, b"x").remove(0)
        };
        assert_eq!(of(&policy()), "weir:{=x}:api:log:1m");
        assert_eq!(of(&shared), "weir:{=x}:@api:log:1m");
    }

    /// C19: a header cannot name another client's address.
    #[test]
    fn a_value_counts_apart_by_where_it_came_from() {
        let of = |source| keys(&rule(), source, b"192.0.2.7").remove(0);
        assert_eq!(of(Source::Address), "weir:{$remote_addr=192.0.2.7}:api:log:1m");
        assert_eq!(of(Source::Given), "weir:{=192.0.2.7}:api:log:1m");
        assert_ne!(of(Source::Address), of(Source::Template(0)));
    }

    #[test]
    fn a_request_is_one_text() {
        let text = |operation| rule().text(operation, str::to_owned);
        let limits = "log:100:60000000 ring:100:60000000 counter:100:60000000 \
                      bucket:5:1000000:9 quota:7:month";
        for cost in [0, 1, 2] {
            assert_eq!(text(Operation::Decide { cost }), format!("{cost} {limits}"));
        }
        assert_eq!(text(Operation::Charge { cost: 1 }), format!("+1 {limits}"));
        let charged_at = Timestamp::from_micros(1_800_000_000_000_000);
        let refund = Operation::Refund { cost: 3, charged_at };
        assert_eq!(text(refund), format!("-3@1800000000000000 {limits}"));
    }

    #[test]
    fn what_a_log_records_is_work() {
        let limit = |text: &str| Limit::SlidingLog(text.parse().expect(text));
        let work = |limits: &[Limit], operation| Rule::new(&policy(), limits).work_us(operation);
        let of = |limits: &[Limit], cost| work(limits, Operation::Decide { cost });
        let (small, large) = (limit("5/1s"), limit("20000/1h"));
        let quota = Limit::Quota("30000/day".parse().expect("a quota"));
        assert_eq!(of(&[small], 1), 9);
        assert_eq!(of(&[small, large], 1), 18);
        assert_eq!(of(&[large], 10_000), 10_008);
        // Refused, without looking further.
        assert_eq!(of(&[large], 10_001), 8);
        assert_eq!(of(&[small, quota], 20_000), 16);
        // Recorded and taken away, whatever the limit.
        let charged_at = Timestamp::from_micros(0);
        for (cost, entries) in [(1, 1), (900, 900), (20_000, 10_000)] {
            assert_eq!(work(&[small, quota], Operation::Charge { cost }), 16 + entries);
            let refund = Operation::Refund { cost, charged_at };
            assert_eq!(work(&[small, quota], refund), 16 + entries);
        }
        // Out of the middle of a ring it is half of it that moves.
        let ring = Limit::CompactLog("64000/1h".parse().expect("a rate"));
        assert_eq!(of(&[ring], 1), 9);
        assert_eq!(work(&[ring], Operation::Refund { cost: 1, charged_at }), 1_009);
    }
}
