//! The decision script, called directly, with the test's clock.

use std::ops::RangeInclusive;
use std::time::Instant;

use redis::{Connection, Value};
use weir_core::decision::Wait;
use weir_core::limit::BucketRate;
use weir_core::{Limit, Policy, Rate, Timestamp, Verdict};
use weir_redis::{Ask, Batch, Operation, Rule, Source, decode};

use crate::Redis;

/// 2027-01-15 08:00:00 UTC, in microseconds: where windows of a second, a
/// minute, an hour and eight hours begin.
pub const START_US: u64 = 1_800_000_000_000_000;

/// So many milliseconds later.
pub fn at(millis: u64) -> u64 {
    START_US + millis * 1_000
}

/// One of each algorithm, of a limit of 10 per minute or hour.
pub const ALL: [&str; 5] =
    ["log 10/1m", "ring 10/1m", "counter 10/1m", "bucket 10/1m", "quota 10/hour"];

/// What remains of the only limit of a rule, for the client `client`.
pub fn remaining(script: &mut Script, now_us: u64, rule: usize) -> u64 {
    script.decide(now_us, rule, "client", 0).limits[0].remaining
}

/// How long this cost has to wait there, in milliseconds, rounded down.
pub fn wait_ms(script: &mut Script, now_us: u64, rule: usize, cost: u64) -> u64 {
    match script.decide(now_us, rule, "client", cost).limits[0].wait {
        Wait::For(wait) => wait.as_millis() as u64,
        other => panic!("{other:?}"),
    }
}

/// A Redis, and a caller of the script with one rule for each of these limits.
pub fn each(limits: &[&str]) -> (Redis, Script) {
    let redis = Redis::start();
    let rules: Vec<Vec<Limit>> = limits.iter().map(|text| vec![limit(text)]).collect();
    let script = Script::with(redis.connect(), &rules);
    (redis, script)
}

/// A caller of the script with rules of one or more limits each. Rules are of
/// one policy, so limits of the same algorithm and window share their keys.
pub struct Script {
    connection: Connection,
    rules: Vec<Rule>,
}

/// What one call did to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyAfter {
    /// Milliseconds to live; -1 for ever, -2 if there is no key.
    pub ttl_ms: i64,
    /// Milliseconds by which the server may have paused before it told that.
    pub pause_ms: i64,
    /// Bytes, if it is a string; 0 otherwise.
    pub len: u64,
}

impl Script {
    /// A caller whose rule N has the limits `rules[N]`, as [`limit`] reads them.
    pub fn new(connection: Connection, rules: &[&[&str]]) -> Self {
        let limits = |rule: &&[&str]| rule.iter().map(|text| limit(text)).collect();
        let rules: Vec<Vec<Limit>> = rules.iter().map(limits).collect();
        Self::with(connection, &rules)
    }

    /// A caller whose rule N has the limits `rules[N]`.
    pub fn with(mut connection: Connection, rules: &[Vec<Limit>]) -> Self {
        let loaded: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(weir_redis::script::SOURCE)
            .query(&mut connection)
            .expect("the script loads");
        assert_eq!(loaded, weir_redis::script::hash());
        let rules = rules.iter().map(|limits| Rule::new(&policy(limits), limits)).collect();
        Self { connection, rules }
    }

    /// A request under rule `rule` for `client`.
    pub fn ask(&self, rule: usize, client: &str, cost: u64) -> Ask {
        self.perform(rule, client, Operation::Decide { cost })
    }

    /// This operation under rule `rule` for `client`.
    pub fn perform(&self, rule: usize, client: &str, operation: Operation) -> Ask {
        Ask {
            ticket: 0,
            rule,
            source: Source::Given,
            value: client.as_bytes().into(),
            operation,
            deadline: Instant::now(),
        }
    }

    /// Decides a batch at this time (microseconds; `None` for Redis's clock).
    pub fn batch(&mut self, now_us: Option<u64>, asks: &[Ask]) -> Vec<Result<Verdict, String>> {
        let batch = Batch::new("weir", &self.rules, asks);
        let batch = match now_us {
            Some(now_us) => batch.at(now_us),
            None => batch,
        };
        let reply: Value = batch.evalsha().query(&mut self.connection).expect("the script answers");
        let reply = decode(reply, &self.rules, asks).expect("a well-formed reply");
        if let Some(now_us) = now_us {
            assert_eq!(reply.at.as_micros(), now_us, "the time of the call");
        }
        reply.verdicts
    }

    /// Decides one request.
    pub fn decide(&mut self, now_us: u64, rule: usize, client: &str, cost: u64) -> Verdict {
        self.one(now_us, rule, client, Operation::Decide { cost }).expect("a verdict")
    }

    /// Charges one request after the fact.
    pub fn charge(
        &mut self,
        now_us: u64,
        rule: usize,
        client: &str,
        cost: u64,
    ) -> Result<Verdict, String> {
        self.one(now_us, rule, client, Operation::Charge { cost })
    }

