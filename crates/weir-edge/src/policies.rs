//! The policies as the Lua side needs them.

use mlua::prelude::*;
use weir_core::template::Part;
use weir_core::{KeyRule, Policy, Template};

/// A table from name to `{ index, on_error, error_status, key }`. `key` is a
/// list of templates, each a list of parts `{ variable = name }` or
/// `{ literal = text }`; nil where a function of the operator's gives the key.
pub(crate) fn to_lua(lua: &Lua, policies: &[Policy]) -> LuaResult<LuaTable> {
    let by_name = lua.create_table()?;
    for (index, policy) in policies.iter().enumerate() {
        let entry = lua.create_table()?;
        entry.set("index", index)?;
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
