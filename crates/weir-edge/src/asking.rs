//! Asking for decisions, and taking them.

use std::time::Instant;

use weir_core::identity::Value;
use weir_core::refusal::{Media, Reason, Refusal};
use weir_redis::{Answer, Ask, Decided, Operation, Source};
use weir_shm::Tag;

use crate::engine::Engine;
use crate::host::{self, Part, Sent};
use crate::metrics::source;
use crate::policies::Terms;
use crate::request;
use crate::worker;

/// The ticket of what nobody waits for.
pub(crate) const NOBODY: u64 = 0;

/// Who is asked about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Whoever decides: this host's memory, where there is no Redis; else what is
    /// remembered, and then Redis.
    Any,
    /// What is remembered alone: the request has waited for Redis in vain.
    Remembered,
    /// This host, for its part of the limits, because Redis cannot say.
    Share,
}

/// How a request goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Its answer comes under the ticket that is told.
    Sent,
    /// It was decided at once, and that is told.
    Decided,
    /// It cannot be decided, and why is told.
    Failed,
}

/// A request as Lua asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// An index of [`crate::policies::rules`].
    pub(crate) rule: usize,
    /// Where the value came from: the index of the policy's key, from 1; 0 for a key
    /// given by the caller, -1 for the client's address.
    pub(crate) source: i64,
    /// Whom it counts for; `None` for the parts that were last [held](Engine::hold).
    pub(crate) value: Option<&'a [u8]>,
    /// In units, as the caller wrote it.
    pub(crate) cost: f64,
}

/// What was sent, and what its answer is for.
#[derive(Debug)]
pub(crate) enum UnderWay {
    /// A request. The partition key that it is told with, empty where headers tell
    /// none, and what remembers a refusal.
    Request { partition_key: Vec<u8>, sent: Option<Sent> },
    /// Something that is given back to a client.
    Refund(Tag),
}

/// A request that can be decided.
struct Checked<'a> {
    terms: &'a Terms,
    rule: usize,
    source: Source,
    value: Value,
    cost: u64,
    /// Empty where headers tell none.
    partition_key: Vec<u8>,
}

