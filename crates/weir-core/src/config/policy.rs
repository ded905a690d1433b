//! The `policies` table.

use super::fields::Fields;
use super::memory::Sharing;
use super::{NAME_RULE, Value, answers, clients, is_name, limits};
use crate::policy::{Charge, OnError, Plan, Policy};
use crate::{ConfigError, Limit, Rate};

pub(super) fn all(config: Value, sharing: Sharing) -> Result<Vec<Policy>, ConfigError> {
    let table = config.into_table("policies")?;
    if table.is_empty() {
        return Err(ConfigError::new("policies", "must name at least one policy"));
    }
    let checked = table.into_iter().map(|(name, value)| policy(name, value, sharing));
    let policies: Vec<Policy> = checked.collect::<Result<_, _>>()?;
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
        let is_local = [policy, other].iter().any(|policy| policy.on_error == OnError::Local);
        let has_rates = rates(policy).next().is_some() && rates(other).next().is_some();
        if is_local && has_rates && policy.local_share != other.local_share {
            let problem = format!(
                "{}: a token bucket that is shared has one rate, but in policies.{} local_share \
                 is {}",
                policy.local_share, other.name, other.local_share
            );
            return Err(ConfigError::new(format!("policies.{}.local_share", policy.name), problem));
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

fn policy(name: String, config: Value, sharing: Sharing) -> Result<Policy, ConfigError> {
    check_name("policies", &name)?;
    let own = [
        "plans",
        "bucket",
        "charge",
        "dry_run",
        "on_error",
        "error_status",
        "local_share",
        "remember_denials",
    ];
    let known: Vec<&str> = limits::FIELDS
        .into_iter()
        .chain(clients::FIELDS)
        .chain(own)
        .chain(answers::FIELDS)
        .collect();
    let mut fields = Fields::of(format!("policies.{name}"), config, &known)?;
    let (limits, limit_names) = limits::read(&mut fields, &name)?;
    let plans = plans(&mut fields, &limits)?;
    let bucket = fields.string("bucket")?;
    if bucket.as_ref().is_some_and(|bucket| !is_name(bucket)) {
        return Err(fields.wrong("bucket", NAME_RULE));
    }
    let sharing = Sharing::read(&mut fields, sharing)?;
    Ok(Policy {
        local_share: sharing.local_share,
        remember_denials: sharing.remember_denials,
        limits,
        limit_names,
        plans,
        bucket,
        key: clients::key_rule(&mut fields)?,
        ip: clients::prefixes(&mut fields)?,
        hash_keys: fields.boolean("hash_keys")?,
        exempt: clients::exempt(&mut fields)?,
        charge: charge(&mut fields)?,
        dry_run: fields.boolean("dry_run")?,
        on_error: on_error(&mut fields)?,
        error_status: error_status(&mut fields)?,
        answers: answers::read(&mut fields)?,
        name,
    })
}

fn on_error(fields: &mut Fields) -> Result<OnError, ConfigError> {
    match fields.string("on_error")?.as_deref() {
        None | Some("open") => Ok(OnError::Open),
        Some("closed") => Ok(OnError::Closed),
        Some("local") => Ok(OnError::Local),
        Some(other) => {
            let problem = format!("{other:?}: must be \"open\", \"closed\" or \"local\"");
            Err(fields.wrong("on_error", problem))
        }
    }
}

fn error_status(fields: &mut Fields) -> Result<u16, ConfigError> {
    let status = fields.whole_number("error_status", 400..=599)?.unwrap_or(503) as u16;
    // nginx closes the connection, or answers with another.
    if let 408 | 444 | 494..=499 = status {
        let problem = format!("{status}: has a meaning of its own in nginx; 503 is the usual one");
        return Err(fields.wrong("error_status", problem));
    }
    Ok(status)
}

fn charge(fields: &mut Fields) -> Result<Charge, ConfigError> {
    const WANTED: &str = "must be \"always\" or a list of statuses, as { 401, 403 }";
    let statuses = match fields.take("charge") {
        None => return Ok(Charge::Always),
        Some(Value::String(word)) if word == "always" => return Ok(Charge::Always),
        Some(Value::List(statuses)) => statuses,
        Some(other) => {
            return Err(fields.wrong("charge", format!("{WANTED}, not {}", other.kind())));
        }
    };
    let status = |(index, status)| match status {
        Value::Number(status) if status.fract() == 0.0 && (100.0..=599.0).contains(&status) => {
            Ok(status as u16)
        }
        Value::Number(status) => {
            let problem = format!("{status}: must be a status from 100 to 599");
            Err(fields.wrong(&format!("charge[{}]", index + 1), problem))
        }
        other => Err(fields.mistyped(&format!("charge[{}]", index + 1), "a status", &other)),
    };
    statuses.into_iter().enumerate().map(status).collect::<Result<_, _>>().map(Charge::Statuses)
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
