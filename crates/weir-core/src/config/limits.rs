//! The limits of a policy or a plan: one written flat, or a list.

use super::fields::Fields;
use super::{NAME_RULE, Value, is_name};
use crate::limit::{BucketRate, Limit, QuotaError};
use crate::period::Period;
use crate::rate::{MAX_LIMIT, Rate, RateError};
use crate::{ConfigError, Policy};

/// The fields in which limits are written.
pub(super) const FIELDS: [&str; 4] = ["limit", "algorithm", "burst", "limits"];

/// Those of one limit.
const FLAT: [&str; 3] = ["limit", "algorithm", "burst"];

/// The most limits that one policy may have: all of them are one step of one
/// script call, which others wait for.
pub const MAX_LIMITS: usize = 8;

const EXAMPLE: &str = "a string like \"100/1m\"";

/// How a limit is counted, by its word in the configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    SlidingLog,
    CompactLog,
    SlidingCounter,
    TokenBucket,
    Quota,
}

impl Algorithm {
    const ALL: [(Self, &str); 5] = [
        (Self::SlidingLog, "sliding-log"),
        (Self::CompactLog, "compact-log"),
        (Self::SlidingCounter, "sliding-counter"),
        (Self::TokenBucket, "token-bucket"),
        (Self::Quota, "quota"),
    ];

    fn of(limit: &Limit) -> Self {
        match limit {
            Limit::SlidingLog(_) => Self::SlidingLog,
            Limit::CompactLog(_) => Self::CompactLog,
            Limit::SlidingCounter(_) => Self::SlidingCounter,
            Limit::TokenBucket(_) => Self::TokenBucket,
            Limit::Quota(_) => Self::Quota,
        }
    }

    fn read(word: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(_, known)| *known == word);
        known.map(|(algorithm, _)| *algorithm).ok_or_else(|| {
            let words: Vec<_> = Self::ALL.iter().map(|(_, word)| format!("{word:?}")).collect();
            format!("{word:?}: must be one of {}", words.join(", "))
        })
    }
}

/// The limits that these fields have, and by what names clients know them.
pub(super) fn read(
    fields: &mut Fields,
    policy: &str,
) -> Result<(Vec<Limit>, Vec<String>), ConfigError> {
    let Some(list) = fields.take("limits") else {
        let limits = vec![one(fields, Algorithm::SlidingLog)?];
        let names = Policy::default_names(policy, &limits);
        return Ok((limits, names));
    };
    let items = items(fields, list)?;
    let mut limits: Vec<Limit> = Vec::with_capacity(items.len());
    let mut names = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let path = fields.path_of(&format!("limits[{}]", index + 1));
        let mut item = Fields::of(path, item, &["name", "limit", "algorithm", "burst"])?;
        names.push(name(&mut item, &names)?);
        let limit = one(&mut item, Algorithm::SlidingLog)?;
        let is_twin = |other: &Limit| other.key_suffix() == limit.key_suffix();
        if let Some(twin) = limits.iter().position(is_twin) {
            let problem = format!(
                "has the algorithm and window of limits[{}], and so its key; \
                 write another window, as \"100/2s\" for \"50/1s\"",
                twin + 1
            );
            return Err(fields.wrong(&format!("limits[{}]", index + 1), problem));
        }
        limits.push(limit);
    }
    let default = Policy::default_names(policy, &limits);
    let names = names.into_iter().zip(default).map(|(name, default)| name.unwrap_or(default));
    let names = names.collect();
    Ok((limits, names))
}

fn name(fields: &mut Fields, others: &[Option<String>]) -> Result<Option<String>, ConfigError> {
    let name = fields.string("name")?;
    match &name {
        Some(text) if !is_name(text) => Err(fields.wrong("name", format!("{text:?}: {NAME_RULE}"))),
        Some(text) if others.contains(&name) => {
            Err(fields.wrong("name", format!("{text:?}: another limit has that name")))
        }
        _ => Ok(name),
    }
}