/// Why there is no decision: in a word, with more to say to the log.
type Problem = (&'static str, Option<String>);

impl Engine {
    /// Asks for a decision; tells it, or why there is none, unless it is to come.
    pub(crate) fn ask(&self, asked: Asked, request: Request) -> Reply {
        match self.try_ask(asked, request) {
            Ok(reply) => reply,
            Err((reason, detail)) => {
                self.telling.borrow_mut().fail(reason, detail.as_deref());
                Reply::Failed
            }
        }
    }

    fn try_ask(&self, asked: Asked, request: Request) -> Result<Reply, Problem> {
        let checked = self.check(request)?;
        match asked {
            Asked::Any if self.deployment.is_none() => self.decide_here(checked, Part::Whole),
            Asked::Any => match self.remembered(&checked) {
                Ok(decided) => Ok(self.tell_again(decided, &checked)),
                Err(sent) => self.send_request(checked, sent),
            },
            Asked::Remembered => match self.remembered(&checked) {
                Ok(decided) => Ok(self.tell_again(decided, &checked)),
                Err(_) => Err(("timeout", None)),
            },
            Asked::Share => self.decide_here(checked, Part::Share),
        }
    }

    fn check(&self, request: Request) -> Result<Checked<'_>, Problem> {
        let Request { rule, source, value, cost } = request;
        let cost = request::units(cost).map_err(|problem| ("bad_cost", Some(problem)))?;
        let terms = self.terms.get(rule).ok_or(("no_such_policy", None))?;
        let value = self.identity(terms, value);
        let partition_key = match terms.presenter.has_partition_key() {
            true => value.partition_key(),
            false => Vec::new(),
        };
        let source = request::source_of(source);
        Ok(Checked { terms, rule, source, value, cost, partition_key })
    }

    /// Whom a key names under this policy.
    pub(crate) fn identity(&self, terms: &Terms, value: Option<&[u8]>) -> Value {
        let policy = &self.config.policies[terms.policy];
        let secret = self.config.secret.as_ref().filter(|_| policy.hash_keys);
        match value {
            Some(value) => Value::new(&[value], secret),
            None => {
                let held = self.held.borrow();
                let parts: Vec<&[u8]> = held.iter().map(Vec::as_slice).collect();
                Value::new(&parts, secret)
            }
        }
    }

    /// `hold(parts)`: the parts of a key, for the next call that gives no value.
    pub(crate) fn hold(&self, parts: Vec<mlua::BString>) {
        *self.held.borrow_mut() = parts.into_iter().map(Vec::from).collect();
    }

    /// What is remembered of such a request; or else what remembers its refusal, if
    /// that is wanted.
    fn remembered(&self, checked: &Checked) -> Result<Decided, Option<Sent>> {
        let Checked { rule, source, value, cost, .. } = checked;
        if !self.host.remembers(*rule) {
            return Err(None);
        }
        let tag = self.host.tag(&self.rules[*rule], *source, value);
        self.host.recall(*rule, tag, *cost).map_err(Some)
    }

    /// A refusal that is repeated.
    fn tell_again(&self, decided: Decided, checked: &Checked) -> Reply {
        let (presenter, partition_key) = (&checked.terms.presenter, &checked.partition_key);
        self.telling.borrow_mut().tell(presenter, decided, source::REMEMBERED, partition_key);
        Reply::Decided
    }

    fn decide_here(&self, checked: Checked, part: Part) -> Result<Reply, Problem> {
        let Checked { terms, rule, source, value, cost, partition_key } = checked;
        let tag = self.host.tag(&self.rules[rule], source, &value);
        let (source, presenter) = match part {
            Part::Whole => (source::MEMORY, &terms.presenter),
            Part::Share => (source::LOCAL, &terms.share_presenter),
        };
        match self.host.perform(rule, part, tag, Operation::Decide { cost }) {
            Ok(decided) => {
                self.telling.borrow_mut().tell(presenter, decided, source, &partition_key);
                Ok(Reply::Decided)
            }
            Err(failure) => Err((host::word(failure), Some(failure.to_string()))),
        }
    }

    fn send_request(&self, checked: Checked, sent: Option<Sent>) -> Result<Reply, Problem> {
        let Checked { rule, source, value, cost, partition_key, .. } = checked;
        let ticket = self.next_ticket();
        self.send(ticket, rule, source, value, Operation::Decide { cost })
            .map_err(|reason| (reason, None))?;
        if sent.is_some() || !partition_key.is_empty() {
            let under_way = UnderWay::Request { partition_key, sent };
            self.under_way.borrow_mut().insert(ticket, under_way);
        }
        self.telling.borrow_mut().name(ticket);
        Ok(Reply::Sent)
    }

    pub(crate) fn next_ticket(&self) -> u64 {
        let ticket = self.last_ticket.get() + 1;
        self.last_ticket.set(ticket);
        ticket
    }

    pub(crate) fn send(
        &self,
        ticket: u64,
        rule: usize,
        source: Source,
        value: Value,
        operation: Operation,
    ) -> Result<(), &'static str> {
        let worker = self.worker.borrow();
        let worker = worker.as_ref().ok_or("not_started")?;
        let deadline = Instant::now() + self.timeout();
        let ask = Ask { ticket, rule, source, value, operation, deadline };
        worker.submit(ask).map_err(worker::Refusal::word)
    }

    /// Tells the next answer that has come; `None` if there is none.
    pub(crate) fn next(&self) -> Option<Reply> {
        let Answer { mut ticket, rule, outcome } = self.worker.borrow().as_ref()?.next_answer()?;
        let mut partition_key = Vec::new();
        match self.under_way.borrow_mut().remove(&ticket) {
            None => {}
            Some(UnderWay::Request { partition_key: wanted, sent }) => {
                partition_key = wanted;
                if let (Some(sent), Ok(decided)) = (sent, &outcome) {
                    self.host.remember(sent, &decided.verdict);
                }
            }
            Some(UnderWay::Refund(tag)) => {
                // What was asked for meanwhile may not know of it.
                self.host.call_off(tag);
                ticket = NOBODY;
            }
        }
        let mut telling = self.telling.borrow_mut();
        telling.name(ticket);
        let failed = match outcome {
            // A policy has limits, so a verdict has too; but an answer that says
            // nothing must not become a decision.
            Ok(decided) if decided.verdict.limits.is_empty() => "malformed_reply",
            Ok(decided) => {
                let presenter = &self.terms[rule].presenter;
                telling.tell(presenter, decided, source::REDIS, &partition_key);
                return Some(Reply::Decided);
            }
            Err(failure) => failure.word(),
        };
        telling.fail(failed, None);
        Some(Reply::Failed)
    }

    /// Tells the next line for the error log; `None` if there is none.
    pub(crate) fn next_line(&self) -> Option<Reply> {
        let line = self.worker.borrow().as_ref()?.next_line()?;
        self.telling.borrow_mut().tell_line(&line);
        Some(Reply::Decided)
    }

    /// Has what was asked leave for the I/O thread.
    pub(crate) fn flush(&self) {
        if let Some(worker) = &*self.worker.borrow() {
            worker.flush();
        }
    }

    /// Before looking for answers: see [`crate::bell`].
    pub(crate) fn clear(&self) {
        if let Some(worker) = &*self.worker.borrow() {
            worker.clear();
        }
    }

    /// Tells `Content-Type` and body of an answer in place of the upstream's; `is_error`
    /// for one under `on_error`. `violated` as a decision was told with.
    pub(crate) fn tell_refusal(
        &self,
        accept: Option<&str>,
        is_error: bool,
        status: u16,
        retry_after: Option<&str>,
        violated: Option<&str>,
    ) {
        let refusal = Refusal {
            reason: if is_error { Reason::ReducedCapacity } else { Reason::QuotaExceeded },
            status,
            violated: violated.unwrap_or_default(),
            retry_after,
        };
        self.telling.borrow_mut().tell_refusal(Media::preferred(accept), refusal);
    }
}
