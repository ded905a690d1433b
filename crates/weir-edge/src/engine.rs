//! The engine: what Lua holds of a configuration, and calls for each request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mlua::BString;
use mlua::prelude::*;
use weir_core::identity::Value;
use weir_core::{Config, ConfigError, Limit, Timestamp};
use weir_redis::{Ask, Decided, Deployment, Health, Operation, Rule, Source};
use weir_shm::Tag;

use crate::answer::{Form, LuaAnswer, Told};
use crate::host::{self, Host, Part, Sent};
use crate::metrics::{self, Metrics};
use crate::policies::Terms;
use crate::request::{Reply, Request, refusal_of, source_of, units};
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
    /// `None` where there is no Redis.
    deployment: Option<Deployment>,
    host: Host,
    rules: Arc<[Rule]>,
    /// In the order of `rules`.
    terms: Vec<Terms>,
    metrics: Metrics,
    worker: RefCell<Option<Worker>>,
    last_ticket: Cell<u64>,
    /// What is under way, by ticket, where the answer alone does not tell what to do
    /// with it.
    under_way: RefCell<HashMap<u64, UnderWay>>,
}

/// What was sent, and what its answer is for.
enum UnderWay {
    /// A request. What it is told with, and what remembers a refusal.
    Request { form: Form, sent: Option<Sent> },
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
    form: Form,
}

impl Engine {
    /// Checks a configuration.
    pub(crate) fn new(config: LuaValue) -> Result<Self, ConfigError> {
        let config = Config::check(lua_config::take(config, "", 0)?, &secrets::read)?;
        let deployment = config.redis.as_ref().map(Deployment::new).transpose()?;
        if let Some(dir) = &config.runtime_dir
            && !Path::new(dir).is_dir()
        {
            return Err(ConfigError::new("runtime_dir", format!("{dir:?} is not a directory")));
        }
        let rules: Arc<[Rule]> = policies::rules(&config.policies).into();
        Ok(Self {
            host: Host::open(&config, &rules)?,
            deployment,
            terms: policies::terms(&config.policies),
            metrics: Metrics::open(&config)?,
            rules,
            config,
            worker: RefCell::new(None),
            last_ticket: Cell::new(0),
            under_way: RefCell::default(),
        })
    }

