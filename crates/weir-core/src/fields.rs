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
use crate::texts::Texts;
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
    /// The headers, in the order of [`Presenter::write`], and whether those of
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
        let mut policy_field = String::new();
        presenter.write_policy_field(b"", &mut policy_field);
        presenter.policy_field = policy_field;
        presenter
    }

    /// Whether [`write`](Self::write) needs a partition key.
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

    /// Writes the values of the headers of all its styles, one style behind the
    /// other; absent is a header that is not sent.
    pub fn write(&self, verdict: &Verdict, partition_key: &[u8], values: &mut Texts) {
        for style in &self.styles {
            match style {
                HeaderStyle::Separate | HeaderStyle::X => match verdict.tightest() {
                    Some(standing) => {
                        values.push_number(Some(standing.limit));
                        values.push_number(Some(standing.remaining));
                        values.push_number(told_time(standing));
                    }
                    None => (0..3).for_each(|_| values.push_absent()),
                },
                HeaderStyle::Draft11 => {
                    values.push(|text| match self.has_partition_key {
                        true => self.write_policy_field(partition_key, text),
                        false => text.push_str(&self.policy_field),
                    });
                    values.push(|text| self.write_limit_field(verdict, partition_key, text));
                }
            }
        }
    }

    /// `RateLimit-Policy`: `q`, and `w` where the window is whole seconds, since
    /// the field knows no others.
    fn write_policy_field(&self, partition_key: &[u8], field: &mut String) {
        let mut list = structured::List::new(field);
        for Named { name, limit } in &self.limits {
            list.member(name);
            list.integer("q", limit.capacity());
            if let Some(seconds) = window_seconds(limit) {
                list.integer("w", seconds);
            }
            self.write_partition_key(&mut list, partition_key);
        }
    }

    /// `RateLimit`: `r`, and `t`. On a refusal only the limits that refuse tell
    /// a time: the draft wants no time after `Retry-After`.
    fn write_limit_field(&self, verdict: &Verdict, partition_key: &[u8], field: &mut String) {
        let mut list = structured::List::new(field);
        for (name, standing) in self.limit_names().zip(&verdict.limits) {
            list.member(name);
            list.integer("r", standing.remaining);
            let tells_time = verdict.allowed || !standing.wait.is_none();
            if let Some(seconds) = told_time(standing).filter(|_| tells_time) {
                list.integer("t", seconds);
            }
            self.write_partition_key(&mut list, partition_key);
        }
    }

    fn write_partition_key(&self, list: &mut structured::List, partition_key: &[u8]) {
        if self.has_partition_key {
            list.byte_sequence("pk", partition_key);
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