/// The limits of a plan, in place of `base`: a text or a table as a policy has
/// it, of the same algorithms and windows.
pub(super) fn read_plan(
    path: String,
    config: Value,
    base: &[Limit],
) -> Result<Vec<Limit>, ConfigError> {
    let config = match config {
        Value::String(_) => Value::Table([("limit".to_owned(), config)].into()),
        Value::Table(_) => config,
        other => {
            let wanted = format!("must be a string or a table, not {}", other.kind());
            return Err(ConfigError::new(path, wanted));
        }
    };
    let mut fields = Fields::of(path, config, &FIELDS)?;
    match (fields.take("limits"), base) {
        (None, [base]) => Ok(vec![in_place_of(&mut fields, base)?]),
        (None, _) => Err(fields.missing("limits", "a list: the policy has several limits")),
        (Some(list), _) => {
            let items = items(&mut fields, list)?;
            if items.len() != base.len() {
                let problem =
                    format!("must be as many as the policy's: {}, not {}", base.len(), items.len());
                return Err(fields.wrong("limits", problem));
            }
            let item = |(index, (item, base))| {
                let path = fields.path_of(&format!("limits[{}]", index + 1));
                in_place_of(&mut Fields::of(path, item, &FLAT)?, base)
            };
            items.into_iter().zip(base).enumerate().map(item).collect()
        }
    }
}

/// The items of `limits`, beside which none of a flat limit's fields may stand.
fn items(fields: &mut Fields, list: Value) -> Result<Vec<Value>, ConfigError> {
    for field in FLAT {
        if fields.take(field).is_some() {
            return Err(fields.wrong(field, "cannot stand beside limits; it belongs into each"));
        }
    }
    match list {
        Value::List(items) if items.len() <= MAX_LIMITS => Ok(items),
        Value::Table(table) if table.is_empty() => {
            Err(fields.wrong("limits", "must have at least one limit"))
        }
        Value::List(_) => {
            Err(fields.wrong("limits", format!("must be at most {MAX_LIMITS} limits")))
        }
        other => {
            Err(fields.mistyped("limits", "a list of tables, as { { limit = \"5/1m\" } }", &other))
        }
    }
}

fn in_place_of(fields: &mut Fields, base: &Limit) -> Result<Limit, ConfigError> {
    let limit = one(fields, Algorithm::of(base))?;
    let (own, here) = (base.key_suffix(), limit.key_suffix());
    if here == own {
        return Ok(limit);
    }
    let problem = format!(
        "is a {here}, and the policy's own limit a {own}: algorithm and window must be the \
         same, so that a client whose plan changes keeps what it has used"
    );
    Err(fields.wrong("limit", problem))
}

/// The one limit that these fields have.
fn one(fields: &mut Fields, default: Algorithm) -> Result<Limit, ConfigError> {
    let text = match fields.take("limit") {
        Some(Value::String(text)) => text,
        Some(other) => return Err(fields.mistyped("limit", EXAMPLE, &other)),
        None => return Err(fields.missing("limit", EXAMPLE)),
    };
    let algorithm = match fields.string("algorithm")? {
        Some(word) => {
            Algorithm::read(&word).map_err(|problem| fields.wrong("algorithm", problem))?
        }
        None => default,
    };
    let burst = fields.whole_number("burst", 1..=MAX_LIMIT)?;
    if burst.is_some() && algorithm != Algorithm::TokenBucket {
        return Err(fields.wrong("burst", "is for the algorithm \"token-bucket\" alone"));
    }
    let wrong = |problem: String| fields.wrong("limit", format!("{text:?}: {problem}"));
    let rate = || -> Result<Rate, ConfigError> {
        text.parse().map_err(|error: RateError| {
            let period = Period::ALL.iter().find(|period| text.ends_with(period.word()));
            wrong(match period {
                Some(period) => {
                    format!("{error}; {} is a period of the algorithm \"quota\"", period.word())
                }
                None => error.to_string(),
            })
        })
    };
    Ok(match algorithm {
        Algorithm::SlidingLog => Limit::SlidingLog(rate()?),
        Algorithm::CompactLog => Limit::CompactLog(rate()?),
        Algorithm::SlidingCounter => Limit::SlidingCounter(rate()?),
        Algorithm::TokenBucket => {
            let rate = rate()?;
            let burst = burst.unwrap_or(rate.limit());
            let terms = BucketRate::new(rate, burst)
                .map_err(|error| fields.wrong("burst", format!("{burst}: {error}")))?;
            Limit::TokenBucket(terms)
        }
        Algorithm::Quota => {
            Limit::Quota(text.parse().map_err(|error: QuotaError| wrong(format!("{error}")))?)
        }
    })
}