    /// `start()`: `true`, or `nil, error`. Does nothing if the thread runs, or there
    /// is nothing for it to do.
    fn start(&self) -> (Option<bool>, Option<String>) {
        self.metrics.start();
        let (Some(redis), Some(deployment)) = (&self.config.redis, &self.deployment) else {
            return (Some(true), None);
        };
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
        let (deployment, rules) = (deployment.clone(), Arc::clone(&self.rules));
        match Worker::start(redis, deployment, rules, &self.metrics) {
            Ok(started) => {
                // What was asked of the last thread is answered no more.
                self.under_way.borrow_mut().clear();
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

    /// `submit` of a [`Request`]: a ticket; `true`, where it was decided ("memory",
    /// "remembered") and what [`Told`] says; or `nil, reason, detail`.
    fn submit(&self, request: Request) -> Reply<'_> {
        let checked = match self.check(request) {
            Ok(checked) => checked,
            Err((reason, detail)) => return Reply::Failed(reason, detail),
        };
        if self.deployment.is_none() {
            return self.decide_here(checked, Part::Whole);
        }
        let sent = match self.remembered(&checked) {
            Ok(decided) => return told_again(decided, checked),
            Err(sent) => sent,
        };
        let Checked { rule, source, value, cost, form, .. } = checked;
        let ticket = self.next_ticket();
        match self.send(ticket, rule, source, value, Operation::Decide { cost }) {
            Ok(()) => {
                if sent.is_some() || !form.is_plain() {
                    let under_way = UnderWay::Request { form, sent };
                    self.under_way.borrow_mut().insert(ticket, under_way);
                }
                Reply::Sent(ticket)
            }
            Err(reason) => Reply::Failed(reason, None),
        }
    }

    /// `recall` of a [`Request`] that has waited for Redis in vain: as `submit`, where
    /// it is remembered; else it has timed out.
    fn recall(&self, request: Request) -> Reply<'_> {
        let checked = match self.check(request) {
            Ok(checked) => checked,
            Err((reason, detail)) => return Reply::Failed(reason, detail),
        };
        match self.remembered(&checked) {
            Ok(decided) => told_again(decided, checked),
            Err(_) => Reply::Failed("timeout", None),
        }
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

    /// `decide_share` of a [`Request`], where Redis cannot decide: as `submit`, by
    /// the word "local" and under this host's part of the limits.
    fn decide_share(&self, request: Request) -> Reply<'_> {
        match self.check(request) {
            Ok(checked) => self.decide_here(checked, Part::Share),
            Err((reason, detail)) => Reply::Failed(reason, detail),
        }
    }

    fn decide_here<'a>(&'a self, checked: Checked<'a>, part: Part) -> Reply<'a> {
        let Checked { terms, rule, source, value, cost, form } = checked;
        let tag = self.host.tag(&self.rules[rule], source, &value);
        let (word, presenter) = match part {
            Part::Whole => ("memory", &terms.presenter),
            Part::Share => ("local", &terms.share_presenter),
        };
        match self.host.perform(rule, part, tag, Operation::Decide { cost }) {
            Ok(decided) => Reply::Decided(word, Told { decided, presenter, form }),
            Err(failure) => Reply::Failed(host::word(failure), Some(failure.to_string())),
        }
    }

    fn check(
        &self,
        (rule, source, value, cost, in_full): Request,
    ) -> Result<Checked<'_>, (&'static str, Option<String>)> {
        let cost = units(&cost).map_err(|problem| ("bad_cost", Some(problem)))?;
        let terms = self.terms.get(rule).ok_or(("no_such_policy", None))?;
        let value = self
            .identity(terms, &value)
            .ok_or_else(|| ("bad_key", Some("the key is no string".to_owned())))?;
        let form = if in_full {
            Form::Table
        } else if terms.presenter.has_partition_key() {
            Form::Headers { partition_key: value.partition_key() }
        } else {
            Form::default()
        };
        Ok(Checked { terms, rule, source: source_of(source), value, cost, form })
    }

    /// `settle(rule, source, value, units, charged_at, origin)`: `true`, or
    /// `nil, reason`, without waiting for what becomes of it; `true, nil, true` if it
    /// is done. Gives back `units` that were charged at `charged_at` (as [`Told`]
    /// tells it); with nil for that, charges them. `origin` is the word for where
    /// that was decided, and the rest as in a [`Request`].
    fn settle(
        &self,
        (rule, source, value, units, charged_at, origin): (
            usize,
            i64,
            LuaValue,
            u64,
            Option<u64>,
            String,
        ),
    ) -> (Option<bool>, Option<&'static str>, bool) {
        let done = match self.settle_at(rule, source, &value, units, charged_at, &origin) {
            Ok(done) => done,
            Err(reason) => return (None, Some(reason), false),
        };
        (Some(true), None, done)
    }

