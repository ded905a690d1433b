//! A policy as the script and its keys need it, and a request under it.

use std::time::Instant;

use weir_core::identity::{self, Value};
use weir_core::{KeyRule, Policy, time};

/// A policy, prepared once: everything about a request under it that does not
/// change from request to request.
#[derive(Clone, Debug)]
pub struct Plan {
    sources: Vec<String>,
    /// The limits as ARGV has them, each behind a space.
    limits_text: String,
    /// The text of a request of cost 1, by far the most common.
    unit_text: String,
    key_suffixes: Vec<String>,
    limits: Vec<u64>,
}

/// Where the value that names a client came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The policy's key template of this index, from 0.
    Template(usize),
    /// A key function, or a key given for this request.
    Given,
    /// The client's address, because everything else was empty.
    Address,
}

/// The template under which an address stands that was fallen back to.
const ADDRESS: &str = "$remote_addr";

/// One request to decide.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Names the answer. Unique among the requests under way.
    pub ticket: u64,
    /// The index of its [`Plan`].
    pub plan: usize,
    /// Where `value` came from.
    pub source: Source,
    /// Whom it counts for.
    pub value: Value,
    /// Units, 0 and up; 0 looks without charging.
    pub cost: u64,
    /// Not sent after this time.
    pub deadline: Instant,
}

impl Plan {
    /// Prepares a policy.
    pub fn new(policy: &Policy) -> Self {
        let sources = match &policy.key {
            KeyRule::Templates(templates) => {
                templates.iter().map(|template| template.text().to_owned()).collect()
            }
            KeyRule::Function => Vec::new(),
        };
        let limits_text: String = policy
            .limits
            .iter()
            .map(|limit| {
                let window_us = time::micros(limit.rate.window());
                format!(" {}:{}:{window_us}", limit.algorithm.tag(), limit.rate.limit())
            })
            .collect();
        Self {
            sources,
            unit_text: format!("1{limits_text}"),
            limits_text,
            key_suffixes: policy
                .limits
                .iter()
                .map(|limit| limit.key_suffix(&policy.name))
                .collect(),
            limits: policy.limits.iter().map(|limit| limit.rate.limit()).collect(),
        }
    }

    /// Each limit's units per window.
    pub fn limits(&self) -> &[u64] {
        &self.limits
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
        let source = match source {
            Source::Template(index) => self.sources.get(index).map_or("", String::as_str),
            Source::Given => "",
            Source::Address => ADDRESS,
        };
        scratch.clear();
        scratch.extend_from_slice(prefix.as_bytes());
        scratch.push(b':');
        identity::write_tag(scratch, source, value);
        scratch.push(b':');
        let stem = scratch.len();
        for suffix in &self.key_suffixes {
            scratch.truncate(stem);
            scratch.extend_from_slice(suffix.as_bytes());
            each(scratch);
        }
    }

    /// Calls `each` with what ARGV says of a request of this cost.
    pub fn text<T>(&self, cost: u64, each: impl FnOnce(&str) -> T) -> T {
        if cost == 1 { each(&self.unit_text) } else { each(&format!("{cost}{}", self.limits_text)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::{Algorithm, Limit, OnError, Template};

    fn plan() -> Plan {
        let limit = |text: &str| Limit {
            algorithm: Algorithm::SlidingLog,
            rate: text.parse().expect(text),
        };
        Plan::new(&Policy {
            name: "api".to_owned(),
            limits: vec![limit("100/60s"), limit("5/1s")],
            key: KeyRule::Templates(vec![Template::parse("$http_x_user").expect("a template")]),
            on_error: OnError::Open,
            error_status: 503,
        })
    }

    fn keys(source: Source, value: &[u8]) -> Vec<String> {
        let mut keys = Vec::new();
        plan().keys("weir", source, &Value::from(value), &mut Vec::new(), |key| {
            keys.push(String::from_utf8(key.to_vec()).expect("keys are ASCII"));
        });
        keys
    }

    #[test]
    fn the_limits_of_a_request_have_keys_of_one_hash_tag() {
        assert_eq!(
            keys(Source::Template(0), b"al ice"),
            ["weir:{$http_x_user=al%20ice}:api:log:1m", "weir:{$http_x_user=al%20ice}:api:log:1s"]
        );
    }

    /// C19: a header cannot name another client's address.
    #[test]
    fn a_value_counts_apart_by_where_it_came_from() {
        let of = |source| keys(source, b"192.0.2.7").remove(0);
        assert_eq!(of(Source::Address), "weir:{$remote_addr=192.0.2.7}:api:log:1m");
        assert_eq!(of(Source::Given), "weir:{=192.0.2.7}:api:log:1m");
        assert_ne!(of(Source::Address), of(Source::Template(0)));
    }

    #[test]
    fn a_request_is_one_text() {
        let text = |cost| plan().text(cost, str::to_owned);
        assert_eq!(text(1), "1 log:100:60000000 log:5:1000000");
        assert_eq!(text(0), "0 log:100:60000000 log:5:1000000");
    }
}
