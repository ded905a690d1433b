//! Algorithms, several limits, plans and buckets.

use super::*;
use crate::limit::BucketRate;
use crate::{Policy, Rate};

fn number(number: u64) -> Value {
    Value::Number(number as f64)
}

fn list<const N: usize>(items: [Value; N]) -> Value {
    Value::List(items.to_vec())
}

fn policy<const N: usize>(fields: [(&str, Value); N]) -> Policy {
    let mut config = check(with_policy(table(fields))).expect("valid");
    config.policies.remove(0)
}

fn rate(text: &str) -> Rate {
    text.parse().expect(text)
}

fn bucket(text: &str, burst: u64) -> Limit {
    Limit::TokenBucket(BucketRate::new(rate(text), burst).expect("a bucket"))
}

fn limit<const N: usize>(limit: &str, algorithm: &str, more: [(&str, Value); N]) -> Value {
    let fields = [("limit", text(limit)), ("algorithm", text(algorithm))];
    let fields = fields.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value));
    Value::Table(fields.collect())
}

#[test]
fn a_policy_picks_its_algorithm() {
    let of = |rate: &str, algorithm: &str| {
        policy([("limit", text(rate)), ("algorithm", text(algorithm))]).limits
    };
    assert_eq!(of("9/1m", "sliding-log"), [Limit::SlidingLog(rate("9/1m"))]);
    assert_eq!(of("9/1m", "compact-log"), [Limit::CompactLog(rate("9/1m"))]);
    assert_eq!(of("9/1m", "sliding-counter"), [Limit::SlidingCounter(rate("9/1m"))]);
    assert_eq!(of("9/1m", "token-bucket"), [bucket("9/1m", 9)]);
    assert_eq!(of("9/month", "quota"), [Limit::Quota("9/month".parse().expect("a quota"))]);
    let burst = policy([
        ("limit", text("10/1s")),
        ("algorithm", text("token-bucket")),
        ("burst", number(40)),
    ]);
    assert_eq!(burst.limits, [bucket("10/1s", 40)]);
}

#[test]
fn a_policy_may_have_several_limits() {
    let limits = policy([(
        "limits",
        list([
            limit("10/1s", "token-bucket", [("burst", number(20))]),
            table([("limit", text("5000/1h"))]),
            limit("100000/month", "quota", []),
        ]),
    )])
    .limits;
    let quota = Limit::Quota("100000/month".parse().expect("a quota"));
    assert_eq!(limits, [bucket("10/1s", 20), Limit::SlidingLog(rate("5000/1h")), quota]);
}

#[test]
fn a_plan_has_other_numbers_for_the_same_limits() {
    let tiers = policy([
        ("limit", text("60/1m")),
        ("plans", table([("silver", text("600/1m")), ("gold", text("6000/60s"))])),
    ]);
    let plans: Vec<_> = tiers.plans.iter().map(|plan| (&plan.name[..], &plan.limits[..])).collect();
    assert_eq!(
        plans,
        [
            ("gold", &[Limit::SlidingLog(rate("6000/1m"))][..]),
            ("silver", &[Limit::SlidingLog(rate("600/1m"))][..]),
        ]
    );

    let burst = || ("burst", number(70));
    let tiers = policy([
        ("limits", list([limit("1/1s", "token-bucket", []), limit("5/day", "quota", [])])),
        (
            "plans",
            table([(
                "gold",
                table([(
                    "limits",
                    list([table([("limit", text("2/1s")), burst()]), limit("50/day", "quota", [])]),
                )]),
            )]),
        ),
    ]);
    let quota = Limit::Quota("50/day".parse().expect("a quota"));
    assert_eq!(tiers.plans[0].limits, [bucket("2/1s", 70), quota]);

    // A bucket's burst is the plan's own limit, unless the plan has one.
    let tiers = policy([
        ("limit", text("1/1s")),
        ("algorithm", text("token-bucket")),
        ("burst", number(9)),
        ("plans", table([("a", text("2/1s")), ("b", table([("limit", text("2/1s")), burst()]))])),
    ]);
    assert_eq!(tiers.plans[0].limits, [bucket("2/1s", 2)]);
    assert_eq!(tiers.plans[1].limits, [bucket("2/1s", 70)]);
}

