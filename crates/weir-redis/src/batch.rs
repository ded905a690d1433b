//! A batch on the wire: requests to one script call, its reply to verdicts.

use std::time::Duration;

use redis::{Cmd, Value};
use thiserror::Error;
use weir_core::decision::Wait;
use weir_core::{Standing, Timestamp, Verdict};

use crate::rule::{Ask, Rule};
use crate::script;

/// The arguments of one script call.
pub struct Batch<'a> {
    prefix: &'a str,
    rules: &'a [Rule],
    asks: &'a [Ask],
    /// The clock, in microseconds since the Unix epoch; `None` for the
    /// server's own.
    now_us: Option<u64>,
}

/// How many requests may leave as one call.
pub const MAX_BATCH: usize = 128;

/// About how long one call may hold the server, which does nothing else
/// meanwhile; a single request may take longer.
const MAX_WORK_US: u64 = 1_200;

/// How many of these requests, at least one, may leave as one call.
pub(crate) fn fitting<'a>(rules: &[Rule], asks: impl Iterator<Item = &'a Ask>) -> usize {
    let mut work_us = 0;
    let fits = |ask: &&Ask| {
        work_us += rules[ask.rule].work_us(ask.operation);
        work_us <= MAX_WORK_US
    };
    asks.take(MAX_BATCH).take_while(fits).count().max(1)
}

impl<'a> Batch<'a> {
    /// A batch of these requests, whose rules are indices into `rules`.
    pub fn new(prefix: &'a str, rules: &'a [Rule], asks: &'a [Ask]) -> Self {
        Self { prefix, rules, asks, now_us: None }
    }

    /// The same, decided by a test's clock.
    pub fn at(self, now_us: u64) -> Self {
        Self { now_us: Some(now_us), ..self }
    }

    /// The call by the script's hash.
    pub fn evalsha(&self) -> Cmd {
        self.call("EVALSHA", script::hash())
    }

    /// The call that brings the script along.
    pub fn eval(&self) -> Cmd {
        self.call("EVAL", script::SOURCE)
    }

    fn call(&self, command: &str, script: &str) -> Cmd {
        let keys: usize = self.asks.iter().map(|ask| self.rule(ask).limits().len()).sum();
        let mut call = redis::cmd(command);
        call.arg(script).arg(keys);
        let mut scratch = Vec::with_capacity(128);
        for ask in self.asks {
            self.rule(ask).keys(self.prefix, ask.source, &ask.value, &mut scratch, |key| {
                call.arg(key);
            });
        }
        match self.now_us {
            Some(now_us) => call.arg(now_us),
            None => call.arg(""),
        };
        for ask in self.asks {
            self.rule(ask).text(ask.operation, |text| {
                call.arg(text);
            });
        }
        call
    }

    fn rule(&self, ask: &Ask) -> &Rule {
        &self.rules[ask.rule]
    }
}

/// A reply that is not what the script's contract promises.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("the reply is not one of the decision script: {0}")]
pub struct MalformedReply(&'static str);

/// What one call was answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// When it was decided, by the clock of the script. What was charged by it is
    /// given back under this time.
    pub at: Timestamp,
    /// For each request its verdict, or the error with which it alone failed.
    pub verdicts: Vec<Result<Verdict, String>>,
}

/// Takes a reply apart.
pub fn decode(reply: Value, rules: &[Rule], asks: &[Ask]) -> Result<Reply, MalformedReply> {
    let Value::Array(fields) = reply else { return Err(MalformedReply("not a list")) };
    let mut fields = fields.into_iter();
    let at = Timestamp::from_micros(unsigned(integer(&mut fields)?)?);
    let mut verdicts = Vec::with_capacity(asks.len());
    for ask in asks {
        verdicts.push(match integer(&mut fields)? {
            -1 => Err(text(&mut fields)?),
            allowed @ (0 | 1) => {
                let limits = rules[ask.rule]
                    .limits()
                    .iter()
                    .map(|limit| standing(limit.capacity(), &mut fields))
                    .collect::<Result<Vec<_>, _>>()?;
                let has_room = limits.iter().all(|limit| limit.wait.is_none());
                if has_room != (allowed == 1) {
                    return Err(MalformedReply("a decision and its waits contradict each other"));
                }
                if allowed == 0 && !ask.operation.is_decision() {
                    return Err(MalformedReply("refused what cannot be"));
                }
                Ok(Verdict { allowed: allowed == 1, limits })
            }
            _ => return Err(MalformedReply("an unknown outcome")),
        });
    }
    match fields.next() {
        None => Ok(Reply { at, verdicts }),
        Some(_) => Err(MalformedReply("it is too long")),
    }
}

fn standing(
    limit: u64,
    fields: &mut impl Iterator<Item = Value>,
) -> Result<Standing, MalformedReply> {
    let remaining = unsigned(integer(fields)?)?;
    if remaining > limit {
        return Err(MalformedReply("more remains than the limit"));
    }
    let wait = match integer(fields)? {
        0 => Wait::None,
        -1 => Wait::Forever,
        wait => Wait::For(Duration::from_micros(unsigned(wait)?)),
    };
    let reset = Duration::from_micros(unsigned(integer(fields)?)?);
    Ok(Standing { limit, remaining, wait, reset })
}

