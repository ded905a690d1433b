//! The steps that are plain functions: of the worker, and of the I/O thread.

use std::time::{Duration, Instant};

use criterion::Criterion;
use redis::Value as Reply;
use weir_core::fields::{self, Presenter};
use weir_core::identity::Value;
use weir_core::policy::KeySource;
use weir_core::texts::Texts;
use weir_core::{KeyRule, Limit, Policy, Template};
use weir_redis::{Ask, Batch, Operation, Rule, Source, decode};

use crate::BATCHES;
use crate::table::Table;

/// The policy of all steps, as a rule and as what its clients read.
pub(crate) fn policy() -> Policy {
    let limit = Limit::SlidingCounter("1000000/1m".parse().expect("a rate"));
    let key = Template::parse("$remote_addr").expect("a template");
    let key = KeyRule::Sources(vec![KeySource(vec![key])]);
    Policy { key, ..Policy::new("api", vec![limit]) }
}

/// So many requests of as many clients.
pub(crate) fn asks(count: usize) -> Vec<Ask> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let ask = |client: usize| Ask {
        ticket: client as u64 + 1,
        rule: 0,
        source: Source::Template(0),
        value: address(client).as_bytes().into(),
        operation: Operation::Decide { cost: 1 },
        deadline,
    };
    (0..count).map(ask).collect()
}

pub(crate) fn address(client: usize) -> String {
    format!("203.0.113.{}", 100 + client)
}

/// What Redis says to as many, all admitted.
fn reply(count: usize) -> Vec<i64> {
    let mut fields = vec![1_800_000_000_000_000];
    (0..count).for_each(|_| fields.extend([1, 999_000, 0, 59_000_000]));
    fields
}

pub(crate) fn measure(criterion: &mut Criterion, table: &mut Table) {
    let policy = policy();
    let rules = [Rule::new(&policy, &policy.limits)];
    let presenter = Presenter::new(&policy, &policy.limits);

    let client = address(7);
    let identity = |()| Value::new(&[client.as_bytes()], None);
    table.step(criterion, ("worker: identity (in submit)", 1), || (), identity);

    for batch in BATCHES {
        let asks = asks(batch);
        let mut scratch = Vec::with_capacity(128);
        let mut keys = |()| {
            let mut bytes = 0;
            for Ask { source, value, .. } in &asks {
                rules[0].keys("weir", *source, value, &mut scratch, |key| bytes += key.len());
            }
            bytes
        };
        table.step(criterion, ("thread: keys (in encode)", batch), || (), &mut keys);

        let encode = |()| Batch::new("weir", &rules, &asks).evalsha();
        table.step(criterion, ("thread: encode", batch), || (), encode);

        let call = encode(());
        let pack = |()| call.get_packed_command();
        table.step(criterion, ("thread: pack (redis crate)", batch), || (), pack);

        let fields = reply(batch);
        let mut text = format!("*{}\r\n", fields.len()).into_bytes();
        fields.iter().for_each(|field| text.extend(format!(":{field}\r\n").into_bytes()));
        let parse = |()| redis::parse_redis_value(&text);
        table.step(criterion, ("thread: parse (redis crate)", batch), || (), parse);

        let value = || Reply::Array(fields.iter().map(|&field| Reply::Int(field)).collect());
        let take = |value| decode(value, &rules, &asks).expect("a well-formed reply");
        table.step(criterion, ("thread: decode", batch), value, take);
    }

    let value = Reply::Array(reply(1).into_iter().map(Reply::Int).collect());
    let decoded = decode(value, &rules, &asks(1)).expect("a well-formed reply");
    let verdict = decoded.verdicts.into_iter().flatten().next().expect("a verdict");
    let mut texts = Texts::default();
    let headers = |()| {
        texts.clear();
        presenter.write(&verdict, b"", &mut texts);
        fields::retry_after(&verdict)
    };
    table.step(criterion, ("worker: header text (in drain)", 1), || (), headers);
}
