//! The engine: what Lua holds of a configuration, and calls for each request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mlua::BString;
use mlua::prelude::*;
use weir_core::identity::Value;
use weir_core::rate::MAX_LIMIT;
use weir_core::refusal::{Media, Reason, Refusal};
use weir_core::{Config, ConfigError, Limit, Timestamp};
use weir_redis::{Ask, Deployment, Health, Operation, Rule, Source};

use crate::answer::{Form, LuaAnswer};
use crate::metrics::{self, Metrics};
use crate::policies::Terms;
use crate::worker::{self, Worker};
use crate::{lua_config, policies, secrets};

/// What `settle` says to a charge that a log would have to record unit by unit.
const TOO_MANY: &str =
    "a log takes at most 10000 units at once; take a sliding-counter, a token-bucket or a quota";

/// The ticket of what nobody waits for.
const NOBODY: u64 = 0;

/// Made by `setup()` before nginx forks; carries a thread only after `start()`
/// in the worker.
pub(crate) struct Engine {
    config: Config,
    deployment: Deployment,
    rules: Arc<[Rule]>,
    /// In the order of `rules`.
    terms: Vec<Terms>,
    metrics: Metrics,
    worker: RefCell<Option<Worker>>,
    last_ticket: Cell<u64>,
    /// The tickets whose answers have another form than headers alone.
    forms: RefCell<HashMap<u64, Form>>,
}

impl Engine {
    /// Checks a configuration.
    pub(crate) fn new(config: LuaValue) -> Result<Self, ConfigError> {
        let config = Config::check(lua_config::take(config, "", 0)?, &secrets::read)?;
        let deployment = Deployment::new(&config.redis)?;
        if let Some(dir) = &config.runtime_dir
            && !Path::new(dir).is_dir()
        {
            return Err(ConfigError::new("runtime_dir", format!("{dir:?} is not a directory")));
        }
        let rules = policies::rules(&config.policies).into();
        Ok(Self {
            deployment,
            terms: policies::terms(&config.policies),
            metrics: Metrics::open(&config)?,
            rules,
            config,
            worker: RefCell::new(None),
            last_ticket: Cell::new(0),
            forms: RefCell::default(),
        })
    }

    /// `start()`: `true`, or `nil, error`. Does nothing if the thread runs.
    fn start(&self) -> (Option<bool>, Option<String>) {
        let mut worker = self.worker.borrow_mut();
        if worker.as_ref().is_some_and(Worker::runs_here) {
            return (Some(true), None);
        }
        if let Some(stale) = worker.take()
            && !stale.is_own()
        {
            // A parent's: its descriptors are shared with the thread there.
            std::mem::forget(stale);
        }
        let (deployment, rules) = (self.deployment.clone(), Arc::clone(&self.rules));
        match Worker::start(&self.config, deployment, rules, &self.metrics) {
            Ok(started) => {
                // What was asked of the last thread is answered no more.
                self.forms.borrow_mut().clear();
                *worker = Some(started);
                (Some(true), None)
            }
            Err(error) => (None, Some(format!("the I/O thread cannot start: {error}"))),
        }
    }

    /// `meet()`: the path of a socket that the pump connects to, or
    /// `nil, error`.
    fn meet(&self) -> (Option<String>, Option<String>) {
        let worker = self.worker.borrow();
        let Some(worker) = &*worker else {
            return (None, Some("start() was not called".to_owned()));
        };
        match worker.meet(self.config.runtime_dir.as_deref()) {
            Ok(path) => (Some(path), None),
            Err(error) => (None, Some(format!("no socket in runtime_dir: {error}"))),
        }
    }

    /// `submit(rule, source, value, cost, in_full)`: a ticket, or
    /// `nil, reason, detail`. `rule` is an index of [`policies::rules`].
    /// `source` is the index of the policy's key that gave the value, from 1; 0
    /// for a key given by the caller, -1 for the client's address. `value` is
    /// a string, or a list of them for a key of several parts. `cost` is what the
    /// caller wrote, nil for 1. `in_full` asks for [`Form::Table`].
    fn submit(
        &self,
        (rule, source, value, cost, in_full): (usize, i64, LuaValue, LuaValue, bool),
    ) -> (Option<u64>, Option<&'static str>, Option<String>) {
        let cost = match units(&cost) {
            Ok(cost) => cost,
            Err(problem) => return (None, Some("bad_cost"), Some(problem)),
        };
        let Some(terms) = self.terms.get(rule) else { return (None, Some("no_such_policy"), None) };
        let Some(value) = self.identity(terms, &value) else {
            return (None, Some("bad_key"), Some("the key is no string".to_owned()));
        };
        let ticket = self.last_ticket.get() + 1;
        self.last_ticket.set(ticket);
        let form = if in_full {
            Some(Form::Table)
        } else if terms.presenter.has_partition_key() {
            Some(Form::Headers { partition_key: value.partition_key() })
        } else {
            None
        };
        match self.send(ticket, rule, source, value, Operation::Decide { cost }) {
            Ok(()) => {
                if let Some(form) = form {
                    self.forms.borrow_mut().insert(ticket, form);
                }
                (Some(ticket), None, None)
            }
            Err(reason) => (None, Some(reason), None),
        }
    }

