//! What is decided on this host, in memory that its workers share: everything where
//! there is no Redis, this host's part where Redis is away, and denials that are
//! remembered.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use weir_core::config::{Deployment, RedisConfig};
use weir_core::identity::Value;
use weir_core::policy::Charge;
use weir_core::{Config, ConfigError, Limit, OnError, Policy, Verdict};
use weir_redis::{Decided, Operation, Rule, Source};
use weir_shm::{Epoch, Failure, MemoryUsage, Moment, Opened, Store, Tag, Terms, Uptime};

use crate::policies;

/// By what name a reload finds the memory again.
const NAME: &str = "weir";

/// How long a refusal is remembered at most where it may end before its wait is over,
/// see [`unsteady`]: another host may be about to give back what it was refused for.
const PROVISIONAL: Duration = Duration::from_secs(1);

/// The memory, and the rules as it decides them.
pub(crate) struct Host {
    store: Arc<Store>,
    opened: Opened,
    size: usize,
    /// In the order of [`policies::rules`].
    rules: Vec<HostRule>,
    /// Whether any policy remembers denials.
    remembers: bool,
    scratch: RefCell<Vec<u8>>,
}

struct HostRule {
    /// Its limits.
    whole: Terms,
    /// This host's part of them.
    share: Terms,
    remembers: bool,
}

/// Which limits are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of them, where there is no Redis.
    Whole,
    /// This host's, where Redis is away.
    Share,
}

/// A request that may be denied elsewhere, and remembered here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    rule: usize,
    tag: Tag,
    cost: u64,
    epoch: Epoch,
}

impl Host {
    /// Opens the memory, that of the configuration before if it has the same size.
    pub(crate) fn open(config: &Config, rules: &[Rule]) -> Result<Self, ConfigError> {
        let size = config.memory.size;
        check_logs(config)?;
        let (store, opened) = Store::open(NAME, size).map_err(|error| {
            ConfigError::new("memory.size", format!("the system has no such memory: {error}"))
        })?;
        let policies: Vec<&Policy> =
            policies::plans(&config.policies).map(|(policy, _)| &config.policies[policy]).collect();
        let decider = config.redis.as_ref().map(decider);
        let unsteady = unsteady(rules, &policies);
        let rules = rules.iter().zip(&policies).map(|(rule, policy)| {
            let share = shares(policy, rule.limits());
            let whole = store.terms(rule.limits(), rule.key_suffixes());
            let whole = match &decider {
                Some(decider) => whole.denied_by(&store, decider),
                None => whole,
            };
            let is_provisional =
                rule.key_suffixes().iter().any(|name| unsteady.contains(name.as_str()));
            HostRule {
                whole: if is_provisional { whole.remembered_for(PROVISIONAL) } else { whole },
                share: store.terms(&share, rule.key_suffixes()),
                remembers: config.redis.is_some() && policy.remember_denials,
            }
        });
        let rules: Vec<HostRule> = rules.collect();
        Ok(Self {
            opened,
            size,
            remembers: rules.iter().any(|rule| rule.remembers),
            rules,
            scratch: RefCell::default(),
            store,
        })
    }

    /// What the log should tell of how the memory was opened.
    pub(crate) fn notice(&self) -> Option<String> {
        match self.opened {
            Opened::New | Opened::Found => None,
            Opened::Resized { from } => Some(format!(
                "memory.size is {} bytes and was {from}: the new memory is empty, and what was \
                 counted or remembered in it begins anew; workers of before go on with the old \
                 one until they exit",
                self.size
            )),
        }
    }

    /// The tag of a client under a rule.
    pub(crate) fn tag(&self, rule: &Rule, source: Source, value: &Value) -> Tag {
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        rule.write_tag(source, value, &mut scratch);
        self.store.tag(&scratch)
    }

    /// Does what is asked for, here and now.
    pub(crate) fn perform(
        &self,
        rule: usize,
        part: Part,
        tag: Tag,
        operation: Operation,
    ) -> Result<Decided, Failure> {
        let rule = &self.rules[rule];
        let terms = match part {
            Part::Whole => &rule.whole,
            Part::Share => &rule.share,
        };
        let decided = match operation {
            Operation::Decide { cost } => self.store.decide(terms, tag, cost, Moment::now),
            Operation::Charge { cost } => self.store.charge(terms, tag, cost, Moment::now),
            Operation::Refund { cost, charged_at } => {
                self.store.refund(terms, tag, cost, charged_at, Moment::now)
            }
        };
        decided.map(|(at, verdict)| Decided { at, verdict })
    }