#[test]
fn a_bucket_names_a_budget_apart_from_any_policy() {
    assert_eq!(policy([("limit", text("1/s"))]).budget(), "api");
    let shared = policy([("limit", text("1/s")), ("bucket", text("api"))]);
    assert_eq!(shared.budget(), "@api");
}

#[test]
fn wrong_limits_are_refused_by_the_name_of_their_field() {
    let one = || ("limit", text("5/10s"));
    let several = |items| ("limits", Value::List(items));
    let plan = |plan: Value| ("plans", table([("gold", plan)]));
    let first = || table([("limit", text("5/10s"))]);
    let same = "algorithm and window must be the same, so that a client whose plan changes keeps \
                what it has used";
    for (policy, message) in [
        (
            table([one(), ("algorithm", text("leaky"))]),
            "policies.api.algorithm: \"leaky\": must be one of \"sliding-log\", \"compact-log\", \
             \"sliding-counter\", \"token-bucket\", \"quota\""
                .to_owned(),
        ),
        (
            table([one(), ("burst", number(5))]),
            "policies.api.burst: is for the algorithm \"token-bucket\" alone".to_owned(),
        ),
        (
            limit("5/1s", "token-bucket", [("burst", number(0))]),
            "policies.api.burst: 0: must be a whole number from 1 to 9007199254740991".to_owned(),
        ),
        (
            limit("5/1s", "token-bucket", [("burst", Value::Number(1.5))]),
            "policies.api.burst: 1.5: must be a whole number from 1 to 9007199254740991".to_owned(),
        ),
        (
            limit("5/1s", "token-bucket", [("burst", number(1 << 53))]),
            "policies.api.burst: 9007199254740992: must be a whole number from 1 to \
             9007199254740991"
                .to_owned(),
        ),
        (
            limit("1/366d", "token-bucket", [("burst", number(2))]),
            "policies.api.burst: 2: the rate must refill it within 366d".to_owned(),
        ),
        (
            limit("5/1h", "quota", []),
            "policies.api.limit: \"5/1h\": the period of a quota must be hour, day or month"
                .to_owned(),
        ),
        (
            table([("limit", text("5/month"))]),
            "policies.api.limit: \"5/month\": the window: the unit must be one of ms, s, m, h, d; \
             month is a period of the algorithm \"quota\""
                .to_owned(),
        ),
        (
            table([one(), several(vec![first()])]),
            "policies.api.limit: cannot stand beside limits; it belongs into each".to_owned(),
        ),
        (
            table([several(vec![first()]), ("burst", number(2))]),
            "policies.api.burst: cannot stand beside limits; it belongs into each".to_owned(),
        ),
        (
            table([several(vec![first(), first()])]),
            "policies.api.limits[2]: has the algorithm and window of limits[1], and so its key; \
             write another window, as \"100/2s\" for \"50/1s\""
                .to_owned(),
        ),
        (
            table([several(vec![first(); 9])]),
            "policies.api.limits: must be at most 8 limits".to_owned(),
        ),
        (
            table([("limits", table([]))]),
            "policies.api.limits: must have at least one limit".to_owned(),
        ),
        (
            table([("limits", text("5/10s"))]),
            "policies.api.limits: must be a list of tables, as { { limit = \"5/1m\" } }, not a string".to_owned(),
        ),
        (
            table([several(vec![text("5/10s")])]),
            "policies.api.limits[1]: must be a table of named fields, not a string".to_owned(),
        ),
        (
            table([several(vec![first(), table([("limits", text("5/1s"))])])]),
            "policies.api.limits[2].limits: unknown field; known here are name, limit, algorithm, burst"
                .to_owned(),
        ),
        (
            table([several(vec![first(), table([])])]),
            "policies.api.limits[2].limit: missing; it must be a string like \"100/1m\"".to_owned(),
        ),
        (
            table([one(), ("plans", table([]))]),
            "policies.api.plans: must name at least one plan".to_owned(),
        ),
        (
            table([one(), ("plans", text("gold"))]),
            "policies.api.plans: must be a table of named fields, not a string".to_owned(),
        ),
        (
            table([one(), ("plans", table([("a b", text("5/10s"))]))]),
            "policies.api.plans[\"a b\"]: the name must be 1 to 64 letters, digits, \"_\", \"-\" \
             or \".\""
                .to_owned(),
        ),
        (
            table([one(), plan(number(5))]),
            "policies.api.plans.gold: must be a string or a table, not a number".to_owned(),
        ),
        (
            table([one(), plan(text("50/1m"))]),
            format!(
                "policies.api.plans.gold.limit: is a log:1m, and the policy's own limit a \
                 log:10s: {same}"
            ),
        ),
        (
            table([one(), plan(limit("50/10s", "compact-log", []))]),
            format!(
                "policies.api.plans.gold.limit: is a ring:10s, and the policy's own limit a \
                 log:10s: {same}"
            ),
        ),
        (
            table([one(), plan(text("0/10s"))]),
            "policies.api.plans.gold.limit: \"0/10s\": the limit must be a whole number from 1 to \
             9007199254740991"
                .to_owned(),
        ),
        (
            table([one(), plan(table([several(vec![first(), first()])]))]),
            "policies.api.plans.gold.limits: must be as many as the policy's: 1, not 2".to_owned(),
        ),
        (
            table([several(vec![first(), limit("5/day", "quota", [])]), plan(text("5/10s"))]),
            "policies.api.plans.gold.limits: missing; it must be a list: the policy has several \
             limits"
                .to_owned(),
        ),
        (
            table([
                several(vec![first(), limit("5/day", "quota", [])]),
                plan(table([several(vec![first(), limit("5/hour", "quota", [])])])),
            ]),
            format!(
                "policies.api.plans.gold.limits[2].limit: is a quota:hour, and the policy's own \
                 limit a quota:day: {same}"
            ),
        ),
        (
            table([one(), ("bucket", text("a:b"))]),
            "policies.api.bucket: must be 1 to 64 letters, digits, \"_\", \"-\" or \".\""
                .to_owned(),
        ),
    ] {
        assert_eq!(refusal(with_policy(policy)), message);
    }
}