fn unsigned(field: i64) -> Result<u64, MalformedReply> {
    u64::try_from(field).map_err(|_| MalformedReply("a negative number"))
}

fn integer(fields: &mut impl Iterator<Item = Value>) -> Result<i64, MalformedReply> {
    match fields.next() {
        Some(Value::Int(number)) => Ok(number),
        Some(_) => Err(MalformedReply("a field is not an integer")),
        None => Err(MalformedReply("it is too short")),
    }
}

fn text(fields: &mut impl Iterator<Item = Value>) -> Result<String, MalformedReply> {
    match fields.next() {
        Some(Value::BulkString(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Some(Value::SimpleString(text)) => Ok(text),
        Some(_) => Err(MalformedReply("an error is not a string")),
        None => Err(MalformedReply("it is too short")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Operation;
    use crate::testing::asks;
    use weir_core::{Limit, Policy};

    fn rules() -> Vec<Rule> {
        vec![rule("5/1s")]
    }

    fn rule(rate: &str) -> Rule {
        let limit = Limit::SlidingLog(rate.parse().expect(rate));
        let policy = Policy::new("api", vec![limit]);
        Rule::new(&policy, &policy.limits)
    }

    #[test]
    fn a_call_is_as_long_as_the_server_may_be_held() {
        let rules = rules();
        assert_eq!(fitting(&rules, asks(1).iter()), 1);
        assert_eq!(fitting(&rules, asks(128).iter()), 128);
        assert_eq!(fitting(&rules, asks(129).iter()), 128);
        let mut dear = asks(3);
        dear[1].operation = Operation::Decide { cost: 5 };
        assert_eq!(fitting(&rules, dear.iter()), 3);

        let rules = [rule("9000/1s")];
        for (costs, count) in [([9_000, 1, 1], 1), ([1, 9_000, 1], 1), ([500, 500, 500], 2)] {
            let mut asks = asks(3);
            for (ask, cost) in asks.iter_mut().zip(costs) {
                ask.operation = Operation::Decide { cost };
            }
            assert_eq!(fitting(&rules, asks.iter()), count, "{costs:?}");
        }
    }

    fn reply(fields: &[i64]) -> Value {
        Value::Array(fields.iter().map(|&field| Value::Int(field)).collect())
    }

    #[test]
    fn a_call_names_the_keys_first_and_one_text_for_each_request() {
        let call = Batch::new("weir", &rules(), &asks(1)).at(7).evalsha();
        let key = "weir:{=x}:api:log:1s";
        let expected = format!(
            "*6\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n1\r\n${}\r\n{key}\r\n$1\r\n7\r\n$15\r\n1 log:5:1000000\r\n",
            script::hash(),
            key.len(),
        );
        assert_eq!(String::from_utf8(call.get_packed_command()).expect("ASCII"), expected);
    }

    #[test]
    fn one_request_may_fail_without_the_others() {
        let reply = Value::Array(vec![
            Value::Int(7),
            Value::Int(1),
            Value::Int(4),
            Value::Int(0),
            Value::Int(1_000_000),
            Value::Int(-1),
            Value::BulkString(b"WRONGTYPE no".to_vec()),
            Value::Int(0),
            Value::Int(0),
            Value::Int(250),
            Value::Int(250),
        ]);
        let Reply { at, verdicts } = decode(reply, &rules(), &asks(3)).expect("well formed");
        assert_eq!(at, Timestamp::from_micros(7));
        assert!(verdicts[0].as_ref().is_ok_and(|verdict| verdict.allowed));
        assert_eq!(verdicts[1], Err("WRONGTYPE no".to_owned()));
        let refused = verdicts[2].as_ref().expect("a verdict");
        assert!(!refused.allowed);
        assert_eq!(refused.limits[0].wait, Wait::For(Duration::from_micros(250)));
    }

    #[test]
    fn whatever_else_comes_is_malformed_and_never_a_decision() {
        for (fields, why) in [
            (&[][..], "it is too short"),
            (&[7], "it is too short"),
            (&[-1, 1, 4, 0, 9], "a negative number"),
            (&[7, 1, 4, 0], "it is too short"),
            (&[7, 1, 4, 0, 9, 1], "it is too long"),
            (&[7, 2, 4, 0, 9], "an unknown outcome"),
            (&[7, 1, -1, 0, 9], "a negative number"),
            (&[7, 1, 6, 0, 9], "more remains than the limit"),
            (&[7, 0, 0, -2, 9], "a negative number"),
            (&[7, 1, 0, 5, 9], "a decision and its waits contradict each other"),
            (&[7, 0, 1, 0, 9], "a decision and its waits contradict each other"),
        ] {
            let error = decode(reply(fields), &rules(), &asks(1));
            assert_eq!(error, Err(MalformedReply(why)), "{fields:?}");
        }
        let mut afterwards = asks(1);
        afterwards[0].operation = Operation::Charge { cost: 1 };
        let error = decode(reply(&[7, 0, 0, 5, 9]), &rules(), &afterwards);
        assert_eq!(error, Err(MalformedReply("refused what cannot be")));
        assert_eq!(decode(Value::Nil, &rules(), &asks(1)), Err(MalformedReply("not a list")));
    }
}
