//! The engine: what Lua holds of a configuration, and calls for each request.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mlua::BString;
use mlua::prelude::*;
use weir_core::decision::{Standing, Wait};
use weir_core::fields::{Fields, refusal_body};
use weir_core::rate::MAX_LIMIT;
use weir_core::{Config, ConfigError};
use weir_redis::{Answer, Ask, Decided, Health, Operation, Rule, Server, Source};

use crate::worker::Worker;
use crate::{lua_config, policies};

/// Made by `setup()` before nginx forks; carries a thread only after `start()`
/// in the worker.
pub(crate) struct Engine {
    config: Config,
    server: Server,
    rules: Arc<[Rule]>,
    worker: RefCell<Option<Worker>>,
    last_ticket: Cell<u64>,
    /// The tickets whose answers are to list each limit.
    in_full: RefCell<HashSet<u64>>,
}

impl Engine {
    /// Checks a configuration.
    pub(crate) fn new(config: LuaValue) -> Result<Self, ConfigError> {
        let config = Config::check(lua_config::take(config, "", 0)?)?;
        let server = Server::parse(&config.redis.url)
            .map_err(|error| ConfigError::new("redis.url", error.to_string()))?;
        if let Some(dir) = &config.runtime_dir
            && !Path::new(dir).is_dir()
        {
            return Err(ConfigError::new("runtime_dir", format!("{dir:?} is not a directory")));
        }
        let rules = policies::rules(&config.policies).into();
        Ok(Self {
            config,
            server,
            rules,
            worker: RefCell::new(None),
            last_ticket: Cell::new(0),
            in_full: RefCell::default(),
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
        match Worker::start(&self.config, self.server.clone(), Arc::clone(&self.rules)) {
            Ok(started) => {
                // What was asked of the last thread is answered no more.
                self.in_full.borrow_mut().clear();
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
    /// `source` is the index of the key template that gave the value, from 1;
    /// 0 for a key given by the caller, -1 for the client's address. `cost` is
    /// what the caller wrote, nil for 1. `in_full` has the answer list each
    /// limit.
    fn submit(
        &self,
        (rule, source, value, cost, in_full): (usize, i64, BString, LuaValue, bool),
    ) -> (Option<u64>, Option<&'static str>, Option<String>) {
        let worker = self.worker.borrow();
        let Some(worker) = &*worker else { return (None, Some("not_started"), None) };
        if rule >= self.rules.len() {
            return (None, Some("no_such_policy"), None);
        }
        let cost = match units(&cost) {
            Ok(cost) => cost,
            Err(problem) => return (None, Some("bad_cost"), Some(problem)),
        };
        let ticket = self.last_ticket.get() + 1;
        self.last_ticket.set(ticket);
        let ask = Ask {
            ticket,
            rule,
            source: match source {
                0 => Source::Given,
                1.. => Source::Template(source as usize - 1),
                _ => Source::Address,
            },
            value: value.as_slice().into(),
            operation: Operation::Decide { cost },
            deadline: Instant::now() + self.config.redis.timeout,
        };
        match worker.submit(ask) {
            Ok(()) => {
                if in_full {
                    self.in_full.borrow_mut().insert(ticket);
                }
                (Some(ticket), None, None)
            }
            Err(refusal) => (None, Some(refusal.word()), None),
        }
    }

    /// `next()`: the next answer that has come, as [`LuaAnswer`], or nil.
    fn next(&self) -> Option<LuaAnswer> {
        let answer = self.worker.borrow().as_ref()?.next_answer()?;
        let mut in_full = self.in_full.borrow_mut();
        let in_full = !in_full.is_empty() && in_full.remove(&answer.ticket);
        Some(LuaAnswer { answer, in_full })
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
        Ok(stats)
    }
}

/// A cost as the operator's Lua gave it, in units.
fn units(cost: &LuaValue) -> Result<u64, String> {
    let number = match cost {
        LuaValue::Nil => return Ok(1),
        LuaValue::Integer(number) => *number as f64,
        LuaValue::Number(number) => *number,
        other => return Err(format!("the cost must be a number, not a {}", other.type_name())),
    };
    if number.fract() != 0.0 || !(0.0..=MAX_LIMIT as f64).contains(&number) {
        let shown = match number.abs() {
            0.0..1e17 => number.to_string(),
            _ => format!("{number:e}"),
        };
        return Err(format!("the cost must be a whole number from 0 to {MAX_LIMIT}, not {shown}"));
    }
    Ok(number as u64)
}

/// An answer as Lua takes it: `ticket, allowed, limit, remaining, retry_after,
/// reset, limits`, or `ticket, nil, reason`. The numbers are those of the
/// tightest limit, times in seconds, `retry_after` nil if there is none.
/// `limits`, if it was asked for, is a list of each limit with these fields.
struct LuaAnswer {
    answer: Answer,
    in_full: bool,
}

impl IntoLuaMulti for LuaAnswer {
    fn into_lua_multi(self, lua: &Lua) -> LuaResult<LuaMultiValue> {
        let Answer { ticket, outcome } = self.answer;
        let verdict = match outcome {
            Ok(Decided { verdict, .. }) => verdict,
            Err(failure) => return (ticket, LuaNil, failure.word()).into_lua_multi(lua),
        };
        let Some(tightest) = verdict.tightest() else {
            // A policy has limits, so a verdict has too; but an answer that
            // says nothing must not become a decision.
            return (ticket, LuaNil, "malformed_reply").into_lua_multi(lua);
        };
        let limits = match self.in_full {
            true => Some(limits_to_lua(lua, &verdict.limits)?),
            false => None,
        };
        (
            ticket,
            verdict.allowed,
            tightest.limit,
            tightest.remaining,
            retry_after(tightest),
            tightest.reset.as_secs_f64(),
            limits,
        )
            .into_lua_multi(lua)
    }
}

fn limits_to_lua(lua: &Lua, limits: &[Standing]) -> LuaResult<LuaTable> {
    let list = lua.create_table()?;
    for standing in limits {
        let entry = lua.create_table()?;
        entry.set("limit", standing.limit)?;
        entry.set("remaining", standing.remaining)?;
        entry.set("retry_after", retry_after(standing))?;
        entry.set("reset", standing.reset.as_secs_f64())?;
        list.push(entry)?;
    }
    Ok(list)
}

fn retry_after(standing: &Standing) -> Option<f64> {
    match standing.wait {
        Wait::For(wait) => Some(wait.as_secs_f64()),
        Wait::None | Wait::Forever => None,
    }
}

/// `fields(allowed, limit, remaining, retry_after, reset)`: the header texts, in
/// that order, from a decision's numbers; nil for a header that is not sent.
fn fields(
    (allowed, limit, remaining, retry_after, reset): (bool, u64, u64, Option<f64>, f64),
) -> (String, String, Option<String>, Option<String>) {
    let wait = match retry_after {
        Some(wait) => Wait::For(seconds(wait)),
        None if allowed => Wait::None,
        None => Wait::Forever,
    };
    let fields = Fields::of(&Standing { limit, remaining, wait, reset: seconds(reset) });
    (fields.limit, fields.remaining, fields.retry_after, fields.reset)
}

/// From Lua's seconds. They came from here, so they are in range; whatever
/// else comes is no time at all.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
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
        methods.add_method("fields", |_, _, decision| Ok(fields(decision)));
        methods.add_method(
            "body",
            |_, _, (policy, status, retry_after): (String, u16, Option<String>)| {
                Ok(refusal_body(&policy, status, retry_after.as_deref()))
            },
        );
        methods.add_method("stats", |lua, engine, ()| engine.stats(lua));
        methods.add_method("policies", |lua, engine, ()| {
            policies::to_lua(lua, &engine.config.policies)
        });
        methods
            .add_method("timeout", |_, engine, ()| Ok(engine.config.redis.timeout.as_secs_f64()));
    }
}
