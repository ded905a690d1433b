//! Charging and giving back after the decision.

use mlua::BString;
use weir_core::{Limit, Timestamp};
use weir_redis::Operation;

use crate::asking::{NOBODY, UnderWay};
use crate::engine::Engine;
use crate::host::{self, Part};
use crate::request;

/// What `settle` says to a charge that a log would have to record unit by unit.
const TOO_MANY: &str =
    "a log takes at most 10000 units at once; take a sliding-counter, a token-bucket or a quota";

/// `rule, source, value, units, charged_at, origin`, as `settle` takes them. The
/// first three name whom it is about as in a [`Request`](crate::asking::Request).
/// With nil for `charged_at` the units are charged; else those are given back that
/// were charged then, as [`Telling`](crate::telling::Telling) told it. `origin` is
/// the word for where that was decided.
pub(crate) type Settlement = (usize, i64, Option<BString>, u64, Option<u64>, String);

impl Engine {
    /// `settle` of a [`Settlement`]: `true`, or `nil, reason`, without waiting for
    /// what becomes of it; `true, nil, true` if it is done.
    pub(crate) fn settle(
        &self,
        settlement: Settlement,
    ) -> (Option<bool>, Option<&'static str>, bool) {
        match self.try_settle(settlement) {
            Ok(done) => (Some(true), None, done),
            Err(reason) => (None, Some(reason), false),
        }
    }

    /// Whether it is done.
    fn try_settle(
        &self,
        (rule, source, value, units, charged_at, origin): Settlement,
    ) -> Result<bool, &'static str> {
        let terms = self.terms.get(rule).ok_or("no_such_policy")?;
        let value = self.identity(terms, value.as_ref().map(|value| value.as_slice()));
        let takes = |limit: &Limit| units <= limit.max_charge();
        if charged_at.is_none() && !self.rules[rule].limits().iter().all(takes) {
            return Err(TOO_MANY);
        }
        let operation = match charged_at {
            Some(at) => Operation::Refund { cost: units, charged_at: Timestamp::from_micros(at) },
            None => Operation::Charge { cost: units },
        };
        let source = request::source_of(source);
        let tag = || self.host.tag(&self.rules[rule], source, &value);
        let part = match origin.as_str() {
            "memory" => Some(Part::Whole),
            "local" => Some(Part::Share),
            _ => None,
        };
        if let Some(part) = part {
            let settled = self.host.perform(rule, part, tag(), operation);
            return settled.map(|_| true).map_err(host::word);
        }

        let mut ticket = NOBODY;
        if charged_at.is_some() && self.host.remembers_any() {
            let tag = tag();
            self.host.call_off(tag);
            ticket = self.next_ticket();
            self.under_way.borrow_mut().insert(ticket, UnderWay::Refund(tag));
        }
        let sent = self.send(ticket, rule, source, value, operation);
        if sent.is_err() {
            self.under_way.borrow_mut().remove(&ticket);
        }
        sent.map(|()| false)
    }
}
