//! Whoever decides: the reference in weir-core, and every store that must
//! decide as it does.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weir_core::algorithm::{State, charge_afterwards, decide, give_back};
use weir_core::{Limit, Timestamp, Verdict};
use weir_redis::Operation;
use weir_shm::{Moment, Store, Tag, Terms, Uptime};

use crate::Redis;
use crate::script::Script;

/// A decider with rules of one or more limits each, under the test's clock.
pub trait Subject {
    /// Decides one request.
    fn decide(&mut self, now_us: u64, rule: usize, client: &str, cost: u64) -> Verdict;

    /// Charges a request after the fact, of no more than a log takes at once.
    fn charge(&mut self, now_us: u64, rule: usize, client: &str, cost: u64) -> Verdict;

    /// Gives back what was charged at another time.
    fn refund(
        &mut self,
        now_us: u64,
        rule: usize,
        client: &str,
        cost: u64,
        charged_us: u64,
    ) -> Verdict;

    /// All that is recorded of a client under a rule, to be compared.
    fn recorded(&mut self, rule: usize, client: &str) -> String;
}

/// The reference.
pub struct Reference {
    rules: Vec<Vec<Limit>>,
    states: HashMap<(usize, String), Vec<State>>,
}

impl Reference {
    /// One with these rules.
    pub fn new(rules: &[Vec<Limit>]) -> Self {
        Self { rules: rules.to_vec(), states: HashMap::new() }
    }

    fn states(&mut self, rule: usize, client: &str) -> (&[Limit], &mut Vec<State>) {
        let limits = &self.rules[rule];
        let new = || limits.iter().map(State::new).collect();
        (limits, self.states.entry((rule, client.to_owned())).or_insert_with(new))
    }
}

impl Subject for Reference {
    fn decide(&mut self, now_us: u64, rule: usize, client: &str, cost: u64) -> Verdict {
        let (limits, states) = self.states(rule, client);
        decide(limits, states, Timestamp::from_micros(now_us), cost)
    }

    fn charge(&mut self, now_us: u64, rule: usize, client: &str, cost: u64) -> Verdict {
        let (limits, states) = self.states(rule, client);
        charge_afterwards(limits, states, Timestamp::from_micros(now_us), cost)
            .expect("no more than a log takes")
    }

    fn refund(
        &mut self,
        now_us: u64,
        rule: usize,
        client: &str,
        cost: u64,
        charged_us: u64,
    ) -> Verdict {
        let (limits, states) = self.states(rule, client);
        let [now, charged_at] = [now_us, charged_us].map(Timestamp::from_micros);
        give_back(limits, states, now, cost, charged_at)
    }

    fn recorded(&mut self, rule: usize, client: &str) -> String {
        format!("{:?}", self.states(rule, client).1)
    }
}

/// The script in a Redis of its own.
pub struct InRedis {
    redis: Redis,
    script: Script,
}

impl InRedis {
    /// One with no rules yet.
    pub fn start() -> Self {
        let redis = Redis::start();
        let script = Script::with(redis.connect(), &[]);
        Self { redis, script }
    }

    /// Forgets everything, and has these rules from now on.
    pub fn begin(&mut self, rules: &[Vec<Limit>]) {
        self.redis.command::<()>("FLUSHALL");
        self.script = Script::with(self.redis.connect(), rules);
    }

    fn perform(&mut self, now_us: u64, rule: usize, client: &str, operation: Operation) -> Verdict {
        self.script.perform_and_persist(now_us, rule, client, operation).0.expect("a verdict")
    }
}

impl Subject for InRedis {
    fn decide(&mut self, now_us: u64, rule: usize, client: &str, cost: u64) -> Verdict {
        self.perform(now_us, rule, client, Operation::Decide { cost })
    }

    fn charge(&mut self, now_us: u64, rule: usize, client: &str, cost: u64) -> Verdict {
        self.perform(now_us, rule, client, Operation::Charge { cost })
    }

    fn refund(
        &mut self,
        now_us: u64,
        rule: usize,
        client: &str,
        cost: u64,
        charged_us: u64,
    ) -> Verdict {
        let charged_at = Timestamp::from_micros(charged_us);
        self.perform(now_us, rule, client, Operation::Refund { cost, charged_at })
    }

    fn recorded(&mut self, rule: usize, client: &str) -> String {
        let keys = self.script.keys(rule, client);
        let dump = |key| self.redis.command::<redis::Value>(&format!("DUMP {key}"));
        format!("{:?}", keys.iter().map(dump).collect::<Vec<_>>())
    }
}

/// A store in memory of its own.
pub struct InMemory {
    store: Arc<Store>,
    rules: Vec<Terms>,
    now: Moment,
}

impl InMemory {
    /// One with these rules, and clocks that go alike.
    pub fn new(rules: &[Vec<Limit>]) -> Self {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let name = format!("subject {}", OPENED.fetch_add(1, Ordering::Relaxed));
        let (store, _) = Store::open(&name, 16 << 20).expect("memory");
        let terms = |limits: &Vec<Limit>| {
            let names: Vec<String> = limits.iter().map(Limit::key_suffix).collect();
            store.terms(limits, &names)
        };
        let rules = rules.iter().map(terms).collect();
        Self { store, rules, now: moment(0) }
    }

    /// Who asks, and under what.
    fn at(&mut self, now_us: u64, rule: usize, client: &str) -> (&Store, &Terms, Tag, Moment) {
        self.now = moment(now_us);
        (&self.store, &self.rules[rule], self.store.tag(client.as_bytes()), self.now)
    }
}

fn moment(now_us: u64) -> Moment {
    Moment { wall: Timestamp::from_micros(now_us), uptime: Uptime::from_micros(now_us) }
}

impl Subject for InMemory {
    fn decide(&mut self, now_us: u64, rule: usize, client: &str, cost: u64) -> Verdict {
        let (store, terms, tag, now) = self.at(now_us, rule, client);
        store.decide(terms, tag, cost, || now).expect("a verdict").1
    }

    fn charge(&mut self, now_us: u64, rule: usize, client: &str, cost: u64) -> Verdict {
        let (store, terms, tag, now) = self.at(now_us, rule, client);
        store.charge(terms, tag, cost, || now).expect("a verdict").1
    }

    fn refund(
        &mut self,
        now_us: u64,
        rule: usize,
        client: &str,
        cost: u64,
        charged_us: u64,
    ) -> Verdict {
        let charged_at = Timestamp::from_micros(charged_us);
        let (store, terms, tag, now) = self.at(now_us, rule, client);
        store.refund(terms, tag, cost, charged_at, || now).expect("a verdict").1
    }

    /// What it would say during the next half a minute, and how much it holds.
    fn recorded(&mut self, rule: usize, client: &str) -> String {
        let tag = self.store.tag(client.as_bytes());
        let look = |step: u32| {
            let then = self.now.after(step * Duration::from_millis(500));
            self.store.decide(&self.rules[rule], tag, 0, || then).expect("a verdict").1
        };
        format!("{:?} {:?}", (0..60).map(look).collect::<Vec<_>>(), self.store.usage())
    }
}
