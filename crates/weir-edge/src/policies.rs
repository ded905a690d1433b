//! The policies as the Lua side needs them, and the rules that it names.

use mlua::prelude::*;
use weir_core::template::Part;
use weir_core::{KeyRule, Policy, Template};
use weir_redis::Rule;

/// The rules of all policies: of each its own, and behind it one for each of
/// its plans.
pub(crate) fn rules(policies: &[Policy]) -> Vec<Rule> {
    policies
        .iter()
        .flat_map(|policy| {
            let plans = policy.plans.iter().map(|plan| &plan.limits);
            std::iter::once(&policy.limits).chain(plans).map(|limits| Rule::new(policy, limits))
        })
        .collect()
}

/// A table from name to `{ rule, plans, on_error, error_status, key }`. `rule`
/// is the index in [`rules`]; `plans`, of a policy that has some, a table from
/// name to such an index. `key` is a list of templates, each a list of parts
/// `{ variable = name }` or `{ literal = text }`; nil where a function of the
/// operator's gives the key.
pub(crate) fn to_lua(lua: &Lua, policies: &[Policy]) -> LuaResult<LuaTable> {
    let by_name = lua.create_table()?;
    let mut rules = 0..;
    let mut next_rule = || rules.next();
    for policy in policies {
        let entry = lua.create_table()?;
        entry.set("rule", next_rule())?;
        if !policy.plans.is_empty() {
            let plans = lua.create_table()?;
            for plan in &policy.plans {
                plans.set(plan.name.as_str(), next_rule())?;
            }
            entry.set("plans", plans)?;
        }
        entry.set("on_error", policy.on_error.word())?;
        entry.set("error_status", policy.error_status)?;
        if let KeyRule::Templates(templates) = &policy.key {
            let key = lua.create_table()?;
            for template in templates {
                key.push(parts(lua, template)?)?;
            }
            entry.set("key", key)?;
        }
        by_name.set(policy.name.as_str(), entry)?;
    }
    Ok(by_name)
}

fn parts(lua: &Lua, template: &Template) -> LuaResult<LuaTable> {
    let parts = lua.create_table()?;
    for part in template.parts() {
        let entry = lua.create_table()?;
        match part {
            Part::Literal(text) => entry.set("literal", text.as_str())?,
            Part::Variable(name) => entry.set("variable", name.as_str())?,
        }
        parts.push(entry)?;
    }
    Ok(parts)
}
