//! The policies as the Lua side needs them, and the rules that it names.

use mlua::prelude::*;
use weir_core::fields::Presenter;
use weir_core::policy::{Body, Charge};
use weir_core::template::Part;
use weir_core::{KeyRule, Limit, Policy, Template};
use weir_redis::Rule;

use crate::host;

/// Each policy's own limits and behind them those of its plans, with the index
/// of the policy: what a rule's index counts.
pub(crate) fn plans(policies: &[Policy]) -> impl Iterator<Item = (usize, &[Limit])> {
    policies.iter().enumerate().flat_map(|(index, policy)| {
        let plans = policy.plans.iter().map(|plan| &plan.limits);
        std::iter::once(&policy.limits).chain(plans).map(move |limits| (index, &limits[..]))
    })
}

/// The rules of all policies.
pub(crate) fn rules(policies: &[Policy]) -> Vec<Rule> {
    plans(policies).map(|(policy, limits)| Rule::new(&policies[policy], limits)).collect()
}

/// What the engine knows of a rule, beside how it is decided.
pub(crate) struct Terms {
    /// The index of its policy.
    pub(crate) policy: usize,
    pub(crate) presenter: Presenter,
    /// The same for this host's part of its limits.
    pub(crate) share_presenter: Presenter,
}

/// The terms of all policies, in the order of [`rules`].
pub(crate) fn terms(policies: &[Policy]) -> Vec<Terms> {
    let terms = |(index, limits)| {
        let policy: &Policy = &policies[index];
        Terms {
            policy: index,
            presenter: Presenter::new(policy, limits),
            share_presenter: Presenter::new(policy, &host::shares(policy, limits)),
        }
    };
    plans(policies).map(terms).collect()
}

/// A table from name to what `lua/resty/weir.lua` needs of a policy:
///
/// - `name`; `id`, its number from 1; `rule`, the index in [`rules`], and
///   `plans`, of a policy that has some, a table from name to such an index;
/// - `key`, a list of keys, nil where a function gives it. A key is a list of
///   parts `{ literal = text }` or `{ variable = name, address = true or nil }`;
///   one of several templates is a list of such lists, with `apart = true`.
///   `masks_v4` tells whether IPv4 addresses too must be cut to their prefix;
/// - `exempt`, nil where nobody is: `methods`, a set; `networks` and `function`,
///   whether there are any;
/// - `charge`, a set of statuses, nil for always; `dry_run`; `on_error`;
///   `error_status`;
/// - `headers`, a list of `{ name, joins }`, and `expose`, their names as one
///   text, nil where it was not asked for; `dry_run_header`; `error_page`;
///   `body` and `error_body`, `{ type, text }` or nil; `grpc_status` as text.
pub(crate) fn to_lua(lua: &Lua, policies: &[Policy]) -> LuaResult<LuaTable> {
    let by_name = lua.create_table()?;
    let mut rules = 0..;
    let mut next_rule = || rules.next();
    for (index, policy) in policies.iter().enumerate() {
        let entry = lua.create_table()?;
        entry.set("name", policy.name.as_str())?;
        entry.set("id", index + 1)?;
        entry.set("rule", next_rule())?;
        if !policy.plans.is_empty() {
            let plans = lua.create_table()?;
            for plan in &policy.plans {
                plans.set(plan.name.as_str(), next_rule())?;
            }
            entry.set("plans", plans)?;
        }
        if let KeyRule::Sources(sources) = &policy.key {
            let key = lua.create_table()?;
            for source in sources {
                key.push(source_to_lua(lua, &source.0)?)?;
            }
            entry.set("key", key)?;
        }
        entry.set("masks_v4", !policy.ip.is_whole_v4())?;
        entry.set("exempt", exempt_to_lua(lua, policy)?)?;
        if let Charge::Statuses(statuses) = &policy.charge {
            entry.set("charge", set_of(lua, statuses.iter().copied())?)?;
        }
        entry.set("dry_run", policy.dry_run)?;
        entry.set("on_error", policy.on_error.word())?;
        entry.set("error_status", policy.error_status)?;
        answers_to_lua(lua, policy, &entry)?;
        by_name.set(policy.name.as_str(), entry)?;
    }
    Ok(by_name)
}

fn source_to_lua(lua: &Lua, templates: &[Template]) -> LuaResult<LuaTable> {
    if let [template] = templates {
        return parts(lua, template);
    }
    let lists = lua.create_table()?;
    for template in templates {
        lists.push(parts(lua, template)?)?;
    }
    lists.set("apart", true)?;
    Ok(lists)
}

fn parts(lua: &Lua, template: &Template) -> LuaResult<LuaTable> {
    let parts = lua.create_table()?;
    for part in template.parts() {
        let entry = lua.create_table()?;
        match part {
            Part::Literal(text) => entry.set("literal", text.as_str())?,
            // The same address, in a form that people can read.
            Part::Variable(name) if name == "binary_remote_addr" => {
                entry.set("variable", "remote_addr")?;
            }
            Part::Variable(name) => entry.set("variable", name.as_str())?,
        }
        if part.is_address() {
            entry.set("address", true)?;
        }
        parts.push(entry)?;
    }
    Ok(parts)
}

fn exempt_to_lua(lua: &Lua, policy: &Policy) -> LuaResult<Option<LuaTable>> {
    let exempt = &policy.exempt;
    if exempt.networks.is_empty() && exempt.methods.is_empty() && !exempt.function {
        return Ok(None);
    }
    let table = lua.create_table()?;
    table.set("methods", set_of(lua, exempt.methods.iter().map(String::as_str))?)?;
    table.set("networks", !exempt.networks.is_empty())?;
    table.set("function", exempt.function)?;
    Ok(Some(table))
}

fn answers_to_lua(lua: &Lua, policy: &Policy, entry: &LuaTable) -> LuaResult<()> {
    let answers = &policy.answers;
    let headers = lua.create_table()?;
    let mut names = vec!["Retry-After"];
    for (name, joins) in answers.headers.iter().flat_map(|style| style.headers()) {
        let header = lua.create_table()?;
        header.set("name", *name)?;
        header.set("joins", *joins)?;
        headers.push(header)?;
        names.push(name);
    }
    entry.set("headers", headers)?;
    if answers.expose {
        entry.set("expose", names.join(", "))?;
    }
    entry.set("dry_run_header", answers.dry_run_header.as_deref())?;
    entry.set("error_page", answers.error_page)?;
    entry.set("body", body_to_lua(lua, answers.body.as_ref())?)?;
    entry.set("error_body", body_to_lua(lua, answers.error_body.as_ref())?)?;
    entry.set("grpc_status", answers.grpc_status.to_string())
}

fn body_to_lua(lua: &Lua, body: Option<&Body>) -> LuaResult<Option<LuaTable>> {
    let Some(body) = body else { return Ok(None) };
    let table = lua.create_table()?;
    table.set("type", body.media_type.as_str())?;
    table.set("text", body.text.as_str())?;
    Ok(Some(table))
}

fn set_of<T: IntoLua>(lua: &Lua, items: impl Iterator<Item = T>) -> LuaResult<LuaTable> {
    let set = lua.create_table()?;
    for item in items {
        set.set(item, true)?;
    }
    Ok(set)
}
