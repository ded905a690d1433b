//! The `policies` table.

use super::fields::Fields;
use super::limits::{self, FIELDS};
use super::{NAME_RULE, Value, is_name};
use crate::policy::{KeyRule, OnError, Plan, Policy};
use crate::{ConfigError, Limit, Rate, Template};

pub(super) fn all(config: Value) -> Result<Vec<Policy>, ConfigError> {
    let table = config.into_table("policies")?;
    if table.is_empty() {
        return Err(ConfigError::new("policies", "must name at least one policy"));
    }
    let policies: Vec<Policy> =
        table.into_iter().map(|(name, value)| policy(name, value)).collect::<Result<_, _>>()?;
    for (index, policy) in policies.iter().enumerate() {
        check_shared_rates(policy, &policies[..index])?;
    }
    Ok(policies)
}

/// A token bucket keeps no history: what one policy's rate has refilled, the
/// other's can no longer hold against a client.
fn check_shared_rates(policy: &Policy, others: &[Policy]) -> Result<(), ConfigError> {
    let Some(bucket) = &policy.bucket else { return Ok(()) };
    for other in others.iter().filter(|other| other.bucket.as_ref() == Some(bucket)) {
        for rate in rates(policy) {
            let is_other = |with: &Rate| with.window() == rate.window() && *with != rate;
            if let Some(with) = rates(other).find(is_other) {
                let problem = format!(
                    "{bucket:?}: a token bucket that is shared has one rate, but here it has \
                     {rate} and in policies.{} {with}; burst may differ",
                    other.name
                );
                return Err(ConfigError::new(format!("policies.{}.bucket", policy.name), problem));
            }
        }
    }
    Ok(())
}

/// Those of its token buckets, its plans' among them.
fn rates(policy: &Policy) -> impl Iterator<Item = Rate> {
    let plans = policy.plans.iter().flat_map(|plan| &plan.limits);
    policy.limits.iter().chain(plans).filter_map(|limit| match limit {
        Limit::TokenBucket(terms) => Some(terms.rate()),
        _ => None,
    })
}

fn policy(name: String, config: Value) -> Result<Policy, ConfigError> {
    check_name("policies", &name)?;
    let known: Vec<&str> =
        FIELDS.into_iter().chain(["plans", "bucket", "key", "on_error", "error_status"]).collect();
    let mut fields = Fields::of(format!("policies.{name}"), config, &known)?;
    let limits = limits::read(&mut fields)?;
    let plans = plans(&mut fields, &limits)?;
    let bucket = fields.string("bucket")?;
    if bucket.as_ref().is_some_and(|bucket| !is_name(bucket)) {
        return Err(fields.wrong("bucket", NAME_RULE));
    }
    let key = key_rule(&mut fields)?;
    let on_error = match fields.string("on_error")?.as_deref() {
        None | Some("open") => OnError::Open,
        Some("closed") => OnError::Closed,
        Some(other) => {
            let problem = format!("{other:?}: must be \"open\" or \"closed\"");
            return Err(fields.wrong("on_error", problem));
        }
    };
    let error_status = fields.whole_number("error_status", 400..=599)?.unwrap_or(503) as u16;
    Ok(Policy { name, limits, plans, bucket, key, on_error, error_status })
}

fn check_name(path: &str, name: &str) -> Result<(), ConfigError> {
    if is_name(name) {
        return Ok(());
    }
    Err(ConfigError::new(format!("{path}[{name:?}]"), format!("the name {NAME_RULE}")))
}

fn plans(fields: &mut Fields, limits: &[Limit]) -> Result<Vec<Plan>, ConfigError> {
    let Some(config) = fields.take("plans") else { return Ok(Vec::new()) };
    let path = fields.path_of("plans");
    let table = config.into_table(&path)?;
    if table.is_empty() {
        return Err(fields.wrong("plans", "must name at least one plan"));
    }
    let plan = |(name, value): (String, Value)| {
        check_name(&path, &name)?;
        let limits = limits::read_plan(format!("{path}.{name}"), value, limits)?;
        Ok(Plan { name, limits })
    };
    table.into_iter().map(plan).collect()
}

fn key_rule(fields: &mut Fields) -> Result<KeyRule, ConfigError> {
    const WANTED: &str = "a string, a list of strings or a function";
    let template = |fields: &Fields, field: &str, text: &str| {
        Template::parse(text).map_err(|error| fields.wrong(field, format!("{text:?}: {error}")))
    };
    let templates = match fields.take("key") {
        None => vec![template(fields, "key", "$remote_addr")?],
        Some(Value::String(text)) => vec![template(fields, "key", &text)?],
        Some(Value::Function) => return Ok(KeyRule::Function),
        Some(Value::List(list)) => list
            .into_iter()
            .enumerate()
            .map(|(index, value)| {
                let field = format!("key[{}]", index + 1);
                match value {
                    Value::String(text) => template(fields, &field, &text),
                    other => Err(fields.mistyped(&field, "a string", &other)),
                }
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(fields.mistyped("key", WANTED, &other)),
    };
    Ok(KeyRule::Templates(templates))
}
