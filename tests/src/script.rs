//! The decision script, called directly, with the test's clock.

use std::ops::RangeInclusive;
use std::time::Instant;

use redis::{Connection, Value};
use weir_core::{Algorithm, KeyRule, Limit, OnError, Policy, Verdict};
use weir_redis::{Ask, Batch, Plan, Source, decode};

/// A caller of the script with policies of one or more limits each.
pub struct Script {
    connection: Connection,
    plans: Vec<Plan>,
}

impl Script {
    /// A caller whose plan N has the limits `policies[N]`.
    pub fn new(mut connection: Connection, policies: &[&[&str]]) -> Self {
        let loaded: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(weir_redis::script::SOURCE)
            .query(&mut connection)
            .expect("the script loads");
        assert_eq!(loaded, weir_redis::script::hash());
        let plans = policies.iter().map(|limits| plan(limits)).collect();
        Self { connection, plans }
    }

    /// A request under plan `plan` for `client`.
    pub fn ask(&self, plan: usize, client: &str, cost: u64) -> Ask {
        Ask {
            ticket: 0,
            plan,
            source: Source::Given,
            value: client.as_bytes().into(),
            cost,
            deadline: Instant::now(),
        }
    }

    /// Decides a batch at this time (microseconds; `None` for Redis's clock).
    pub fn batch(&mut self, now_us: Option<u64>, asks: &[Ask]) -> Vec<Result<Verdict, String>> {
        let batch = Batch::new("weir", &self.plans, asks);
        let batch = match now_us {
            Some(now_us) => batch.at(now_us),
            None => batch,
        };
        let reply: Value = batch.evalsha().query(&mut self.connection).expect("the script answers");
        decode(reply, &self.plans, asks).expect("a well-formed reply")
    }

    /// Decides one request.
    pub fn decide(&mut self, now_us: u64, plan: usize, client: &str, cost: u64) -> Verdict {
        let ask = self.ask(plan, client, cost);
        self.batch(Some(now_us), &[ask]).remove(0).expect("a verdict")
    }

    /// The keys of a client under a plan.
    pub fn keys(&self, plan: usize, client: &str) -> Vec<String> {
        let mut keys = Vec::new();
        let value = client.as_bytes().into();
        self.plans[plan].keys("weir", Source::Given, &value, &mut Vec::new(), |key| {
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

fn plan(limits: &[&str]) -> Plan {
    let limit = |text: &&str| Limit {
        algorithm: Algorithm::SlidingLog,
        rate: text.parse().expect("a rate"),
    };
    Plan::new(&Policy {
        name: "test".to_owned(),
        limits: limits.iter().map(limit).collect(),
        key: KeyRule::Function,
        on_error: OnError::Open,
        error_status: 503,
    })
}