    /// `settle(rule, source, value, units, charged_at)`: `true`, or
    /// `nil, reason`, without waiting for what becomes of it. Gives back `units`
    /// that were charged at `charged_at` (as [`LuaAnswer`] told it); with nil for
    /// that, charges them. The rest is as for `submit`.
    fn settle(
        &self,
        (rule, source, value, units, charged_at): (usize, i64, LuaValue, u64, Option<u64>),
    ) -> (Option<bool>, Option<&'static str>) {
        let Some(terms) = self.terms.get(rule) else { return (None, Some("no_such_policy")) };
        let Some(value) = self.identity(terms, &value) else { return (None, Some("bad_key")) };
        let takes = |limit: &Limit| units <= limit.max_charge();
        if charged_at.is_none() && !self.rules[rule].limits().iter().all(takes) {
            return (None, Some(TOO_MANY));
        }
        let operation = match charged_at {
            Some(at) => Operation::Refund { cost: units, charged_at: Timestamp::from_micros(at) },
            None => Operation::Charge { cost: units },
        };
        match self.send(NOBODY, rule, source, value, operation) {
            Ok(()) => (Some(true), None),
            Err(reason) => (None, Some(reason)),
        }
    }

    fn send(
        &self,
        ticket: u64,
        rule: usize,
        source: i64,
        value: Value,
        operation: Operation,
    ) -> Result<(), &'static str> {
        let worker = self.worker.borrow();
        let worker = worker.as_ref().ok_or("not_started")?;
        let source = match source {
            0 => Source::Given,
            1.. => Source::Template(source as usize - 1),
            _ => Source::Address,
        };
        let deadline = Instant::now() + self.config.redis.timeout;
        let ask = Ask { ticket, rule, source, value, operation, deadline };
        worker.submit(ask).map_err(worker::Refusal::word)
    }

    /// Whom a key names under this policy.
    fn identity(&self, terms: &Terms, value: &LuaValue) -> Option<Value> {
        let policy = &self.config.policies[terms.policy];
        let secret = self.config.secret.as_ref().filter(|_| policy.hash_keys);
        match value {
            LuaValue::String(value) => Some(Value::new(&[&value.as_bytes()], secret)),
            LuaValue::Table(parts) => {
                let parts: Vec<BString> = parts.sequence_values().collect::<LuaResult<_>>().ok()?;
                let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_slice()).collect();
                Some(Value::new(&parts, secret))
            }
            _ => None,
        }
    }

    /// `network(rule, address)`: the client of an address, under the policy's
    /// prefixes.
    fn network(&self, (rule, address): (usize, String)) -> String {
        match self.terms.get(rule) {
            Some(terms) => self.config.policies[terms.policy].ip.client(&address),
            None => address,
        }
    }

    /// `exempts(rule, address)`: whether the policy passes over this address.
    fn exempts(&self, (rule, address): (usize, String)) -> bool {
        self.terms.get(rule).is_some_and(|terms| {
            self.config.policies[terms.policy].exempt.networks.contains(&address)
        })
    }

    /// `next()`: the next answer that has come, as [`LuaAnswer`], or nil.
    fn next(&self) -> Option<LuaAnswer<'_>> {
        let answer = self.worker.borrow().as_ref()?.next_answer()?;
        let mut forms = self.forms.borrow_mut();
        let form = if forms.is_empty() { None } else { forms.remove(&answer.ticket) };
        Some(LuaAnswer {
            presenter: &self.terms[answer.rule].presenter,
            form: form.unwrap_or(Form::Headers { partition_key: Vec::new() }),
            answer,
        })
    }

    /// `line()`: the next line for the error log, or nil.
    fn line(&self) -> Option<String> {
        self.worker.borrow().as_ref()?.next_line()
    }

    /// `stats()`: the engine's share of them.
    fn stats(&self, lua: &Lua) -> LuaResult<LuaTable> {
        let worker = self.worker.borrow();
        let worker = worker.as_ref();
        let health = worker.map(Worker::health);
        let count = |counter: fn(&Health) -> &AtomicU64| {
            health.map_or(0, |health| counter(health).load(Relaxed))
        };
        let stats = lua.create_table()?;
        stats.set("redis", health.map_or("not_started", |health| health.link().word()))?;
        stats.set("queued", worker.map_or(0, Worker::queued))?;
        stats.set("wakeups", worker.map_or(0, Worker::wakeups))?;
        stats.set("batches", count(|health| &health.batches))?;
        stats.set("batched", count(|health| &health.batched))?;
        stats.set("connects", count(|health| &health.connects))?;
        stats.set("failed_attempts", count(|health| &health.failed_attempts))?;
        stats.set("breaker_opened", count(|health| &health.opened))?;
        stats.set("servers_away", count(|health| &health.away))?;
        stats.set("redirected", count(|health| &health.redirected))?;
        Ok(stats)
    }
}