    /// Whether refusals under this rule are remembered.
    pub(crate) fn remembers(&self, rule: usize) -> bool {
        self.rules[rule].remembers
    }

    /// What is remembered of such a request; or else what to keep of it, for the
    /// answer.
    pub(crate) fn recall(&self, rule: usize, tag: Tag, cost: u64) -> Result<Decided, Sent> {
        let epoch = self.store.epoch(tag);
        let terms = &self.rules[rule].whole;
        let now = Uptime::now();
        match self.store.recall(terms, tag, cost, now) {
            Some(verdict) => Ok(Decided { at: Moment::now().wall, verdict }),
            None => Err(Sent { rule, tag, cost, epoch }),
        }
    }

    /// Remembers what was decided elsewhere, if it is a refusal.
    pub(crate) fn remember(&self, sent: Sent, verdict: &Verdict) {
        if !verdict.allowed {
            let Sent { rule, tag, cost, epoch } = sent;
            let terms = &self.rules[rule].whole;
            self.store.remember(terms, tag, cost, epoch, verdict, Uptime::now());
        }
    }

    /// Whether what is given back must call anything off.
    pub(crate) fn remembers_any(&self) -> bool {
        self.remembers
    }

    /// Forgets the denials of a client to whom something is given back: to be called
    /// when that is sent, and when it is done.
    pub(crate) fn call_off(&self, tag: Tag) {
        self.store.call_off(tag);
    }

    /// Forgets the denials of all clients.
    pub(crate) fn call_off_all(&self) {
        self.store.call_off_all();
    }

    pub(crate) fn usage(&self) -> MemoryUsage {
        self.store.usage()
    }
}

/// The word for why nothing could be decided here.
pub(crate) fn word(failure: Failure) -> &'static str {
    match failure {
        Failure::Busy => "memory_busy",
        Failure::Full => "memory_full",
        _ => "memory_failed",
    }
}

/// What tells a Redis, and what Weir keeps there, from others.
fn decider(redis: &RedisConfig) -> String {
    let server = match &redis.deployment {
        Deployment::Single { url } => url.expose().to_owned(),
        deployment => format!("{deployment:?}"),
    };
    format!("{:?}", (server, redis.database, &redis.prefix))
}

/// The budgets, by name, of which a wait may end early by what is done to the client
/// under another rule: what is charged there is given back, or a token bucket is
/// refilled at another rate.
fn unsteady<'a>(rules: &'a [Rule], policies: &[&Policy]) -> HashSet<&'a str> {
    let mut seen: HashMap<&str, &Limit> = HashMap::new();
    let mut unsteady = HashSet::new();
    for (rule, policy) in rules.iter().zip(policies) {
        for (name, limit) in rule.key_suffixes().iter().zip(rule.limits()) {
            let first = *seen.entry(name).or_insert(limit);
            let is_given_back = matches!(policy.charge, Charge::Statuses(_));
            if is_given_back || matches!(limit, Limit::TokenBucket(_)) && limit != first {
                unsteady.insert(name.as_str());
            }
        }
    }
    unsteady
}

/// This host's part of a policy's limits.
pub(crate) fn shares(policy: &Policy, limits: &[Limit]) -> Vec<Limit> {
    limits.iter().map(|limit| limit.share(policy.local_share)).collect()
}

/// A log that would not fit would leave its policy to `on_error` once it is long.
fn check_logs(config: &Config) -> Result<(), ConfigError> {
    let most = Store::max_log(config.memory.size);
    for (index, limits) in policies::plans(&config.policies) {
        let policy = &config.policies[index];
        let share = match config.redis {
            None => limits.to_vec(),
            Some(_) if policy.on_error == OnError::Local => shares(policy, limits),
            Some(_) => continue,
        };
        let units = share.iter().filter_map(|limit| match limit {
            Limit::SlidingLog(rate) | Limit::CompactLog(rate) => Some(rate.limit()),
            _ => None,
        });
        let units = units.fold(0_u64, u64::saturating_add);
        if units > most {
            let problem = format!(
                "a client of policies.{} can have {units} units in logs, and this memory takes up \
                 to {most} (from 64m on {}): give it another algorithm",
                policy.name,
                Store::max_log(Store::LONGEST_LOGS)
            );
            return Err(ConfigError::new("memory.size", problem));
        }
    }
    Ok(())
}
