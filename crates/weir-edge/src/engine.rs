//! The engine: what Lua holds of a configuration, and calls for each request.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mlua::prelude::*;
use rustc_hash::FxHashMap;
use weir_core::{Config, ConfigError};
use weir_redis::{Deployment, Health, Rule};

use crate::asking::UnderWay;
use crate::host::Host;
use crate::metrics::{self, Metrics};
use crate::policies::Terms;
use crate::telling::Telling;
use crate::worker::Worker;
use crate::{calls, lua_config, policies, secrets};

/// Made by `setup()` before nginx forks; carries a thread only after `start()`
/// in the worker.
pub(crate) struct Engine {
    pub(crate) config: Config,
    /// `None` where there is no Redis.
    pub(crate) deployment: Option<Deployment>,
    pub(crate) host: Host,
    pub(crate) rules: Arc<[Rule]>,
    /// In the order of `rules`.
    pub(crate) terms: Vec<Terms>,
    pub(crate) metrics: Metrics,
    pub(crate) worker: RefCell<Option<Worker>>,
    pub(crate) last_ticket: Cell<u64>,
    /// What is under way, by ticket, where the answer alone does not tell what to do
    /// with it.
    pub(crate) under_way: RefCell<FxHashMap<u64, UnderWay>>,
    /// What the next request is asked for, if that is no string: see `hold()`.
    pub(crate) held: RefCell<Vec<Vec<u8>>>,
    pub(crate) telling: RefCell<Telling>,
}

/// The engine as Lua holds it. Its address is Lua's as long as Lua holds this.
pub(crate) struct Handle(Rc<Engine>);

impl Handle {
    /// Checks a configuration.
    pub(crate) fn new(config: LuaValue) -> Result<Self, ConfigError> {
        Engine::new(config).map(|engine| Self(Rc::new(engine)))
    }
}

impl Engine {
    /// Checks a configuration.
    fn new(config: LuaValue) -> Result<Self, ConfigError> {
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
            held: RefCell::default(),
            telling: RefCell::default(),
        })
    }

    /// `start()`: `true, nil, is_new`, or `nil, error`. Does nothing if the thread runs,
    /// or there is nothing for it to do.
    fn start(&self) -> (Option<bool>, Option<String>, bool) {
        self.metrics.start();
        let (Some(redis), Some(deployment)) = (&self.config.redis, &self.deployment) else {
            return (Some(true), None, false);
        };
        let mut worker = self.worker.borrow_mut();
        if worker.as_ref().is_some_and(Worker::runs_here) {
            return (Some(true), None, false);
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
                (Some(true), None, true)
            }
            Err(error) => (None, Some(format!("the I/O thread cannot start: {error}")), false),
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

    /// The most that a decision can take.
    pub(crate) fn timeout(&self) -> Duration {
        self.config.redis.as_ref().map_or(Duration::ZERO, |redis| redis.timeout)
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

    /// `limit_names()`: for each rule those of its limits.
    fn limit_names(&self) -> Vec<Vec<String>> {
        let names = |terms: &Terms| terms.presenter.limit_names().map(str::to_owned).collect();
        self.terms.iter().map(names).collect()
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
        let decisions = lua.create_table()?;
        for (outcome, count) in self.metrics.decisions() {
            decisions.set(outcome, count)?;
        }
        stats.set("decisions", decisions)?;
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

impl LuaUserData for Handle {
    fn add_methods<M: LuaUserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("start", |_, engine, ()| Ok(engine.0.start()));
        methods.add_method("meet", |_, engine, ()| Ok(engine.0.meet()));
        methods.add_method("calls", |lua, engine, ()| calls::to_lua(lua, &engine.0));
        methods.add_method("hold", |_, engine, parts: Vec<mlua::BString>| {
            engine.0.hold(parts);
            Ok(())
        });
        methods.add_method("limit_names", |_, engine, ()| Ok(engine.0.limit_names()));
        methods.add_method("has_redis", |_, engine, ()| Ok(engine.0.deployment.is_some()));
        methods.add_method("forget_denials", |_, engine, ()| {
            engine.0.host.call_off_all();
            Ok(())
        });
        methods.add_method("notice", |_, engine, ()| Ok(engine.0.host.notice()));
        methods.add_method("met", |_, engine, ()| {
            if let Some(worker) = &*engine.0.worker.borrow() {
                worker.met();
            }
            Ok(())
        });
        methods.add_method("ring", |_, engine, ()| {
            if let Some(worker) = &*engine.0.worker.borrow() {
                worker.ring();
            }
            Ok(())
        });
        methods.add_method("settle", |_, engine, charge| Ok(engine.0.settle(charge)));
        methods.add_method("network", |_, engine, address| Ok(engine.0.network(address)));
        methods.add_method("exempts", |_, engine, address| Ok(engine.0.exempts(address)));
        methods.add_method("labels", |lua, _, ()| metrics::labels(lua));
        methods.add_method("upstream_429", |_, engine, id| {
            engine.0.metrics.record_upstream_429(id);
            Ok(())
        });
        methods.add_method("metrics", |_, engine, accept| {
            engine.0.metrics.tell(accept, engine.0.host.usage())
        });
        methods.add_method("stats", |lua, engine, ()| engine.0.stats(lua));
        methods.add_method("policies", |lua, engine, ()| {
            policies::to_lua(lua, &engine.0.config.policies)
        });
        methods.add_method("timeout", |_, engine, ()| Ok(engine.0.timeout().as_secs_f64()));
    }
}