/// `refusal(accept, is_error, status, retry_after, violated)`: `Content-Type` and
/// body of an answer in place of the upstream's; `is_error` for one under
/// `on_error`. `violated` as [`LuaAnswer`] told it.
fn refusal_of(
    (accept, is_error, status, retry_after, violated): (
        Option<BString>,
        bool,
        u16,
        Option<String>,
        Option<String>,
    ),
) -> (&'static str, String) {
    let accept = accept.as_ref().and_then(|accept| std::str::from_utf8(accept).ok());
    let media = Media::preferred(accept);
    let violated: Vec<&str> = violated.iter().flat_map(|names| names.split(',')).collect();
    let refusal = Refusal {
        reason: if is_error { Reason::ReducedCapacity } else { Reason::QuotaExceeded },
        status,
        violated: &violated,
        retry_after: retry_after.as_deref(),
    };
    (media.content_type(), refusal.body(media))
}

/// A cost as the operator's Lua gave it, in units.
fn units(cost: &LuaValue) -> Result<u64, String> {
    let number = match cost {
        LuaValue::Nil => return Ok(1),
        LuaValue::Integer(number) => *number as f64,
        LuaValue::Number(number) => *number,
        other => return Err(format!("the cost must be a number, not a {}", other.type_name())),
    };
    if number > MAX_LIMIT as f64 {
        // More than any limit can be: it is refused as what never fits.
        return Ok(MAX_LIMIT);
    }
    if number.fract() != 0.0 || number.is_nan() || number < 0.0 {
        let shown = match number.abs() {
            0.0..1e17 => number.to_string(),
            _ => format!("{number:e}"),
        };
        return Err(format!("the cost must be a whole number from 0 to {MAX_LIMIT}, not {shown}"));
    }
    Ok(number as u64)
}

impl LuaUserData for Engine {
    fn add_methods<M: LuaUserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("start", |_, engine, ()| Ok(engine.start()));
        methods.add_method("meet", |_, engine, ()| Ok(engine.meet()));
        methods.add_method("submit", |_, engine, request| Ok(engine.submit(request)));
        methods.add_method("next", |lua, engine, ()| match engine.next() {
            Some(answer) => answer.into_lua_multi(lua),
            None => LuaNil.into_lua_multi(lua),
        });
        methods.add_method("line", |_, engine, ()| Ok(engine.line()));
        methods.add_method("met", |_, engine, ()| {
            if let Some(worker) = &*engine.worker.borrow() {
                worker.met();
            }
            Ok(())
        });
        methods.add_method("clear", |_, engine, ()| {
            if let Some(worker) = &*engine.worker.borrow() {
                worker.clear();
            }
            Ok(())
        });
        methods.add_method("ring", |_, engine, ()| {
            if let Some(worker) = &*engine.worker.borrow() {
                worker.ring();
            }
            Ok(())
        });
        methods.add_method("settle", |_, engine, charge| Ok(engine.settle(charge)));
        methods.add_method("network", |_, engine, address| Ok(engine.network(address)));
        methods.add_method("exempts", |_, engine, address| Ok(engine.exempts(address)));
        methods.add_method("refusal", |_, _, refusal| Ok(refusal_of(refusal)));
        methods.add_method("labels", |lua, _, ()| metrics::labels(lua));
        methods.add_method("record", |_, engine, decision| {
            engine.metrics.record(decision);
            Ok(())
        });
        methods.add_method("upstream_429", |_, engine, id| {
            engine.metrics.record_upstream_429(id);
            Ok(())
        });
        methods.add_method("metrics", |_, engine, accept| engine.metrics.tell(accept));
        methods.add_method("stats", |lua, engine, ()| engine.stats(lua));
        methods.add_method("policies", |lua, engine, ()| {
            policies::to_lua(lua, &engine.config.policies)
        });
        methods
            .add_method("timeout", |_, engine, ()| Ok(engine.config.redis.timeout.as_secs_f64()));
    }
}