    /// Gives back what was charged at another time.
    pub fn refund(
        &mut self,
        now_us: u64,
        rule: usize,
        client: &str,
        cost: u64,
        charged_us: u64,
    ) -> Verdict {
        let charged_at = Timestamp::from_micros(charged_us);
        self.one(now_us, rule, client, Operation::Refund { cost, charged_at }).expect("a verdict")
    }

    fn one(
        &mut self,
        now_us: u64,
        rule: usize,
        client: &str,
        operation: Operation,
    ) -> Result<Verdict, String> {
        let ask = self.perform(rule, client, operation);
        self.batch(Some(now_us), &[ask]).remove(0)
    }

    /// Does this for one request, and takes from its keys the time to live that they
    /// have then: what lives is up to the test's clock alone.
    pub fn perform_and_persist(
        &mut self,
        now_us: u64,
        rule: usize,
        client: &str,
        operation: Operation,
    ) -> (Result<Verdict, String>, Vec<KeyAfter>) {
        let asks = [self.perform(rule, client, operation)];
        let mut transaction = redis::pipe();
        transaction.atomic().cmd("TIME");
        transaction.add_command(Batch::new("weir", &self.rules, &asks).at(now_us).evalsha());
        let keys = self.keys(rule, client);
        for key in &keys {
            transaction.cmd("PTTL").arg(key).cmd("PERSIST").arg(key).ignore();
        }
        transaction.cmd("TIME");
        let mut replies: Vec<Value> =
            transaction.query(&mut self.connection).expect("the script answers");
        let mut time_ms = |index| {
            let (seconds, micros): (i64, i64) =
                redis::from_redis_value(replies.remove(index)).expect("the time");
            seconds * 1_000 + micros / 1_000
        };
        let (began_ms, ended_ms) = (time_ms(0), time_ms(1 + keys.len()));
        let verdict = decode(replies.remove(0), &self.rules, &asks)
            .expect("a well-formed reply")
            .verdicts
            .remove(0);
        let after = keys.iter().zip(replies).map(|(key, ttl)| KeyAfter {
            ttl_ms: redis::from_redis_value(ttl).expect("a time to live"),
            pause_ms: ended_ms - began_ms,
            len: redis::cmd("STRLEN").arg(key).query(&mut self.connection).unwrap_or(0),
        });
        (verdict, after.collect())
    }

    /// The keys of a client under a rule.
    pub fn keys(&self, rule: usize, client: &str) -> Vec<String> {
        let mut keys = Vec::new();
        let value = client.as_bytes().into();
        self.rules[rule].keys("weir", Source::Given, &value, &mut Vec::new(), |key| {
            keys.push(String::from_utf8(key.to_vec()).expect("keys are ASCII"));
        });
        keys
    }

    /// The server's clock, in microseconds since the epoch.
    pub fn server_us(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query(&mut self.connection).expect("the time");
        seconds * 1_000_000 + micros
    }

    /// When a key will go, in milliseconds since the epoch, as close as can be
    /// told with the commands of Redis 6.2; -1 for never, -2 for no key.
    pub fn expiry_ms(&mut self, key: &str) -> RangeInclusive<i64> {
        let before = self.server_us();
        let left: i64 =
            redis::cmd("PTTL").arg(key).query(&mut self.connection).expect("the time left");
        let after = self.server_us();
        if left < 0 {
            return left..=left;
        }
        (before / 1_000) as i64 + left - 1..=after.div_ceil(1_000) as i64 + left + 1
    }
}

/// The policy of all rules here.
pub fn policy(limits: &[Limit]) -> Policy {
    Policy::new("test", limits.to_vec())
}

/// Reads a limit as tests write them: `log 3/10s`, `ring 3/10s`,
/// `counter 3/10s`, `bucket 3/10s` with a burst of 3 or `bucket 3/10s 5` with
/// one of 5, `quota 3/day`.
pub fn limit(text: &str) -> Limit {
    let rate = |rate: &str| -> Rate { rate.parse().expect(text) };
    let bucket = |limit: &str, burst: u64| {
        Limit::TokenBucket(BucketRate::new(rate(limit), burst).expect(text))
    };
    match text.split(' ').collect::<Vec<_>>()[..] {
        ["log", limit] => Limit::SlidingLog(rate(limit)),
        ["ring", limit] => Limit::CompactLog(rate(limit)),
        ["counter", limit] => Limit::SlidingCounter(rate(limit)),
        ["bucket", limit] => bucket(limit, rate(limit).limit()),
        ["bucket", limit, burst] => bucket(limit, burst.parse().expect(text)),
        ["quota", limit] => Limit::Quota(limit.parse().expect(text)),
        _ => panic!("{text}"),
    }
}