/// What one policy's rate refills, another's could not hold against a client.
#[test]
fn a_token_bucket_that_is_shared_has_one_rate() {
    let config = |a: Value, b: Value| {
        let redis = table([("url", text("redis://localhost"))]);
        table([("redis", redis), ("policies", table([("a", a), ("b", b)]))])
    };
    let shared = |rate: &str, algorithm: &str, burst: Option<u64>| {
        let fields = [("bucket", text("x"))].into_iter();
        let burst = burst.map(|burst| ("burst", number(burst)));
        let fields: Vec<_> = fields.chain(burst).collect();
        let Value::Table(mut table) = limit(rate, algorithm, []) else { unreachable!() };
        table.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
        Value::Table(table)
    };
    let bucket = |rate: &str, burst: u64| shared(rate, "token-bucket", Some(burst));
    assert_eq!(
        refusal(config(bucket("5/10s", 8), bucket("50/10s", 80))),
        "policies.b.bucket: \"x\": a token bucket that is shared has one rate, but here it has \
         50/10s and in policies.a 5/10s; burst may differ"
    );
    let Value::Table(mut tiers) = bucket("5/10s", 8) else { unreachable!() };
    tiers.insert("plans".to_owned(), table([("gold", text("50/10s"))]));
    assert_eq!(
        refusal(config(bucket("5/10s", 8), Value::Table(tiers))),
        "policies.b.bucket: \"x\": a token bucket that is shared has one rate, but here it has \
         50/10s and in policies.a 5/10s; burst may differ"
    );
    for (a, b) in [
        (bucket("5/10s", 8), bucket("5/10s", 80)),
        (bucket("5/10s", 8), bucket("50/20s", 8)),
        (shared("5/10s", "sliding-log", None), shared("50/10s", "sliding-log", None)),
        (bucket("5/10s", 8), limit("50/10s", "token-bucket", [])),
    ] {
        assert!(check(config(a, b)).is_ok());
    }
}