    /// Whether it is done.
    fn settle_at(
        &self,
        rule: usize,
        source: i64,
        value: &LuaValue,
        units: u64,
        charged_at: Option<u64>,
        origin: &str,
    ) -> Result<bool, &'static str> {
        let terms = self.terms.get(rule).ok_or("no_such_policy")?;
        let value = self.identity(terms, value).ok_or("bad_key")?;
        let takes = |limit: &Limit| units <= limit.max_charge();
        if charged_at.is_none() && !self.rules[rule].limits().iter().all(takes) {
            return Err(TOO_MANY);
        }
        let operation = match charged_at {
            Some(at) => Operation::Refund { cost: units, charged_at: Timestamp::from_micros(at) },
            None => Operation::Charge { cost: units },
        };
        let source = source_of(source);
        let tag = || self.host.tag(&self.rules[rule], source, &value);
        let part = match origin {
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

    fn next_ticket(&self) -> u64 {
        let ticket = self.last_ticket.get() + 1;
        self.last_ticket.set(ticket);
        ticket
    }

    fn send(
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

    /// The most that a decision can take.
    fn timeout(&self) -> Duration {
        self.config.redis.as_ref().map_or(Duration::ZERO, |redis| redis.timeout)
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
        let mut answer = self.worker.borrow().as_ref()?.next_answer()?;
        let mut under_way = self.under_way.borrow_mut();
        let mut form = Form::default();
        match under_way.remove(&answer.ticket) {
            None => {}
            Some(UnderWay::Request { form: wanted, sent }) => {
                form = wanted;
                if let (Some(sent), Ok(decided)) = (sent, &answer.outcome) {
                    self.host.remember(sent, &decided.verdict);
                }
            }
            Some(UnderWay::Refund(tag)) => {
                // What was asked for meanwhile may not know of it.
                self.host.call_off(tag);
                answer.ticket = NOBODY;
            }
        }
        Some(LuaAnswer { presenter: &self.terms[answer.rule].presenter, form, answer })
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
        let link = match (&self.deployment, health) {
            (None, _) => "none",
            (Some(_), None) => "not_started",
            (Some(_), Some(health)) => health.link().word(),
        };
        stats.set("redis", link)?;
        stats.set("queued", worker.map_or(0, Worker::queued))?;
        stats.set("wakeups", worker.map_or(0, Worker::wakeups))?;
        stats.set("batches", count(|health| &health.batches))?;
        stats.set("batched", count(|health| &health.batched))?;
        stats.set("connects", count(|health| &health.connects))?;
        stats.set("failed_attempts", count(|health| &health.failed_attempts))?;
        stats.set("breaker_opened", count(|health| &health.opened))?;
        stats.set("servers_away", count(|health| &health.away))?;
        stats.set("redirected", count(|health| &health.redirected))?;
        let usage = self.host.usage();
        let memory = lua.create_table()?;
        memory.set("size", usage.size_bytes)?;
        memory.set("used", usage.used_bytes)?;
        memory.set("entries", usage.entries)?;
        memory.set("expired", usage.evicted_expired)?;
        memory.set("evicted", usage.evicted_least_recently_used)?;
        memory.set("resets", usage.resets)?;
        stats.set("memory", memory)?;
        Ok(stats)
    }
}

/// A refusal that is repeated.
fn told_again<'a>(decided: Decided, checked: Checked<'a>) -> Reply<'a> {
    let Checked { terms, form, .. } = checked;
    Reply::Decided("remembered", Told { decided, presenter: &terms.presenter, form })
}

impl LuaUserData for Engine {
    fn add_methods<M: LuaUserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("start", |_, engine, ()| Ok(engine.start()));
        methods.add_method("meet", |_, engine, ()| Ok(engine.meet()));
        methods.add_method("submit", |lua, engine, request| {
            engine.submit(request).into_lua_multi(lua)
        });
        methods.add_method("recall", |lua, engine, request| {
            engine.recall(request).into_lua_multi(lua)
        });
        methods.add_method("decide_share", |lua, engine, request| {
            engine.decide_share(request).into_lua_multi(lua)
        });
        methods.add_method("has_redis", |_, engine, ()| Ok(engine.deployment.is_some()));
        methods.add_method("forget_denials", |_, engine, ()| {
            engine.host.call_off_all();
            Ok(())
        });
        methods.add_method("notice", |_, engine, ()| Ok(engine.host.notice()));
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
        methods.add_method("metrics", |_, engine, accept| {
            engine.metrics.tell(accept, engine.host.usage())
        });
        methods.add_method("stats", |lua, engine, ()| engine.stats(lua));
        methods.add_method("policies", |lua, engine, ()| {
            policies::to_lua(lua, &engine.config.policies)
        });
        methods.add_method("timeout", |_, engine, ()| Ok(engine.timeout().as_secs_f64()));
    }
}
