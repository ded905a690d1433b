//! Whoever decides: the reference in weir-core, and every store that must
//! decide as it does.

use std::collections::HashMap;

use weir_core::algorithm::{State, charge_afterwards, decide, give_back};
use weir_core::{Limit, Timestamp, Verdict};
use weir_redis::Operation;

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
