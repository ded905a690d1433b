//! A decision in the headers of HTTP.
//!
//! Three ways to tell it ([`HeaderStyle`]). None is an RFC yet, and the fields
//! changed their meaning between the drafts, so each is named by its draft.
//!
//! Seconds are rounded up: a client that waits as long as it is told never
//! comes too early. `Retry-After` is RFC 9110, section 10.2.3, in its delay
//! form, and no field tells of a time after it.

use std::time::Duration;

use crate::decision::{Standing, Verdict, Wait};
use crate::period::Period;
use crate::structured;
use crate::{Limit, Policy};

/// In which headers clients read a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` as
    /// draft-ietf-httpapi-ratelimit-headers had them up to its version 06: whole
    /// numbers of the tightest limit, the reset in seconds from now. That draft
    /// wants the reset of an answer that also has `Retry-After` to name the same
    /// instant, so on a refusal it is the wait.
    Separate,
    /// `RateLimit-Policy` and `RateLimit` as structured fields of
    /// draft-ietf-httpapi-ratelimit-headers-11: a list member for each limit.
    Draft11,
    /// The names before the drafts, `X-RateLimit-*`, with the numbers of
    /// [`HeaderStyle::Separate`].
    X,
}

impl HeaderStyle {
    /// The headers, in the order of [`Presenter::values`], and whether those of
    /// several policies join into one list.
    pub const fn headers(self) -> &'static [(&'static str, bool)] {
        match self {
            HeaderStyle::Separate => &[
                ("RateLimit-Limit", false),
                ("RateLimit-Remaining", false),
                ("RateLimit-Reset", false),
            ],
            HeaderStyle::Draft11 => &[("RateLimit-Policy", true), ("RateLimit", true)],
            HeaderStyle::X => &[
                ("X-RateLimit-Limit", false),
                ("X-RateLimit-Remaining", false),
                ("X-RateLimit-Reset", false),
            ],
        }
    }
}

/// Tells of decisions under one plan of a policy.
#[derive(Clone, Debug)]
pub struct Presenter {
    styles: Vec<HeaderStyle>,
    limits: Vec<Named>,
    has_partition_key: bool,
    /// `RateLimit-Policy`, where no partition key makes it another for each client.
    policy_field: String,
}

#[derive(Clone, Debug)]
struct Named {
    name: String,
    limit: Limit,
}

impl Presenter {
    /// Of this policy under these limits: its own, or those of a plan.
    pub fn new(policy: &Policy, limits: &[Limit]) -> Self {
        let named = |(name, limit): (&String, &Limit)| Named { name: name.clone(), limit: *limit };
        let mut presenter = Self {
            styles: policy.answers.headers.clone(),
            limits: policy.limit_names.iter().zip(limits).map(named).collect(),
            has_partition_key: policy.answers.partition_key,
            policy_field: String::new(),
        };
        presenter.policy_field = presenter.policy_field(b"");
        presenter
    }

    /// Whether [`values`](Self::values) needs a partition key.
    pub fn has_partition_key(&self) -> bool {
        self.has_partition_key
    }

    /// The names of the limits, in the order of a verdict's.
    pub fn limit_names(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().map(|named| named.name.as_str())
    }

    /// The names of the limits that had no room.
    pub fn violated<'a>(&'a self, verdict: &'a Verdict) -> impl Iterator<Item = &'a str> {
        let refused = self.limit_names().zip(&verdict.limits);
        refused.filter(|(_, standing)| !standing.wait.is_none()).map(|(name, _)| name)
    }

    /// The values of the headers of all its styles, one style behind the other;
    /// `None` for a header that is not sent.
    pub fn values(&self, verdict: &Verdict, partition_key: &[u8]) -> Vec<Option<String>> {
        let mut values = Vec::with_capacity(4);
        for style in &self.styles {
            match style {
                HeaderStyle::Separate | HeaderStyle::X => match verdict.tightest() {
                    Some(standing) => values.extend([
                        Some(standing.limit.to_string()),
                        Some(standing.remaining.to_string()),
                        told_time(standing).map(|seconds| seconds.to_string()),
                    ]),
                    None => values.extend([None, None, None]),
                },
                HeaderStyle::Draft11 => values.extend([
                    Some(match self.has_partition_key {
                        true => self.policy_field(partition_key),
                        false => self.policy_field.clone(),
                    }),
                    Some(self.limit_field(verdict, partition_key)),
                ]),
            }
        }
        values
    }

    /// `RateLimit-Policy`: `q`, and `w` where the window is whole seconds, since
    /// the field knows no others.
    fn policy_field(&self, partition_key: &[u8]) -> String {
        let mut list = String::new();
        for Named { name, limit } in &self.limits {
            structured::member(&mut list, name);
            structured::integer(&mut list, "q", limit.capacity());
            if let Some(seconds) = window_seconds(limit) {
                structured::integer(&mut list, "w", seconds);
            }
            self.write_partition_key(&mut list, partition_key);
        }
        list
    }

    /// `RateLimit`: `r`, and `t`. On a refusal only the limits that refuse tell
    /// a time: the draft wants no time after `Retry-After`.
    fn limit_field(&self, verdict: &Verdict, partition_key: &[u8]) -> String {
        let mut list = String::new();
        for (name, standing) in self.limit_names().zip(&verdict.limits) {
            structured::member(&mut list, name);
            structured::integer(&mut list, "r", standing.remaining);
            let tells_time = verdict.allowed || !standing.wait.is_none();
            if let Some(seconds) = told_time(standing).filter(|_| tells_time) {
                structured::integer(&mut list, "t", seconds);
            }
            self.write_partition_key(&mut list, partition_key);
        }
        list
    }

    fn write_partition_key(&self, list: &mut String, partition_key: &[u8]) {
        if self.has_partition_key {
            structured::byte_sequence(list, "pk", partition_key);
        }
    }
}

/// `Retry-After`, on a refusal that can end: at least 1.
pub fn retry_after(verdict: &Verdict) -> Option<u64> {
    wait_seconds(verdict.tightest().filter(|_| !verdict.allowed)?)
}

fn wait_seconds(standing: &Standing) -> Option<u64> {
    match standing.wait {
        Wait::For(wait) => Some(whole_seconds(wait).max(1)),
        Wait::None | Wait::Forever => None,
    }
}

/// When there is more to be had: of a limit that refuses its wait, if it ends;
/// else the time until all of it is free.
fn told_time(standing: &Standing) -> Option<u64> {
    match standing.wait {
        Wait::None => Some(whole_seconds(standing.reset)),
        Wait::For(_) | Wait::Forever => wait_seconds(standing),
    }
}

/// In how many seconds a limit admits its capacity, if they are whole ones and
/// always as many.
fn window_seconds(limit: &Limit) -> Option<u64> {
    let window = match limit {
        Limit::SlidingLog(rate) | Limit::CompactLog(rate) | Limit::SlidingCounter(rate) => {
            rate.window()
        }
        Limit::TokenBucket(terms) => terms.refill(),
        Limit::Quota(quota) => match quota.period() {
            Period::Hour => Duration::from_secs(3_600),
            Period::Day => Duration::from_secs(86_400),
            Period::Month => return None,
        },
    };
    (window.subsec_nanos() == 0 && !window.is_zero()).then_some(window.as_secs())
}

fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests;
